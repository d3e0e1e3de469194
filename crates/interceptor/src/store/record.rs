//! Journal records: one for each way in which a mutation is undone.

use codeagent_common::{EntryKind, RelPath, StepId, StepKind, Timestamp};
use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use crate::host::{Meta, Stamp};

/// First frame of every journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Header {
    pub(crate) id: StepId,
    pub(crate) sequence: u64,
    pub(crate) kind: StepKind,
    pub(crate) command: String,
    pub(crate) started_at: Timestamp,
    pub(crate) purpose: Purpose,
}

/// Why a journal is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Purpose {
    Step,
    /// Inverts the step with this sequence number.
    Undo(u64),
    /// Inverts the undo with this sequence number.
    Redo(u64),
}

/// Where an object lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct ObjectRef {
    pub(crate) owner: Owner,
    pub(crate) number: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum Owner {
    /// The step or redo entry with this sequence number.
    Sequence(u64),
    /// A staging area that is gone by the time anybody could ask for it.
    Staging,
}

/// Names an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum At<'a> {
    #[serde(borrow)]
    Path(RelPath<'a>),
    /// A file that was removed while somebody had it open, and is still being written to.
    Object(ObjectRef),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Record<'a> {
    Create {
        #[serde(borrow)]
        path: RelPath<'a>,
        kind: EntryKind,
        /// All creations recorded before this index had returned by then.
        settled: u64,
    },
    Mkdir {
        path: RelPath<'a>,
    },
    Rmdir {
        path: RelPath<'a>,
        meta: Meta,
    },
    Take {
        path: RelPath<'a>,
        object: u32,
        stamp: Stamp,
        /// Linked, not moved: a rename is about to replace it.
        linked: bool,
    },
    Put {
        path: RelPath<'a>,
        from: ObjectRef,
        stamp: Stamp,
    },
    Removed {
        path: RelPath<'a>,
        meta: Meta,
        body: Body,
    },
    Rename {
        from: RelPath<'a>,
        to: RelPath<'a>,
        stamp: Stamp,
    },
    Exchange {
        a: RelPath<'a>,
        b: RelPath<'a>,
        /// What was at `a` before.
        stamp_a: Stamp,
        /// What was at `b` before.
        stamp_b: Stamp,
    },
    Preimage {
        at: At<'a>,
        meta: Option<Meta>,
        content: Option<Content>,
    },
    Cancelled {
        record: u64,
    },
    Done {
        record: u64,
    },
    /// Nothing from here on is recorded.
    Unprotected {
        reason: String,
    },
    Link {
        path: RelPath<'a>,
        /// The name it has, and what was there before; `None` for a file that had no name yet.
        existing: Option<(RelPath<'a>, Stamp)>,
    },
    /// In one moment: `Take` and `Put`.
    Swap {
        path: RelPath<'a>,
        object: u32,
        taken: Stamp,
        /// Where what is placed was. It becomes the object first, and then changes places.
        from: ObjectRef,
        placed: Stamp,
    },
}

impl<'a> Record<'a> {
    /// First bytes of `Cancelled`, `Done` and `Unprotected`, as they are encoded.
    pub(crate) const MARK_TAGS: [u8; 3] = [9, 10, 11];

    /// The name that appears with the mutation.
    pub(crate) fn appearing(&self) -> Option<RelPath<'a>> {
        match self {
            Self::Create { path, .. }
            | Self::Mkdir { path }
            | Self::Put { path, .. }
            | Self::Swap { path, .. }
            | Self::Link { path, .. }
            | Self::Rename { to: path, .. } => Some(*path),
            _ => None,
        }
    }
}

/// Content that a preimage brings back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Content {
    /// The file's former length, and some of its former bytes (none, if bytes were only added).
    Ranges { length: u64, regions: Vec<Region> },
    /// All of it, sharing blocks with the file as it was.
    Clone { length: u64, object: u32, stamp: Stamp },
}

impl Content {
    /// Whether some of the former bytes are not in it, because they were not to change.
    pub(crate) fn is_partial(&self) -> bool {
        match self {
            Self::Clone { .. } => false,
            Self::Ranges { length, regions } => {
                let known: u64 = regions.iter().map(|region| region.end - region.start).sum();
                known < *length
            }
        }
    }
}

/// A stretch of a file that is known completely: where no extent is, there was a hole.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Region {
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) extents: Vec<Extent>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Extent {
    pub(crate) file_offset: u64,
    pub(crate) pack_offset: u64,
    pub(crate) stored_bytes: u32,
    pub(crate) plain_bytes: u32,
    pub(crate) codec: Codec,
    /// xxh3-64 of the plain bytes.
    pub(crate) check: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Codec {
    Plain,
    Zstd,
}

/// What a removed entry was.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Body {
    File(Region),
    Symlink(ByteBuf),
    /// A FIFO, socket or device; type and device number are in the stamp.
    Special,
}
