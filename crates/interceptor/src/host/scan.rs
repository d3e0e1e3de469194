//! Looking through very large trees for a few names, with all processors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use codeagent_common::{RelPath, RelPathBuf};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::Dir;
use super::tree::LISTED_AT_ONCE;

/// From so many directories on, to begin a thread costs less than to do without.
const WORTH_A_THREAD: usize = 64;

/// More would wait for each other.
const MOST_THREADS: usize = 8;

/// Every entry below `root` that is wanted, by its name and by what it is as far as the filesystem
/// says so. What is below a directory that is wanted is not looked at.
///
/// Fails if a directory cannot be listed as it is.
pub(crate) fn scan(
    root: &Dir,
    wanted: &(dyn Fn(&[u8], FileType) -> bool + Sync),
) -> io::Result<Vec<(RelPathBuf, FileType)>> {
    let scan = Scan {
        wanted,
        plan: Mutex::default(),
        without_work: AtomicUsize::new(0),
        changed: Condvar::new(),
    };
    let top = Unlisted { parent: Arc::new(root.as_fd().try_clone_to_owned()?), path: None };
    scan.plan.lock().pending.push(top);
    scan.work(WORTH_A_THREAD)?;
    let is_large = !scan.plan.lock().pending.is_empty();
    let others = if is_large { processors().min(MOST_THREADS) - 1 } else { 0 };
    std::thread::scope(|threads| {
        let begin = |_| std::thread::Builder::new().spawn_scoped(threads, || scan.work(usize::MAX));
        // One that cannot be had is no error: the others do its part.
        let others: Vec<_> = (0..others).map(begin).map_while(Result::ok).collect();
        let ours = scan.work(usize::MAX);
        let theirs = others.into_iter().map(|other| other.join().unwrap_or(Err(Errno::IO.into())));
        theirs.fold(ours, io::Result::and)
    })?;
    Ok(scan.plan.into_inner().found)
}

fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// A directory that nobody has listed yet.
struct Unlisted {
    /// The one it is in: to open it from there is the shortest way.
    parent: Arc<OwnedFd>,
    /// `None`: it is the root, and so is its parent.
    path: Option<RelPathBuf>,
}

struct Scan<'a> {
    wanted: &'a (dyn Fn(&[u8], FileType) -> bool + Sync),
    plan: Mutex<Plan>,
    /// How many threads wait for others to share what they have left.
    without_work: AtomicUsize,
    changed: Condvar,
}

#[derive(Default)]
struct Plan {
    /// For whoever has time.
    pending: Vec<Unlisted>,
    /// Threads that have work, and may find more.
    busy: usize,
    failed: bool,
    found: Vec<(RelPathBuf, FileType)>,
}

/// What one thread has in hand.
#[derive(Default)]
struct InHand {
    left: Vec<Unlisted>,
    found: Vec<(RelPathBuf, FileType)>,
}

impl Scan<'_> {
    /// Lists directories until there are none left, or this many.
    fn work(&self, most: usize) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(LISTED_AT_ONCE);
        let mut listed = 0;
        while let Some(first) = self.take() {
            let mut hand = InHand { left: vec![first], ..InHand::default() };
            let mut outcome = Ok(());
            while outcome.is_ok()
                && listed < most
                && let Some(next) = hand.left.pop()
            {
                outcome = self.list(&next, &mut hand, &mut buffer);
                listed += 1;
                if self.without_work.load(Ordering::Relaxed) > 0 && hand.left.len() > 1 {
                    self.share(&mut hand.left);
                }
            }
            let mut plan = self.plan.lock();
            plan.busy -= 1;
            plan.failed |= outcome.is_err();
            plan.pending.append(&mut hand.left);
            plan.found.append(&mut hand.found);
            drop(plan);
            self.changed.notify_all();
            outcome?;
            if listed == most {
                break;
            }
        }
        Ok(())
    }

    /// A directory that is to be listed; `None` once there are no more.
    fn take(&self) -> Option<Unlisted> {
        let mut plan = self.plan.lock();
        loop {
            if plan.failed {
                return None;
            }
            if let Some(at) = plan.pending.pop() {
                plan.busy += 1;
                return Some(at);
            }
            if plan.busy == 0 {
                return None;
            }
            self.without_work.fetch_add(1, Ordering::Relaxed);
            self.changed.wait(&mut plan);
            self.without_work.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Gives others the first half, which is what is nearest to the root.
    fn share(&self, left: &mut Vec<Unlisted>) {
        self.plan.lock().pending.extend(left.drain(..left.len() / 2));
        self.changed.notify_all();
    }

    /// Notes the directories in one that are to be listed, too, and what is wanted of it.
    fn list(&self, at: &Unlisted, hand: &mut InHand, buffer: &mut Vec<u8>) -> io::Result<()> {
        // A single name of a listing leads nowhere but there, unless it is a symlink.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let path = at.path.as_ref().map_or(RelPath::ROOT, RelPathBuf::as_path);
        let name = path.name().unwrap_or(b".");
        let dir = Arc::new(rustix::fs::openat(&at.parent, name, flags, Mode::empty())?);
        let mut listing = RawDir::new(&dir, buffer.spare_capacity_mut());
        while let Some(entry) = listing.next() {
            let entry = entry?;
            let (name, kind) = (entry.file_name().to_bytes(), entry.file_type());
            let below = || path.join(name).map_err(|_| io::Error::from(Errno::INVAL));
            if name == b"." || name == b".." {
                continue;
            } else if (self.wanted)(name, kind) {
                hand.found.push((below()?, kind));
            } else if kind == FileType::Directory {
                hand.left.push(Unlisted { parent: Arc::clone(&dir), path: Some(below()?) });
            }
        }
        Ok(())
    }
}
