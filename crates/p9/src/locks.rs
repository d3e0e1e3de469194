//! Locks of ranges of files, among all clients of a folder, as POSIX has them: whoever locks a range
//! again changes what it holds, and what is unlocked in the middle leaves two.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};

use crate::errno::Errno;
use crate::share::Result;
use crate::wire::lock;

/// Ranges that may be locked in one folder at once.
const MOST: usize = 1 << 16;

/// A host's name, which is what clients call themselves by.
const LONGEST_CLIENT: usize = 255;

/// Who holds a lock: to the same owner, its own locks are no hindrance.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Owner {
    /// Clients may have the same name.
    pub(crate) connection: u64,
    pub(crate) client: Arc<[u8]>,
    pub(crate) process: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) exclusive: bool,
    pub(crate) start: u64,
    /// The last byte.
    pub(crate) end: u64,
}

#[derive(Debug, Clone)]
pub(crate) struct Held {
    pub(crate) owner: Owner,
    pub(crate) range: Range,
    /// Which opening it was locked through: its end is the end of the lock.
    holder: u64,
}

/// Between whom locks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Among {
    /// Also the processes of one client.
    #[default]
    Processes,
    /// Only clients: each is a kernel, which has settled among its own processes who has what before
    /// it asks. It tells of a lock by whichever process was at work, which may be another one when it
    /// is given up (`flock`).
    Kernels,
}

#[derive(Debug, Default)]
pub(crate) struct Locks {
    among: Among,
    files: Mutex<HashMap<u64, Vec<Held>, RandomState>>,
    count: AtomicUsize,
    /// Something was unlocked, or somebody is to wait no longer.
    changed: Condvar,
    holders: AtomicU64,
}

/// An opening that may have locks.
#[derive(Debug)]
pub(crate) struct Holder {
    locks: Arc<Locks>,
    file: u64,
    number: u64,
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut files = self.locks.files.lock();
        if let Some(held) = files.get_mut(&self.file) {
            let before = held.len();
            held.retain(|held| held.holder != self.number);
            self.locks.recount(before, held.len());
            self.locks.tidy(&mut files, self.file);
        }
    }
}

impl Range {
    /// From what a request says: a length of 0 is everything behind `start`.
    pub(crate) fn new(exclusive: bool, start: u64, length: u64) -> Result<Self> {
        let end = match length {
            0 => u64::MAX,
            _ => start.checked_add(length - 1).ok_or(Errno::EINVAL)?,
        };
        Ok(Self { exclusive, start, end })
    }

    /// As it is told: 0 for everything behind `start`.
    pub(crate) fn length(&self) -> u64 {
        if self.end == u64::MAX { 0 } else { self.end - self.start + 1 }
    }

    pub(crate) fn kind(&self) -> u8 {
        if self.exclusive { lock::WRITE } else { lock::READ }
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    fn touches(&self, other: &Self) -> bool {
        self.start <= other.end.saturating_add(1) && other.start <= self.end.saturating_add(1)
    }
}

impl Owner {
    pub(crate) fn new(connection: u64, client: &[u8], process: u32) -> Result<Self> {
        if client.len() > LONGEST_CLIENT {
            return Err(Errno::EINVAL);
        }
        Ok(Self { connection, client: client.into(), process })
    }
}

impl Locks {
    pub(crate) fn new(among: Among) -> Self {
        Self { among, ..Self::default() }
    }

    pub(crate) fn holder(self: &Arc<Self>, file: u64) -> Holder {
        let number = self.holders.fetch_add(1, Ordering::Relaxed);
        Holder { locks: Arc::clone(self), file, number }
    }

    /// Whether it could be locked.
    pub(crate) fn lock(&self, holder: &Holder, owner: &Owner, range: &Range) -> Result<bool> {
        let mut files = self.files.lock();
        self.try_lock(&mut files, holder, owner, range)
    }

    /// Waits until it could be locked; `false` if `until` says so first.
    pub(crate) fn wait(
        &self,
        holder: &Holder,
        owner: &Owner,
        range: &Range,
        until: impl Fn() -> bool,
    ) -> Result<bool> {
        let mut files = self.files.lock();
        loop {
            if until() {
                return Ok(false);
            }
            if self.try_lock(&mut files, holder, owner, range)? {
                return Ok(true);
            }
            self.changed.wait(&mut files);
        }
    }

    /// Has everybody who waits look again.
    pub(crate) fn look_again(&self) {
        // Under the lock, so that nobody is between looking and waiting.
        let _files = self.files.lock();
        self.changed.notify_all();
    }

    fn try_lock(
        &self,
        files: &mut HashMap<u64, Vec<Held>, RandomState>,
        holder: &Holder,
        owner: &Owner,
        range: &Range,
    ) -> Result<bool> {
        let held = files.entry(holder.file).or_default();
        if self.conflict_in(held, owner, range).is_some() {
            return Ok(false);
        }
        // One is new, and one may be cut in two.
        if self.count.load(Ordering::Relaxed) + 2 > MOST {
            self.tidy(files, holder.file);
            return Err(Errno::ENOLCK);
        }
        let before = held.len();
        let mut range = range.clone();
        held.retain(|other| {
            let joins = other.owner == *owner
                && other.holder == holder.number
                && other.range.exclusive == range.exclusive
                && other.range.touches(&range);
            if joins {
                range.start = range.start.min(other.range.start);
                range.end = range.end.max(other.range.end);
            }
            !joins
        });
        cut(held, owner, &range);
        held.push(Held { owner: owner.clone(), range, holder: holder.number });
        self.recount(before, held.len());
        // A lock that became a shared one lets others in.
        self.changed.notify_all();
        Ok(true)
    }

