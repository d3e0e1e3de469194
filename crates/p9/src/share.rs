//! What a folder of the host has to offer to be served.

use crate::errno::Errno;
use crate::wire::Qid;

pub type Result<T> = std::result::Result<T, Errno>;

/// A folder of the host, as one client sees it.
///
/// Everything in it is reached from the root, one name at a time: there are no paths. A
/// [`Node`](Share::Node) stands for one file, directory or link, whatever that is called meanwhile
/// and even if it has no name any more; an [`Open`](Share::Open) stands for one opening of it. Who
/// drops a node forgets it, who drops an opening closes it.
///
/// Any number of threads call in at once. Every call does its work and returns; one that may have to
/// wait for a person or for an undo is announced by [`Share::may_wait`].
///
/// The server has checked every name before it gets here: it is not empty, not `.` or `..`, and has
/// neither `/` nor NUL in it. What else a host does not bear in a name, the share refuses itself.
pub trait Share: Send + Sync + 'static {
    /// A file, directory or link; forgotten when it is dropped.
    type Node: Send + Sync + 'static;
    /// A file or directory that is open; closed when it is dropped.
    type Open: Send + Sync + 'static;
    /// A request that was taken, until the client has its answer.
    type Taken: Send + 'static;

    /// Whether a mutation that comes now might have to wait for somebody's answer, or for an undo.
    /// If not, it is served at once, by the thread that reads requests.
    fn may_wait(&self) -> bool {
        false
    }

    /// A request was taken from the client, of whichever kind. Dropped when it has its answer.
    fn taken(&self) -> Self::Taken;

    /// Counts a mutation as on its way until `work` is done, which tells the client how it went.
    fn until_told<T>(&self, work: impl FnOnce() -> T) -> T {
        work()
    }

    /// The folder itself.
    fn root(&self, caller: Caller) -> Result<Found<Self::Node>>;

    /// What a directory has by this name. No link is followed.
    fn lookup(&self, caller: Caller, dir: &Self::Node, name: &[u8]) -> Result<Found<Self::Node>>;

    /// At least what is `wanted` (bits of [`wire::getattr`](crate::wire::getattr)); `valid` says
    /// what is there. Through `open` if there is one: the file may have lost its name.
    fn attributes(
        &self,
        caller: Caller,
        node: &Self::Node,
        open: Option<&Self::Open>,
        wanted: u64,
    ) -> Result<Attributes>;

    /// Through `open` if there is one and it was opened for writing.
    fn change(
        &self,
        caller: Caller,
        node: &Self::Node,
        open: Option<&Self::Open>,
        change: &Change,
    ) -> Result<()>;

    /// Opens a file or directory that exists. Links are not followed: ELOOP.
    fn open(&self, caller: Caller, node: &Self::Node, flags: OpenFlags) -> Result<Self::Open>;

    /// Makes a file and opens it. What exists is opened instead, unless `flags` are exclusive.
    fn create(
        &self,
        caller: Caller,
        dir: &Self::Node,
        name: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Created<Self::Node, Self::Open>>;

    /// As many bytes as there are, up to as many as fit; 0 at the end.
    fn read(
        &self,
        caller: Caller,
        node: &Self::Node,
        open: &Self::Open,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize>;

    /// At `offset`, or at the end if it was opened to append. Says how many bytes were written.
    fn write(
        &self,
        caller: Caller,
        node: &Self::Node,
        open: &Self::Open,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize>;

    /// Hands over the entries behind `offset` (0, or what came with an entry of the same opening) in
    /// order, `.` and `..` among them if the host has them, until `give` says that it has no room.
    fn list(
        &self,
        caller: Caller,
        node: &Self::Node,
        open: &Self::Open,
        offset: u64,
        give: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()>;

    /// Where a link leads.
    fn read_link(&self, caller: Caller, node: &Self::Node) -> Result<Vec<u8>>;

    /// Makes anything but a file that is to be opened at once.
    fn make(&self, caller: Caller, dir: &Self::Node, name: &[u8], new: NewNode<'_>) -> Result<Qid>;

    /// Another name for `node`.
    fn link(&self, caller: Caller, node: &Self::Node, dir: &Self::Node, name: &[u8]) -> Result<()>;

    /// Takes the name of a file (or anything else that is no directory) away.
    fn unlink(&self, caller: Caller, dir: &Self::Node, name: &[u8]) -> Result<()>;

    /// Takes an empty directory away.
    fn remove_dir(&self, caller: Caller, dir: &Self::Node, name: &[u8]) -> Result<()>;

    /// What has the new name is replaced.
    fn rename(
        &self,
        caller: Caller,
        from: (&Self::Node, &[u8]),
        to: (&Self::Node, &[u8]),
    ) -> Result<()>;

    /// The value of an extended attribute; ENODATA if there is none.
    fn xattr(&self, caller: Caller, node: &Self::Node, name: &[u8]) -> Result<Vec<u8>>;

    /// The names of all extended attributes, each with a NUL behind it.
    fn xattr_names(&self, caller: Caller, node: &Self::Node) -> Result<Vec<u8>>;

    fn set_xattr(
        &self,
        caller: Caller,
        node: &Self::Node,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()>;

    fn remove_xattr(&self, caller: Caller, node: &Self::Node, name: &[u8]) -> Result<()>;

    /// Returns when the disk has it; without what is only metadata if `data_only`.
    fn sync(
        &self,
        caller: Caller,
        node: &Self::Node,
        open: &Self::Open,
        data_only: bool,
    ) -> Result<()>;

    fn figures(&self, caller: Caller, node: &Self::Node) -> Result<FileSystemFigures>;
}

/// On whose behalf a client asks, in its own numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    pub uid: u32,
    /// Of what is made, where something is; else the same number as the user's, for want of another.
    pub gid: u32,
}

/// What a name stands for.
#[derive(Debug)]
pub struct Found<N> {
    pub node: N,
    /// Its path is the same for two nodes exactly if they stand for the same file.
    pub qid: Qid,
}

/// What was made, or was there, and is open now.
#[derive(Debug)]
pub struct Created<N, O> {
    pub found: Found<N>,
    pub open: O,
}

/// What can be made besides files that are opened at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewNode<'a> {
    Directory {
        mode: u32,
    },
    Symlink {
        target: &'a [u8],
    },
    /// A file, FIFO, socket or device, as the type in `mode` says.
    Node {
        mode: u32,
        major: u32,
        minor: u32,
    },
}

/// One name in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its version need not be true.
    pub qid: Qid,
    /// Where to go on after this one.
    pub offset: u64,
    /// A `DT_` number of Linux.
    pub kind: u8,
    pub name: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, PartialOrd, Ord)]
pub struct Time {
    /// Since 1970; times before it are negative numbers, carried as large ones.
    pub seconds: u64,
    pub nanoseconds: u64,
}

/// What is known of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    /// What of the following is true; bits of [`wire::getattr`](crate::wire::getattr).
    pub valid: u64,
    pub qid: Qid,
    /// With the type.
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub links: u64,
    pub device: u64,
    pub size: u64,
    pub block_size: u64,
    /// Of 512 bytes.
    pub blocks: u64,
    pub accessed: Time,
    pub modified: Time,
    pub changed: Time,
    pub born: Time,
    pub generation: u64,
    pub data_version: u64,
}

