//! Lending the owner's permission.
//!
//! An owner can take permissions away from himself: directories of mode 0555 or 000, files he may
//! not read. What he did before he did so, undo has to take back, so it does what he could do by
//! hand: give the permission, act, and take it away again. That is tried only after the host has
//! refused; root and the usual case pay nothing.
//!
//! - A loan is made by descriptor. No name that is swapped meanwhile can misdirect it.
//! - It covers the owner's bits only, of inodes that are ours, for one operation.
//! - It is noted in the undo directory before it begins and struck out after it ends. A process
//!   that dies in between leaves the note, and the next start gives the mode back. What lies
//!   neither in the working nor in the undo directory (a staging area) is not noted.
//! - Loans are made one after the other in the whole process: two at once on one directory would
//!   each take the other's mode for the one to give back. No stamp shows a mode that is lent.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use codeagent_common::RelPathBuf;
use parking_lot::{Mutex, ReentrantMutex, const_reentrant_mutex};
use rustix::fs::Mode;
use rustix::io::Errno;

use super::tree::reach;
use super::{Dir, Entry, Stamp, is_absent};
use crate::probe::Point;
use crate::store::{Loan, LoanBook, Root};

/// To look up names in a directory.
pub(super) const SEARCH: u32 = 0o100;
/// To make and remove names in a directory.
pub(super) const CHANGE: u32 = 0o300;
/// To list a directory.
pub(super) const LIST: u32 = 0o500;
pub(super) const READ: u32 = 0o400;
pub(super) const WRITE: u32 = 0o200;

static LENDING: ReentrantMutex<()> = const_reentrant_mutex(());
/// Loans of this process so far.
static BEGUN: AtomicU64 = AtomicU64::new(0);
static ENDED: AtomicU64 = AtomicU64::new(0);
static LENDERS: Mutex<Vec<Weak<Lender>>> = Mutex::new(Vec::new());

/// A permission that an operation needs.
pub(super) struct Need<'a> {
    pub(super) inode: BorrowedFd<'a>,
    pub(super) bits: u32,
    /// The name it will have after the operation.
    pub(super) becomes: Option<&'a Entry<'a>>,
}

impl<'a> Need<'a> {
    pub(super) fn of(inode: BorrowedFd<'a>, bits: u32) -> Self {
        Self { inode, bits, becomes: None }
    }
}

pub(super) fn is_refusal(error: &io::Error) -> bool {
    Errno::from_io_error(error) == Some(Errno::ACCESS)
}

/// Tries again something that was refused, with as much of `needs` as is ours to give.
pub(super) fn lend<T>(
    needs: &[Need<'_>],
    attempt: &mut dyn FnMut() -> io::Result<T>,
) -> io::Result<T> {
    let Some((need, further)) = needs.split_first() else { return attempt() };
    let _alone = LENDING.lock();
    let lent = Lent::begin(need)?;
    let outcome = lend(further, attempt);
    drop(lent);
    outcome
}

/// Looks at an inode's mode while nobody else has lent it another one.
pub(super) fn undisturbed<T>(look: impl Fn() -> T) -> T {
    let ended = ENDED.load(Ordering::SeqCst);
    let seen = look();
    // As many begun afterwards as had ended before: none was under way.
    if BEGUN.load(Ordering::SeqCst) == ended {
        return seen;
    }
    let _alone = LENDING.lock();
    look()
}

/// A loan under way; it ends when this is dropped.
struct Lent<'a> {
    inode: BorrowedFd<'a>,
    mode: u32,
    lent: u32,
    /// Who noted it, and what it takes to strike the note out.
    noted: Option<(Arc<Lender>, u64)>,
}

impl<'a> Lent<'a> {
    /// `None`: there is nothing to lend, or it is not ours to lend.
    fn begin(need: &Need<'a>) -> io::Result<Option<Self>> {
        let (_, stamp) = Stamp::of(need.inode)?;
        let mode = stamp.permissions();
        let lent = mode | need.bits;
        if lent == mode || !may_lend(&stamp)? {
            return Ok(None);
        }
        let noted = note(need, &stamp, lent)?;
        BEGUN.fetch_add(1, Ordering::SeqCst);
        let loan = Self { inode: need.inode, mode, lent, noted };
        // If this fails, dropping the loan finds the mode as it was and strikes out the note.
        if set_mode(loan.inode, lent).is_err() {
            return Ok(None);
        }
        loan.reach()?;
        Ok(Some(loan))
    }