    pub(crate) fn unlock(&self, file: u64, owner: &Owner, range: &Range) -> Result<()> {
        let mut files = self.files.lock();
        let Some(held) = files.get_mut(&file) else { return Ok(()) };
        if self.count.load(Ordering::Relaxed) + 1 > MOST {
            return Err(Errno::ENOLCK);
        }
        let before = held.len();
        cut(held, owner, range);
        self.recount(before, held.len());
        self.tidy(&mut files, file);
        Ok(())
    }

    /// A lock that would keep this one from being had.
    pub(crate) fn conflict(&self, file: u64, owner: &Owner, range: &Range) -> Option<Held> {
        let files = self.files.lock();
        self.conflict_in(files.get(&file)?, owner, range).cloned()
    }

    fn conflict_in<'a>(&self, held: &'a [Held], owner: &Owner, range: &Range) -> Option<&'a Held> {
        let is_other = |other: &Owner| match self.among {
            Among::Processes => other != owner,
            Among::Kernels => other.connection != owner.connection,
        };
        held.iter().find(|other| {
            is_other(&other.owner)
                && other.range.overlaps(range)
                && (other.range.exclusive || range.exclusive)
        })
    }

    fn recount(&self, before: usize, after: usize) {
        if after >= before {
            self.count.fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.count.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// After something was unlocked.
    fn tidy(&self, files: &mut HashMap<u64, Vec<Held>, RandomState>, file: u64) {
        if files.get(&file).is_some_and(Vec::is_empty) {
            files.remove(&file);
        }
        self.changed.notify_all();
    }
}

/// Takes a range out of what an owner holds.
fn cut(held: &mut Vec<Held>, owner: &Owner, range: &Range) {
    let mut rests = Vec::new();
    held.retain(|other| {
        if other.owner != *owner || !other.range.overlaps(range) {
            return true;
        }
        if other.range.start < range.start {
            let range = Range { end: range.start - 1, ..other.range.clone() };
            rests.push(Held { range, ..other.clone() });
        }
        if other.range.end > range.end {
            let range = Range { start: range.end + 1, ..other.range.clone() };
            rests.push(Held { range, ..other.clone() });
        }
        false
    });
    held.append(&mut rests);
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn owner(process: u32) -> Owner {
        Owner::new(1, b"guest", process).unwrap()
    }

    fn write(start: u64, length: u64) -> Range {
        Range::new(true, start, length).unwrap()
    }

    fn read(start: u64, length: u64) -> Range {
        Range::new(false, start, length).unwrap()
    }

    #[test]
    fn what_is_unlocked_in_the_middle_leaves_two() {
        let locks = Arc::new(Locks::default());
        let holder = locks.holder(7);
        assert_eq!(locks.lock(&holder, &owner(1), &write(0, 100)), Ok(true));
        locks.unlock(7, &owner(1), &write(40, 20)).unwrap();
        assert!(locks.conflict(7, &owner(2), &write(0, 40)).is_some());
        assert!(locks.conflict(7, &owner(2), &write(40, 20)).is_none());
        assert!(locks.conflict(7, &owner(2), &write(60, 0)).is_some());
        assert_eq!(locks.count.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let locks = Arc::new(Locks::default());
        let (one, two) = (locks.holder(7), locks.holder(7));
        assert_eq!(locks.lock(&one, &owner(1), &read(0, 0)), Ok(true));
        assert_eq!(locks.lock(&two, &owner(2), &read(0, 0)), Ok(true));
        assert_eq!(locks.lock(&two, &owner(2), &write(5, 1)), Ok(false));
        drop(one);
        assert_eq!(locks.lock(&two, &owner(2), &write(5, 1)), Ok(true));
        assert_eq!(locks.count.load(Ordering::Relaxed), 3, "before, in and behind the byte");
    }

    #[test]
    fn neighbouring_ranges_of_one_owner_become_one() {
        let locks = Arc::new(Locks::default());
        let holder = locks.holder(7);
        for start in 0..1000 {
            assert_eq!(locks.lock(&holder, &owner(1), &write(start, 1)), Ok(true));
        }
        assert_eq!(locks.count.load(Ordering::Relaxed), 1);
        drop(holder);
        assert_eq!(locks.count.load(Ordering::Relaxed), 0);
        assert!(locks.files.lock().is_empty());
    }

    #[test]
    fn there_are_not_more_than_a_folder_can_have() {
        let locks = Arc::new(Locks::default());
        let lock = |file| {
            let holder = locks.holder(file);
            locks.lock(&holder, &owner(1), &write(0, 1)).map(|_| holder)
        };
        let held: Vec<Holder> = (0..).map_while(|file| lock(file).ok()).collect();
        assert_eq!(held.len(), MOST - 1);
        assert_eq!(lock(0).err(), Some(Errno::ENOLCK));
        drop(held);
        assert!(lock(0).is_ok());
    }

    #[test]
    fn a_range_behind_the_last_byte_is_none() {
        assert_eq!(Range::new(true, u64::MAX, 2), Err(Errno::EINVAL));
        assert_eq!(Range::new(true, u64::MAX, 1).unwrap().end, u64::MAX);
        assert_eq!(Range::new(true, 5, 0).unwrap().length(), 0);
        assert_eq!(Range::new(true, 5, 10).unwrap().length(), 10);
    }
}
