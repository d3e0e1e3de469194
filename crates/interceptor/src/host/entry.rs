//! A name in an open directory, and what can be done with it.

use std::borrow::Cow;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{AtFlags, FileType, Mode, OFlags, RenameFlags, StatxFlags};
use rustix::io::Errno;

use super::lend::{CHANGE, Need, READ, SEARCH, WRITE, is_refusal, lend, undisturbed};
use super::tree::{Dir, open_dir_at};
use super::{FileId, Stamp};

/// A name in an open directory.
#[derive(Debug, Clone)]
pub(crate) struct Entry<'a> {
    dir: Arc<Dir>,
    name: Cow<'a, [u8]>,
    owned: bool,
}

/// An entry, and what was there when somebody looked.
pub(crate) struct Found<'a> {
    pub(crate) entry: Entry<'a>,
    pub(crate) id: FileId,
    pub(crate) stamp: Stamp,
}

impl<'a> Entry<'a> {
    pub(super) fn new(dir: Arc<Dir>, name: Cow<'a, [u8]>) -> Self {
        Self { dir, name, owned: false }
    }

    /// For what the engine does of its own accord: where the owner has taken away his own
    /// permission, it is lent. Never for what the engine does in somebody's stead: he must be
    /// refused what the host would refuse him. (To look at what is about to change, so that it
    /// can be recorded, permission is lent in both cases.)
    pub(crate) fn owned(mut self) -> Self {
        self.owned = true;
        self
    }
}

