//! The messages of 9P2000.L, as bytes and as values.
//!
//! ```text
//!   size[4] type[1] tag[2] fields…        all numbers little-endian; size counts itself
//! ```
//!
//! Reading borrows from the bytes and sets no memory aside: whatever a length claims, it is compared
//! with what is there first. Strings are bytes, because names of files are.

mod fields;
mod frame;
mod message;
mod types;

pub use fields::{Malformed, Names, Qids};
pub use frame::Frame;
pub use message::{Reply, Request};
pub use types::{Data, DirEntries, Qid, QidKind, WireEntry};

/// The dialect that is spoken here.
pub const VERSION: &[u8] = b"9P2000.L";

/// The answer to a client that speaks another.
pub const VERSION_UNKNOWN: &[u8] = b"unknown";

/// The tag of `Tversion`.
pub const NO_TAG: u16 = u16::MAX;

/// No fid: what is sent as the fid for authentication.
pub const NO_FID: u32 = u32::MAX;

/// No user by number.
pub const NO_USER: u32 = u32::MAX;

/// Bytes before the fields: size, type and tag.
pub const HEADER: usize = 7;

/// Bytes of `Rread` and `Rreaddir` before the data.
pub const READ_HEADER: usize = HEADER + 4;

/// What a message that carries data may have besides it. Clients set this much aside.
pub const DATA_OVERHEAD: u32 = 24;

/// Names in one walk.
pub const MAX_WALK: usize = 16;

/// Removes a directory, in `Tunlinkat`.
pub const AT_REMOVEDIR: u32 = 0x200;

/// Bits that say what of a node's attributes is asked for, or told.
pub mod getattr {
    pub const MODE: u64 = 0x1;
    pub const LINKS: u64 = 0x2;
    pub const UID: u64 = 0x4;
    pub const GID: u64 = 0x8;
    pub const DEVICE: u64 = 0x10;
    pub const ACCESSED: u64 = 0x20;
    pub const MODIFIED: u64 = 0x40;
    pub const CHANGED: u64 = 0x80;
    pub const NUMBER: u64 = 0x100;
    pub const SIZE: u64 = 0x200;
    pub const BLOCKS: u64 = 0x400;
    pub const BORN: u64 = 0x800;
    pub const GENERATION: u64 = 0x1000;
    pub const DATA_VERSION: u64 = 0x2000;
    /// What `stat` has.
    pub const BASIC: u64 = 0x7ff;
    pub const ALL: u64 = 0x3fff;
}

/// Bits that say what is to be changed.
pub mod setattr {
    pub const MODE: u32 = 0x1;
    pub const UID: u32 = 0x2;
    pub const GID: u32 = 0x4;
    pub const SIZE: u32 = 0x8;
    /// To now, unless `ACCESSED_SET` is there as well.
    pub const ACCESSED: u32 = 0x10;
    pub const MODIFIED: u32 = 0x20;
    pub const CHANGED: u32 = 0x40;
    pub const ACCESSED_SET: u32 = 0x80;
    pub const MODIFIED_SET: u32 = 0x100;
}

/// Locks of ranges of a file.
pub mod lock {
    pub const READ: u8 = 0;
    pub const WRITE: u8 = 1;
    pub const UNLOCK: u8 = 2;

    /// The client waits for it.
    pub const BLOCK: u32 = 1;
    pub const RECLAIM: u32 = 2;

    pub const SUCCESS: u8 = 0;
    pub const BLOCKED: u8 = 1;
    pub const ERROR: u8 = 2;
    pub const GRACE: u8 = 3;
}
