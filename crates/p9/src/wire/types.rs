//! Values that messages are made of.

use super::fields::{Field, Malformed, Reader};
use super::frame::Frame;
use crate::share::{Attributes, FileSystemFigures, Time};

/// Which file it is, as clients are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Qid {
    pub kind: QidKind,
    /// Another one when the content is another. Clients that keep contents keep none of what has 0.
    pub version: u32,
    pub path: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct QidKind(pub u8);

impl QidKind {
    pub const FILE: Self = Self(0);
    pub const SYMLINK: Self = Self(0x02);
    pub const DIRECTORY: Self = Self(0x80);

    /// Of a file with this mode of Linux.
    #[must_use]
    pub fn of_mode(mode: u32) -> Self {
        match mode & 0o170_000 {
            0o040_000 => Self::DIRECTORY,
            0o120_000 => Self::SYMLINK,
            _ => Self::FILE,
        }
    }

    /// Of an entry with this `DT_` number of Linux.
    #[must_use]
    pub fn of_entry(kind: u8) -> Self {
        Self::of_mode(u32::from(kind) << 12)
    }
}

impl Qid {
    pub const BYTES: usize = 13;

    #[must_use]
    pub fn is_dir(&self) -> bool {
        self.kind == QidKind::DIRECTORY
    }
}

impl<'a> Field<'a> for Qid {
    fn get(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self { kind: QidKind(u8::get(from)?), version: u32::get(from)?, path: u64::get(from)? })
    }

    fn put(&self, frame: &mut Frame) {
        self.kind.0.put(frame);
        self.version.put(frame);
        self.path.put(frame);
    }
}

/// Bytes with a length of four bytes before them, where strings have one of two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Data<'a>(pub &'a [u8]);

impl<'a> Field<'a> for Data<'a> {
    fn get(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        let length = u32::get(from)?;
        Ok(Self(from.take(usize::try_from(length).map_err(|_| Malformed)?)?))
    }

    fn put(&self, frame: &mut Frame) {
        (self.0.len() as u32).put(frame);
        frame.append(self.0);
    }
}

impl<'a> Field<'a> for Time {
    fn get(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self { seconds: u64::get(from)?, nanoseconds: u64::get(from)? })
    }

    fn put(&self, frame: &mut Frame) {
        self.seconds.put(frame);
        self.nanoseconds.put(frame);
    }
}

/// Several fields in the order of the wire.
macro_rules! record {
    ($type:ident { $($field:ident),* $(,)? }) => {
        impl<'a> Field<'a> for $type {
            fn get(from: &mut Reader<'a>) -> Result<Self, Malformed> {
                Ok(Self { $($field: Field::get(from)?,)* })
            }

            fn put(&self, frame: &mut Frame) {
                $(self.$field.put(frame);)*
            }
        }
    };
}

record!(Attributes {
    valid,
    qid,
    mode,
    uid,
    gid,
    links,
    device,
    size,
    block_size,
    blocks,
    accessed,
    modified,
    changed,
    born,
    generation,
    data_version,
});

record!(FileSystemFigures {
    kind,
    block_size,
    blocks,
    free,
    available,
    files,
    free_files,
    id,
    longest_name,
});

/// One name of a directory, as it is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WireEntry<'a> {
    pub qid: Qid,
    pub offset: u64,
    pub kind: u8,
    pub name: &'a [u8],
}

impl WireEntry<'_> {
    /// How many bytes it has there.
    #[must_use]
    pub fn size(&self) -> usize {
        Qid::BYTES + 8 + 1 + 2 + self.name.len()
    }
}

impl<'a> Field<'a> for WireEntry<'a> {
    fn get(from: &mut Reader<'a>) -> Result<Self, Malformed> {
        Ok(Self {
            qid: Qid::get(from)?,
            offset: u64::get(from)?,
            kind: u8::get(from)?,
            name: <&[u8]>::get(from)?,
        })
    }

    fn put(&self, frame: &mut Frame) {
        self.qid.put(frame);
        self.offset.put(frame);
        self.kind.put(frame);
        self.name.put(frame);
    }
}

/// The entries in the data of `Rreaddir`. Ends at the first that is not whole.
#[derive(Debug, Clone)]
pub struct DirEntries<'a>(Reader<'a>);

impl<'a> DirEntries<'a> {
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self(Reader::new(data))
    }
}

impl<'a> Iterator for DirEntries<'a> {
    type Item = WireEntry<'a>;

    fn next(&mut self) -> Option<WireEntry<'a>> {
        WireEntry::get(&mut self.0).ok()
    }
}
