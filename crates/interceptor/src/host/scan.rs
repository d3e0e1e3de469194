//! Looking through very large trees for a few names, with all processors.

use std::io;
use std::os::fd::AsFd;
use std::sync::OnceLock;

use codeagent_common::{RelPath, RelPathBuf};
use parking_lot::{Condvar, Mutex};
use rustix::fs::{FileType, OFlags, RawDir};
use rustix::io::Errno;

use super::Dir;
use super::tree::{LISTED_AT_ONCE, openat_beneath};

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
    let scan = Scan { root, wanted, plan: Mutex::default(), changed: Condvar::new() };
    scan.plan.lock().pending.push(RelPath::ROOT.to_buf());
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

struct Scan<'a> {
    root: &'a Dir,
    wanted: &'a (dyn Fn(&[u8], FileType) -> bool + Sync),
    plan: Mutex<Plan>,
    changed: Condvar,
}

#[derive(Default)]
struct Plan {
    /// Directories that nobody has listed yet.
    pending: Vec<RelPathBuf>,
    /// Those that list one now, and may find more.
    busy: usize,
    failed: bool,
    found: Vec<(RelPathBuf, FileType)>,
}

impl Scan<'_> {
    /// Lists directories until there are none left, or this many.
    fn work(&self, most: usize) -> io::Result<()> {
        let mut buffer = Vec::with_capacity(LISTED_AT_ONCE);
        for _ in 0..most {
            let Some(at) = self.next() else { break };
            let listed = self.list(at.as_path(), &mut buffer);
            let mut plan = self.plan.lock();
            plan.busy -= 1;
            plan.failed |= listed.is_err();
            let outcome = listed.map(|(deeper, found)| {
                plan.pending.extend(deeper);
                plan.found.extend(found);
            });
            drop(plan);
            self.changed.notify_all();
            outcome?;
        }
        Ok(())
    }

    /// A directory that is to be listed; `None` once there are no more.
    fn next(&self) -> Option<RelPathBuf> {
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
            self.changed.wait(&mut plan);
        }
    }

    /// The directories in one that are to be listed, too, and what is wanted of it.
    fn list(&self, at: RelPath<'_>, buffer: &mut Vec<u8>) -> io::Result<Listed> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let path = if at.is_root() { b"." } else { at.as_bytes() };
        let dir = openat_beneath(self.root.as_fd(), path, flags)?;
        let mut listing = RawDir::new(dir, buffer.spare_capacity_mut());
        let (mut deeper, mut found) = Listed::default();
        while let Some(entry) = listing.next() {
            let entry = entry?;
            let (name, kind) = (entry.file_name().to_bytes(), entry.file_type());
            let below = || at.join(name).map_err(|_| io::Error::from(Errno::INVAL));
            if name == b"." || name == b".." {
                continue;
            } else if (self.wanted)(name, kind) {
                found.push((below()?, kind));
            } else if kind == FileType::Directory {
                deeper.push(below()?);
            }
        }
        Ok((deeper, found))
    }
}

type Listed = (Vec<RelPathBuf>, Vec<(RelPathBuf, FileType)>);
