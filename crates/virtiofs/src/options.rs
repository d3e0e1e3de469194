//! What a worker is told about a guest that it is to serve.

use std::io;

use codeagent_fs::Owners;

/// Says that what follows is for a guest. Other front ends' options do not begin so.
const MARK: &[u8] = b"guest\0";

/// How a guest is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GuestOptions {
    /// `None`: users and groups have the same numbers on both sides. Only a privileged worker can
    /// make files that belong to others.
    pub owners: Option<Owners>,
}

impl GuestOptions {
    /// What goes with the request to attach.
    pub fn encode(self) -> Vec<u8> {
        [MARK, &Owners::encode(self.owners)].concat()
    }

    /// `None`: they are for another front end.
    pub(crate) fn decode(bytes: &[u8]) -> io::Result<Option<Self>> {
        let Some(owners) = bytes.strip_prefix(MARK) else { return Ok(None) };
        Ok(Some(Self { owners: Owners::decode(owners)? }))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use codeagent_fs::Ids;

    use super::*;

    #[test]
    fn options_arrive_as_they_were_sent_and_those_of_others_are_left_to_them() {
        let owners = Owners { host: Ids { uid: 1, gid: 2 }, guest: Ids { uid: 3, gid: u32::MAX } };
        for owners in [None, Some(owners)] {
            let options = GuestOptions { owners };
            assert_eq!(GuestOptions::decode(&options.encode()).unwrap(), Some(options));
        }
        assert_eq!(GuestOptions::decode(&4_u32.to_le_bytes()).unwrap(), None);
        assert!(GuestOptions::decode(b"guest\0\x01").is_err());
        assert!(GuestOptions::decode(b"guest\0\x01\0\0\0").is_err());
    }
}