impl Entry<'_> {
    /// The same, with a name of its own.
    pub(crate) fn into_owned(self) -> Entry<'static> {
        let Self { dir, name, owned } = self;
        Entry { dir, name: Cow::Owned(name.into_owned()), owned }
    }

    pub(crate) fn dir(&self) -> BorrowedFd<'_> {
        self.dir.as_fd()
    }

    pub(crate) fn dir_handle(&self) -> &Arc<Dir> {
        &self.dir
    }

    pub(crate) fn name(&self) -> &[u8] {
        &self.name
    }

    /// Does something that needs permission on the directory.
    pub(super) fn permitted<T>(
        &self,
        bits: u32,
        attempt: impl Fn() -> rustix::io::Result<T>,
    ) -> io::Result<T> {
        match attempt() {
            Err(Errno::ACCESS) if self.owned => {
                lend(&[Need::of(self.dir(), bits)], &mut || Ok(attempt()?))
            }
            result => Ok(result?),
        }
    }

    /// Does something that needs permission on the entry itself, which its owner may lack (mode
    /// 0200, or a write through a handle opened before a chmod).
    pub(super) fn permitted_itself<T>(
        &self,
        bits: u32,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        match attempt() {
            Err(error) if is_refusal(&error) => {}
            result => return result,
        }
        let itself = self.open_path()?;
        let search = if self.owned { SEARCH } else { 0 };
        let needs = [Need::of(self.dir(), search), Need::of(itself.as_fd(), bits)];
        lend(&needs, &mut attempt)
    }

    pub(crate) fn stat(&self) -> io::Result<Option<Stamp>> {
        Ok(self.stat_id()?.map(|(_, stamp)| stamp))
    }

    pub(crate) fn stat_id(&self) -> io::Result<Option<(FileId, Stamp)>> {
        let look = || match self.name() {
            // The root needs no permission on itself.
            b"." => rustix::fs::fstat(&self.dir),
            name => rustix::fs::statat(&self.dir, name, AtFlags::SYMLINK_NOFOLLOW),
        };
        let stat = || match undisturbed(look) {
            Ok(stat) => Ok(Some(Stamp::device_and_stamp(&stat))),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => Ok(None),
            Err(errno) => Err(errno),
        };
        self.permitted(SEARCH, stat)
    }

    /// When the entry was made; `None` where the filesystem does not say.
    pub(crate) fn born(&self) -> io::Result<Option<(i64, u32)>> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let found = self.permitted(SEARCH, || {
            rustix::fs::statx(&self.dir, self.name(), flags, StatxFlags::BTIME)
        })?;
        let says = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(says.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)))
    }

    /// A descriptor that names the entry itself, also when it is a symlink.
    pub(crate) fn open_path(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.permitted(SEARCH, || rustix::fs::openat(&self.dir, self.name(), flags, Mode::empty()))
    }

    pub(crate) fn open_dir(&self) -> io::Result<Arc<Dir>> {
        Dir::from_fd(self.permitted(SEARCH, || open_dir_at(self.dir(), self.name()))?)
    }

    pub(crate) fn open_read(&self) -> io::Result<File> {
        self.open_regular(OFlags::RDONLY, READ)
    }

    pub(crate) fn open_write(&self) -> io::Result<File> {
        self.open_regular(OFlags::RDWR, READ | WRITE)
    }

    fn open_regular(&self, access: OFlags, bits: u32) -> io::Result<File> {
        // NONBLOCK: a FIFO swapped in at this name must not hang us.
        let flags = access | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let open = || Ok(rustix::fs::openat(&self.dir, self.name(), flags, Mode::empty())?);
        let file = File::from(self.permitted_itself(bits, open)?);
        if !Stamp::of(&file)?.1.is_file() {
            return Err(Errno::INVAL.into());
        }
        Ok(file)
    }

    pub(crate) fn create_file(&self) -> io::Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o600);
        let create = || rustix::fs::openat(&self.dir, self.name(), flags, mode);
        Ok(File::from(self.permitted(CHANGE, create)?))
    }

    pub(crate) fn mkdir(&self) -> io::Result<()> {
        let mode = Mode::from_raw_mode(0o700);
        self.permitted(CHANGE, || rustix::fs::mkdirat(&self.dir, self.name(), mode))
    }

    pub(crate) fn symlink(&self, target: &[u8]) -> io::Result<()> {
        self.permitted(CHANGE, || rustix::fs::symlinkat(target, &self.dir, self.name()))
    }

    pub(crate) fn mknod(&self, kind: FileType, device: u64) -> io::Result<()> {
        let mode = Mode::from_raw_mode(0o600);
        self.permitted(CHANGE, || rustix::fs::mknodat(&self.dir, self.name(), kind, mode, device))
    }

    pub(crate) fn read_link(&self) -> io::Result<Vec<u8>> {
        let read = || rustix::fs::readlinkat(&self.dir, self.name(), Vec::new());
        Ok(self.permitted(SEARCH, read)?.into_bytes())
    }

    pub(crate) fn unlink(&self) -> io::Result<()> {
        self.permitted(CHANGE, || rustix::fs::unlinkat(&self.dir, self.name(), AtFlags::empty()))
    }

    pub(crate) fn rmdir(&self) -> io::Result<()> {
        self.permitted(CHANGE, || rustix::fs::unlinkat(&self.dir, self.name(), AtFlags::REMOVEDIR))
    }

    /// Renames onto a free name; never replaces anything.
    pub(crate) fn rename_to(&self, to: &Entry<'_>) -> io::Result<()> {
        let flags = RenameFlags::NOREPLACE;
        let rename =
            || match rustix::fs::renameat_with(&self.dir, self.name(), &to.dir, to.name(), flags) {
                Err(Errno::INVAL | Errno::NOSYS) => {
                    if to.stat()?.is_some() {
                        return Err(Errno::EXIST.into());
                    }
                    Ok(rustix::fs::renameat(&self.dir, self.name(), &to.dir, to.name())?)
                }
                result => Ok(result?),
            };
        match rename() {
            Err(error) if is_refusal(&error) && (self.owned || to.owned) => {}
            result => return result,
        }
        self.lend_to_move(to, &[self.moving(to)?], rename)
    }

    pub(crate) fn exchange_with(&self, other: &Entry<'_>) -> io::Result<()> {
        let flags = RenameFlags::EXCHANGE;
        let exchange = || {
            Ok(rustix::fs::renameat_with(&self.dir, self.name(), &other.dir, other.name(), flags)?)
        };
        match exchange() {
            Err(error) if is_refusal(&error) && (self.owned || other.owned) => {}
            result => return result,
        }
        self.lend_to_move(other, &[self.moving(other)?, other.moving(self)?], exchange)
    }

    fn moving<'e>(&self, to: &'e Entry<'e>) -> io::Result<Moving<'e>> {
        let itself = self.open_path()?;
        let is_dir = Stamp::of(&itself)?.1.is_dir();
        Ok(Moving { itself, is_dir, to })
    }

    fn lend_to_move(
        &self,
        to: &Entry<'_>,
        moving: &[Moving<'_>],
        mut attempt: impl FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let mut needs = vec![Need::of(self.dir(), CHANGE), Need::of(to.dir(), CHANGE)];
        // A directory that comes into another one is itself changed: its `..` is.
        needs.extend(moving.iter().filter(|moving| moving.is_dir).map(|moving| Need {
            inode: moving.itself.as_fd(),
            bits: WRITE,
            becomes: Some(moving.to),
        }));
        lend(&needs, &mut attempt)
    }

    pub(crate) fn link_to(&self, to: &Entry<'_>) -> io::Result<()> {
        let link = || {
            let flags = AtFlags::empty();
            Ok(rustix::fs::linkat(&self.dir, self.name(), &to.dir, to.name(), flags)?)
        };
        match link() {
            Err(error) if is_refusal(&error) && (self.owned || to.owned) => {
                let needs = [Need::of(self.dir(), SEARCH), Need::of(to.dir(), CHANGE)];
                lend(&needs, &mut || link())
            }
            result => result,
        }
    }
}

/// An entry on its way to another name.
struct Moving<'e> {
    itself: OwnedFd,
    is_dir: bool,
    to: &'e Entry<'e>,
}
