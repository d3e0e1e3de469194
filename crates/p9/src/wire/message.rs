//! Every message, field by field in the order of the wire.

use super::HEADER;
use super::fields::{Field, Malformed, Names, Qids, Reader};
use super::frame::Frame;
use super::types::{Data, Qid};
use crate::share::{Attributes, FileSystemFigures, Time};

macro_rules! messages {
    (
        $(#[$about:meta])*
        enum $name:ident { $($variant:ident = $number:literal { $($field:ident: $type:ty),* })* }
    ) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[allow(missing_docs, reason = "the protocol's own names")]
        #[allow(clippy::large_enum_variant, reason = "one at a time, on the stack")]
        pub enum $name<'a> {
            $($variant { $($field: $type),* },)*
        }

        impl<'a> $name<'a> {
            /// The numbers of all.
            pub const NUMBERS: &'static [u8] = &[$($number),*];

            #[must_use]
            pub fn number(&self) -> u8 {
                match self {
                    $(Self::$variant { .. } => $number,)*
                }
            }

            /// Reads the fields of the message with this number.
            ///
            /// # Errors
            ///
            /// There is none with this number, or it has other fields than these.
            pub fn read(number: u8, fields: &'a [u8]) -> Result<Self, Malformed> {
                #[allow(unused_mut, reason = "some have no field")]
                let mut reader = Reader::new(fields);
                let message = match number {
                    $($number => Self::$variant { $($field: Field::get(&mut reader)?),* },)*
                    _ => return Err(Malformed),
                };
                reader.finish()?;
                Ok(message)
            }

            /// Reads a whole message.
            ///
            /// # Errors
            ///
            /// The bytes are not exactly one message.
            pub fn read_frame(bytes: &'a [u8]) -> Result<(u16, Self), Malformed> {
                let (header, fields) = bytes.split_first_chunk::<HEADER>().ok_or(Malformed)?;
                let [a, b, c, d, number, e, f] = *header;
                if usize::try_from(u32::from_le_bytes([a, b, c, d])) != Ok(bytes.len()) {
                    return Err(Malformed);
                }
                Ok((u16::from_le_bytes([e, f]), Self::read(number, fields)?))
            }

            pub(super) fn put(&self, frame: &mut Frame) {
                match self {
                    $(Self::$variant { $($field),* } => { let _ = &frame; $($field.put(frame);)* })*
                }
            }
        }
    };
}

messages! {
    /// What a client asks for.
    enum Request {
        Statfs = 8 { fid: u32 }
        Lopen = 12 { fid: u32, flags: u32 }
        Lcreate = 14 { fid: u32, name: &'a [u8], flags: u32, mode: u32, gid: u32 }
        Symlink = 16 { dir: u32, name: &'a [u8], target: &'a [u8], gid: u32 }
        Mknod = 18 { dir: u32, name: &'a [u8], mode: u32, major: u32, minor: u32, gid: u32 }
        Rename = 20 { fid: u32, dir: u32, name: &'a [u8] }
        Readlink = 22 { fid: u32 }
        Getattr = 24 { fid: u32, wanted: u64 }
        Setattr = 26 {
            fid: u32, valid: u32, mode: u32, uid: u32, gid: u32, size: u64, accessed: Time,
            modified: Time
        }
        Xattrwalk = 30 { fid: u32, new_fid: u32, name: &'a [u8] }
        Xattrcreate = 32 { fid: u32, name: &'a [u8], size: u64, flags: u32 }
        Readdir = 40 { fid: u32, offset: u64, count: u32 }
        Fsync = 50 { fid: u32, data_only: u32 }
        Lock = 52 {
            fid: u32, kind: u8, flags: u32, start: u64, length: u64, process: u32, client: &'a [u8]
        }
        Getlock = 54 {
            fid: u32, kind: u8, start: u64, length: u64, process: u32, client: &'a [u8]
        }
        Link = 70 { dir: u32, fid: u32, name: &'a [u8] }
        Mkdir = 72 { dir: u32, name: &'a [u8], mode: u32, gid: u32 }
        Renameat = 74 { old_dir: u32, old_name: &'a [u8], new_dir: u32, new_name: &'a [u8] }
        Unlinkat = 76 { dir: u32, name: &'a [u8], flags: u32 }
        Version = 100 { msize: u32, version: &'a [u8] }
        Auth = 102 { fid: u32, user: &'a [u8], tree: &'a [u8], uid: u32 }
        Attach = 104 { fid: u32, auth_fid: u32, user: &'a [u8], tree: &'a [u8], uid: u32 }
        Flush = 108 { old_tag: u16 }
        Walk = 110 { fid: u32, new_fid: u32, names: Names<'a> }
        Read = 116 { fid: u32, offset: u64, count: u32 }
        Write = 118 { fid: u32, offset: u64, data: Data<'a> }
        Clunk = 120 { fid: u32 }
        Remove = 122 { fid: u32 }
    }
}

messages! {
    /// What it is answered.
    enum Reply {
        Error = 7 { errno: u32 }
        Statfs = 9 { figures: FileSystemFigures }
        Lopen = 13 { qid: Qid, iounit: u32 }
        Lcreate = 15 { qid: Qid, iounit: u32 }
        Symlink = 17 { qid: Qid }
        Mknod = 19 { qid: Qid }
        Rename = 21 {}
        Readlink = 23 { target: &'a [u8] }
        Getattr = 25 { attributes: Attributes }
        Setattr = 27 {}
        Xattrwalk = 31 { size: u64 }
        Xattrcreate = 33 {}
        Readdir = 41 { entries: Data<'a> }
        Fsync = 51 {}
        Lock = 53 { status: u8 }
        Getlock = 55 { kind: u8, start: u64, length: u64, process: u32, client: &'a [u8] }
        Link = 71 {}
        Mkdir = 73 { qid: Qid }
        Renameat = 75 {}
        Unlinkat = 77 {}
        Version = 101 { msize: u32, version: &'a [u8] }
        Auth = 103 { qid: Qid }
        Attach = 105 { qid: Qid }
        Flush = 109 {}
        Walk = 111 { qids: Qids }
        Read = 117 { data: Data<'a> }
        Write = 119 { count: u32 }
        Clunk = 121 {}
        Remove = 123 {}
    }
}