    /// Where tests step in: before the operation, and before the mode is given back.
    fn reach(&self) -> io::Result<()> {
        match &self.noted {
            Some((lender, _)) => lender.book.probe.reach(Point::HostMutation),
            None => Ok(()),
        }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let _ = self.reach();
        // Whoever has changed the mode meanwhile meant it.
        let unchanged = Stamp::of(self.inode).is_ok_and(|(_, now)| now.permissions() == self.lent);
        let given_back = !unchanged || set_mode(self.inode, self.mode).is_ok();
        ENDED.fetch_add(1, Ordering::SeqCst);
        if !given_back {
            return; // the note stays for the next start
        }
        if let Some((lender, place)) = &self.noted {
            // A note that is left over does no harm: it asks for the mode that the inode has.
            let _ = lender.book.strike(*place);
        }
    }
}

fn set_mode(inode: BorrowedFd<'_>, mode: u32) -> io::Result<()> {
    Ok(rustix::fs::chmod(fd_path(&inode), Mode::from_raw_mode(mode))?)
}

/// The path by which an open inode can be used where a call takes no descriptor.
pub(super) fn fd_path(fd: &impl AsRawFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

fn may_lend(stamp: &Stamp) -> io::Result<bool> {
    if stamp.uid != rustix::process::geteuid().as_raw() || !(stamp.is_dir() || stamp.is_file()) {
        return Ok(false);
    }
    // Whoever is not in the group loses the set-group-id bit with any chmod, for good.
    let is_ours = |gid: u32| -> io::Result<bool> {
        Ok(rustix::process::getegid().as_raw() == gid
            || rustix::process::getgroups()?.iter().any(|group| group.as_raw() == gid))
    };
    Ok(stamp.mode & 0o2000 == 0 || is_ours(stamp.gid)?)
}

/// Notes a loan with whoever is responsible for the inode.
fn note(need: &Need<'_>, stamp: &Stamp, lent: u32) -> io::Result<Option<(Arc<Lender>, u64)>> {
    let lenders: Vec<Arc<Lender>> = LENDERS.lock().iter().filter_map(Weak::upgrade).collect();
    let here = path_of(need.inode);
    let there = need.becomes.and_then(|entry| {
        Some(path_of(entry.dir())?.join(std::ffi::OsStr::from_bytes(entry.name())))
    });
    for lender in lenders {
        let places = here.iter().chain(&there);
        let names: Vec<_> = places.filter_map(|place| lender.name_of(place)).collect();
        if !names.is_empty() {
            let loan = Loan { names, inode: stamp.inode, mode: stamp.permissions(), lent };
            let place = lender.book.note(&loan)?;
            return Ok(Some((lender, place)));
        }
    }
    Ok(None)
}

/// What the kernel calls an open inode; `None` if its path is too long for that.
fn path_of(inode: impl AsFd) -> Option<PathBuf> {
    std::fs::read_link(fd_path(&inode.as_fd())).ok()
}

/// Notes loans in one undo directory.
pub(crate) struct Lender {
    book: LoanBook,
    roots: [(Root, Arc<Dir>); 2],
}

impl Lender {
    /// From now on loans in these two directories are noted, as long as the lender lives.
    pub(crate) fn start(working: &Path, undo: &Path, book: LoanBook) -> io::Result<Arc<Self>> {
        let roots = [(Root::Working, Dir::open(working)?), (Root::Undo, Dir::open(undo)?)];
        let lender = Arc::new(Self { book, roots });
        let mut lenders = LENDERS.lock();
        lenders.retain(|lender| lender.strong_count() > 0);
        lenders.push(Arc::downgrade(&lender));
        Ok(lender)
    }

    fn name_of(&self, place: &Path) -> Option<(Root, RelPathBuf)> {
        self.roots.iter().find_map(|(root, dir)| {
            let below = place.strip_prefix(path_of(dir)?).ok()?;
            Some((*root, RelPathBuf::new(below.as_os_str().as_bytes()).ok()?))
        })
    }

    /// Gives back what a process that died had lent. To be called before anything else is done.
    pub(crate) fn settle(&self) -> io::Result<()> {
        for loan in self.book.left()?.iter().rev() {
            for (root, path) in &loan.names {
                let Some((_, dir)) = self.roots.iter().find(|(named, _)| named == root) else {
                    continue;
                };
                let found = reach(dir, path.as_path()).and_then(|entry| entry.open_path());
                let found = match found {
                    Err(error) if is_absent(&error) || is_refusal(&error) => continue,
                    found => found?,
                };
                let (_, stamp) = Stamp::of(&found)?;
                if stamp.inode == loan.inode && stamp.permissions() == loan.lent {
                    set_mode(found.as_fd(), loan.mode)?;
                }
            }
        }
        self.book.clear()
    }
}
