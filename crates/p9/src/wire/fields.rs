//! How a field is read and written.

use super::MAX_WALK;
use super::frame::Frame;
use super::types::Qid;

/// The bytes are no message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a message of 9P2000.L")]
pub struct Malformed;

/// What is left of a message.
#[derive(Debug, Clone)]
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Nothing may be left when all fields have been read.
    pub(super) fn finish(self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

pub(super) trait Field<'a>: Sized {
    fn get(from: &mut Reader<'a>) -> Result<Self, Malformed>;

    fn put(&self, frame: &mut Frame);
}

macro_rules! numbers {
    ($($type:ty),*) => {
        $(impl<'a> Field<'a> for $type {
            fn get(from: &mut Reader<'a>) -> Result<Self, Malformed> {
                from.array().map(<$type>::from_le_bytes)
            }

            fn put(&self, frame: &mut Frame) {
                frame.append(&self.to_le_bytes());
            }
        })*
    };
}

numbers!(u8, u16, u32, u64);

/// A string. Who writes one sees to it that it is not longer than its length can say.
impl<'a> Field<'a> for &'a [u8] {
    fn get(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let length = u16::get(from)?;
        from.take(length.into())
    }

    fn put(&self, frame: &mut Frame) {
        let length = self.len().min(u16::MAX.into());
        (length as u16).put(frame);
        frame.append(&self[..length]);
    }
}

/// The names of a walk, still where they came in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Names<'a> {
    count: u16,
    /// Each with its length before it; whole.
    bytes: &'a [u8],
}

impl<'a> Names<'a> {
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.into()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut reader = Reader::new(self.bytes);
        std::iter::from_fn(move || <&[u8]>::get(&mut reader).ok())
    }

    /// For who writes one: `buffer` has the bytes.
    ///
    /// # Errors
    ///
    /// There are more names than one walk has, or one is too long.
    pub fn collect(names: &[&[u8]], buffer: &'a mut Vec<u8>) -> Result<Self, Malformed> {
        if names.len() > MAX_WALK {
            return Err(Malformed);
        }
        buffer.clear();
        for name in names {
            let length = u16::try_from(name.len()).map_err(|_| Malformed)?;
            buffer.extend_from_slice(&length.to_le_bytes());
            buffer.extend_from_slice(name);
        }
        Ok(Self { count: names.len() as u16, bytes: buffer })
    }
}

impl<'a> Field<'a> for Names<'a> {
    fn get(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count = u16::get(from)?;
        if usize::from(count) > MAX_WALK {
            return Err(Malformed);
        }
        let begin = from.0;
        for _ in 0..count {
            <&[u8]>::get(from)?;
        }
        Ok(Self { count, bytes: &begin[..begin.len() - from.0.len()] })
    }

    fn put(&self, frame: &mut Frame) {
        self.count.put(frame);
        frame.append(self.bytes);
    }
}

/// What a walk came by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Qids {
    count: usize,
    all: [Qid; MAX_WALK],
}

impl Qids {
    /// More than a walk has names are left out.
    pub fn push(&mut self, qid: Qid) {
        if let Some(place) = self.all.get_mut(self.count) {
            *place = qid;
            self.count += 1;
        }
    }

    #[must_use]
    pub fn as_slice(&self) -> &[Qid] {
        &self.all[..self.count]
    }
}

impl FromIterator<Qid> for Qids {
    fn from_iter<T: IntoIterator<Item = Qid>>(qids: T) -> Self {
        let mut all = Self::default();
        qids.into_iter().for_each(|qid| all.push(qid));
        all
    }
}

impl<'a> Field<'a> for Qids {
    fn get(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count = u16::get(from)?;
        if usize::from(count) > MAX_WALK {
            return Err(Malformed);
        }
        let mut qids = Self::default();
        for _ in 0..count {
            qids.push(Qid::get(from)?);
        }
        Ok(qids)
    }

    fn put(&self, frame: &mut Frame) {
        (self.count as u16).put(frame);
        self.as_slice().iter().for_each(|qid| qid.put(frame));
    }
}
