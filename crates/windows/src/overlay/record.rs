//! What is known of one file, as bytes.

use super::{Kind, OverlayError, Result};

/// What is known of one file, whatever its names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: Kind,
    /// How many names lead here.
    pub(super) names: u32,
    pub(super) mode: Option<u32>,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) target: Option<Vec<u8>>,
}

const HAS_MODE: u8 = 1;
const HAS_UID: u8 = 2;
const HAS_GID: u8 = 4;
const HAS_TARGET: u8 = 8;

impl Record {
    pub(super) fn new(kind: Kind) -> Self {
        Self { kind, names: 1, mode: None, uid: None, gid: None, target: None }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let kind = match self.kind {
            Kind::File => 0,
            Kind::Directory => 1,
            Kind::Link => 2,
        };
        let flag = |has, flag| if has { flag } else { 0 };
        let flags = flag(self.mode.is_some(), HAS_MODE)
            | flag(self.uid.is_some(), HAS_UID)
            | flag(self.gid.is_some(), HAS_GID)
            | flag(self.target.is_some(), HAS_TARGET);
        let mut bytes = vec![kind, flags];
        for number in [Some(self.names), self.mode, self.uid, self.gid] {
            bytes.extend(number.unwrap_or_default().to_le_bytes());
        }
        bytes.extend(self.target.as_deref().unwrap_or_default());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Self> {
        Self::decoded(bytes).ok_or_else(|| {
            OverlayError::Damaged(format!("{} bytes are no record of a file", bytes.len()))
        })
    }

    fn decoded(bytes: &[u8]) -> Option<Self> {
        let (&[kind, flags], rest) = bytes.split_first_chunk()?;
        let (numbers, target) = rest.split_at_checked(16)?;
        let mut numbers = numbers.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let names = numbers.next()?;
        let mut number = |flag| {
            let number = numbers.next();
            number.filter(|_| flags & flag != 0)
        };
        let record = Self {
            kind: match kind {
                0 => Kind::File,
                1 => Kind::Directory,
                2 => Kind::Link,
                _ => return None,
            },
            names,
            mode: number(HAS_MODE),
            uid: number(HAS_UID),
            gid: number(HAS_GID),
            target: (flags & HAS_TARGET != 0).then(|| target.to_vec()),
        };
        (record.encode() == bytes).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_comes_back_as_it_was_and_nothing_else_is_one() {
        let full = Record {
            kind: Kind::File,
            names: 2,
            mode: Some(0o755),
            uid: Some(0),
            gid: None,
            target: Some(b"a".to_vec()),
        };
        for record in [full.clone(), Record::new(Kind::Directory), Record::new(Kind::Link)] {
            assert_eq!(Record::decode(&record.encode()).unwrap(), record);
        }
        let bytes = full.encode();
        for cut in 0..18 {
            assert!(Record::decode(&bytes[..cut]).is_err(), "{cut}");
        }
        let mut unknown = bytes;
        unknown[0] = 9;
        assert!(Record::decode(&unknown).is_err());
    }
}