/// What a client wants to change of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Change {
    /// Without the type.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub accessed: Option<NewTime>,
    pub modified: Option<NewTime>,
    /// That it was changed just now. Nothing else can be said about that time.
    pub changed_now: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewTime {
    Now,
    At(Time),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FileSystemFigures {
    /// The magic number of the filesystem's type.
    pub kind: u32,
    pub block_size: u32,
    pub blocks: u64,
    pub free: u64,
    pub available: u64,
    pub files: u64,
    pub free_files: u64,
    pub id: u64,
    pub longest_name: u32,
}

/// How a file is opened: the numbers that most Linux machines have, which are not those of all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OpenFlags(pub u32);

impl OpenFlags {
    pub const READ_ONLY: u32 = 0;
    pub const WRITE_ONLY: u32 = 0o1;
    pub const READ_WRITE: u32 = 0o2;
    pub const CREATE: u32 = 0o100;
    pub const EXCLUSIVE: u32 = 0o200;
    pub const NO_CONTROLLING_TERMINAL: u32 = 0o400;
    pub const TRUNCATE: u32 = 0o1000;
    pub const APPEND: u32 = 0o2000;
    pub const NON_BLOCKING: u32 = 0o4000;
    pub const DATA_SYNC: u32 = 0o10000;
    pub const ASYNC: u32 = 0o20000;
    pub const DIRECT: u32 = 0o40000;
    pub const LARGE_FILE: u32 = 0o100_000;
    pub const DIRECTORY: u32 = 0o200_000;
    pub const NO_FOLLOW: u32 = 0o400_000;
    pub const NO_ACCESS_TIME: u32 = 0o1_000_000;
    pub const CLOSE_ON_EXEC: u32 = 0o2_000_000;
    pub const SYNC: u32 = 0o4_000_000;

    const ACCESS: u32 = 0o3;

    #[must_use]
    pub fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    #[must_use]
    pub fn reads(self) -> bool {
        self.0 & Self::ACCESS != Self::WRITE_ONLY
    }

    #[must_use]
    pub fn writes(self) -> bool {
        self.0 & Self::ACCESS != Self::READ_ONLY
    }

    /// Unless they say neither reading nor writing.
    pub(crate) fn checked(self) -> Result<Self> {
        if self.0 & Self::ACCESS == Self::ACCESS { Err(Errno::EINVAL) } else { Ok(self) }
    }

    /// Whether opening something that exists may change anything, then or later.
    #[must_use]
    pub fn mutates(self) -> bool {
        self.writes() || self.has(Self::TRUNCATE)
    }
}

/// How an extended attribute is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct XattrFlags(pub u32);

impl XattrFlags {
    /// EEXIST if there is one.
    pub const CREATE: u32 = 1;
    /// ENODATA if there is none.
    pub const REPLACE: u32 = 2;
}
