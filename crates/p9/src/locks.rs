//! Locks of ranges of files, among all clients of a folder, as POSIX has them: whoever locks a range
//! again changes what it holds, and what is unlocked in the middle leaves two.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};

use crate::errno::Errno;
use crate::share::Result;
use crate::wire::lock;

/// Ranges that one client may have locked at once, in all files.
const MOST: usize = 1 << 14;

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
    /// it asks. What is locked through an opening takes the place of what was locked through it
    /// before, whichever process was at work: with `flock`, a lock is the opening's.
    Kernels,
}

/// Who says that something is unlocked. A kernel does not say which kind of lock it means:
///
/// ```text
///   flock, unlocked by anybody who has the file open      any process, the same opening,  waits
///   fcntl, unlocked by who has locked                     the same process, any opening
///   a file is closed, by a forked child for example       any process, any opening
/// ```
///
/// The last one changes nothing of others, and there is one each time a process ends. So a process
/// gives up what it has itself, and what others have only if it says that it would wait, as `flock`
/// does and a close does not.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unlock<'a> {
    pub(crate) owner: &'a Owner,
    /// The opening it came through, if that has locked anything.
    pub(crate) holder: Option<&'a Holder>,
    pub(crate) would_wait: bool,
}

type Files = HashMap<u64, Vec<Held>, RandomState>;

/// What is locked, and how much of it by whom.
#[derive(Debug, Default)]
struct Table {
    files: Files,
    /// Of each connection that has any.
    counts: HashMap<u64, usize, RandomState>,
}

#[derive(Debug, Default)]
pub(crate) struct Locks {
    among: Among,
    table: Mutex<Table>,
    /// Something was unlocked, or somebody is to wait no longer.
    changed: Condvar,
    holders: AtomicU64,
}

/// An opening that may have locks.
#[derive(Debug)]
pub(crate) struct Holder {
    locks: Arc<Locks>,
    connection: u64,
    file: u64,
    number: u64,
}

impl Drop for Holder {
    fn drop(&mut self) {
        let mut table = self.locks.table.lock();
        table.change(self.connection, self.file, |held| {
            held.retain(|held| held.holder != self.number);
        });
        self.locks.changed.notify_all();
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

    pub(crate) fn holder(self: &Arc<Self>, connection: u64, file: u64) -> Holder {
        let number = self.holders.fetch_add(1, Ordering::Relaxed);
        Holder { locks: Arc::clone(self), connection, file, number }
    }

    /// Whether it could be locked.
    pub(crate) fn lock(&self, holder: &Holder, owner: &Owner, range: &Range) -> Result<bool> {
        self.try_lock(&mut self.table.lock(), holder, owner, range)
    }

    /// Waits until it could be locked; `false` if `until` says so first.
    pub(crate) fn wait(
        &self,
        holder: &Holder,
        owner: &Owner,
        range: &Range,
        until: impl Fn() -> bool,
    ) -> Result<bool> {
        let mut table = self.table.lock();
        loop {
            if until() {
                return Ok(false);
            }
            if self.try_lock(&mut table, holder, owner, range)? {
                return Ok(true);
            }
            self.changed.wait(&mut table);
        }
    }

    /// Has everybody who waits look again.
    pub(crate) fn look_again(&self) {
        // Under the lock, so that nobody is between looking and waiting.
        let _table = self.table.lock();
        self.changed.notify_all();
    }

    fn try_lock(
        &self,
        table: &mut Table,
        holder: &Holder,
        owner: &Owner,
        range: &Range,
    ) -> Result<bool> {
        let held = table.files.get(&holder.file).map_or(&[][..], Vec::as_slice);
        if self.conflict_in(held, owner, range).is_some() {
            return Ok(false);
        }
        let is_same = |other: &Held| match self.among {
            Among::Processes => other.owner == *owner,
            Among::Kernels => {
                other.owner.connection == owner.connection
                    && (other.holder == holder.number || other.owner == *owner)
            }
        };
        let joins = |other: &Held, range: &Range| {
            is_same(other)
                && other.holder == holder.number
                && other.range.exclusive == range.exclusive
                && other.range.touches(range)
        };
        let joined = held.iter().filter(|other| joins(other, range)).count();
        let rests = held.iter().filter(|other| is_same(other) && !joins(other, range));
        table.room_for(owner, 1 + growth(rests, range) - joined as isize)?;
        let mut range = range.clone();
        table.change(owner.connection, holder.file, |held| {
            held.retain(|other| {
                let joins = joins(other, &range);
                if joins {
                    range.start = range.start.min(other.range.start);
                    range.end = range.end.max(other.range.end);
                }
                !joins
            });
            cut(held, is_same, &range);
            held.push(Held { owner: owner.clone(), range, holder: holder.number });
        });
        // A lock that became a shared one lets others in.
        self.changed.notify_all();
        Ok(true)
    }

    pub(crate) fn unlock(&self, file: u64, unlock: Unlock<'_>, range: &Range) -> Result<()> {
        let Unlock { owner, holder, would_wait } = unlock;
        let through = holder.filter(|_| would_wait && self.among == Among::Kernels);
        let is_meant = |other: &Held| {
            other.owner == *owner || through.is_some_and(|holder| other.holder == holder.number)
        };
        let mut table = self.table.lock();
        let Some(held) = table.files.get(&file) else { return Ok(()) };
        table.room_for(owner, growth(held.iter().filter(|other| is_meant(other)), range))?;
        table.change(owner.connection, file, |held| cut(held, is_meant, range));
        self.changed.notify_all();
        Ok(())
    }

    /// A lock that would keep this one from being had.
    pub(crate) fn conflict(&self, file: u64, owner: &Owner, range: &Range) -> Option<Held> {
        let table = self.table.lock();
        self.conflict_in(table.files.get(&file)?, owner, range).cloned()
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
}

impl Table {
    /// Unless the client has as many as it may. There is always room for less.
    fn room_for(&self, owner: &Owner, more: isize) -> Result<()> {
        let count = self.counts.get(&owner.connection).copied().unwrap_or_default();
        match count.saturating_add_signed(more) {
            sum if more > 0 && sum > MOST => Err(Errno::ENOLCK),
            _ => Ok(()),
        }
    }

    /// Changes what one client has of a file, and counts it.
    fn change(&mut self, connection: u64, file: u64, change: impl FnOnce(&mut Vec<Held>)) {
        let held = self.files.entry(file).or_default();
        let before = held.len();
        change(held);
        let after = held.len();
        if after == 0 {
            self.files.remove(&file);
        }
        let count = self.counts.entry(connection).or_default();
        *count = (*count + after).saturating_sub(before);
        if *count == 0 {
            self.counts.remove(&connection);
        }
    }
}

/// By how many there are more of these when a range is taken out of them.
fn growth<'a>(held: impl Iterator<Item = &'a Held>, range: &Range) -> isize {
    held.filter(|other| other.range.overlaps(range))
        .map(|other| {
            let before = isize::from(other.range.start < range.start);
            let behind = isize::from(other.range.end > range.end);
            before + behind - 1
        })
        .sum()
}

/// Takes a range out of those that are meant.
fn cut(held: &mut Vec<Held>, is_meant: impl Fn(&Held) -> bool, range: &Range) {
    let mut rests = Vec::new();
    held.retain(|other| {
        if !is_meant(other) || !other.range.overlaps(range) {
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

    impl Locks {
        fn count(&self, connection: u64) -> usize {
            self.table.lock().counts.get(&connection).copied().unwrap_or_default()
        }

        fn unlock_by(&self, process: u32, range: &Range) -> Result<()> {
            let owner = &owner(process);
            self.unlock(7, Unlock { owner, holder: None, would_wait: false }, range)
        }
    }

    #[test]
    fn what_is_unlocked_in_the_middle_leaves_two() {
        let locks = Arc::new(Locks::default());
        let holder = locks.holder(1, 7);
        assert_eq!(locks.lock(&holder, &owner(1), &write(0, 100)), Ok(true));
        locks.unlock_by(1, &write(40, 20)).unwrap();
        assert!(locks.conflict(7, &owner(2), &write(0, 40)).is_some());
        assert!(locks.conflict(7, &owner(2), &write(40, 20)).is_none());
        assert!(locks.conflict(7, &owner(2), &write(60, 0)).is_some());
        assert_eq!(locks.count(1), 2);
    }

    #[test]
    fn readers_share_and_writers_do_not() {
        let locks = Arc::new(Locks::default());
        let (one, two) = (locks.holder(1, 7), locks.holder(1, 7));
        assert_eq!(locks.lock(&one, &owner(1), &read(0, 0)), Ok(true));
        assert_eq!(locks.lock(&two, &owner(2), &read(0, 0)), Ok(true));
        assert_eq!(locks.lock(&two, &owner(2), &write(5, 1)), Ok(false));
        drop(one);
        assert_eq!(locks.lock(&two, &owner(2), &write(5, 1)), Ok(true));
        assert_eq!(locks.count(1), 3, "before, in and behind the byte");
    }

    #[test]
    fn neighbouring_ranges_of_one_owner_become_one() {
        let locks = Arc::new(Locks::default());
        let holder = locks.holder(1, 7);
        for start in 0..1000 {
            assert_eq!(locks.lock(&holder, &owner(1), &write(start, 1)), Ok(true));
        }
        assert_eq!(locks.count(1), 1);
        drop(holder);
        assert_eq!(locks.count(1), 0);
        assert!(locks.table.lock().files.is_empty());
    }

    #[test]
    fn there_are_not_more_than_a_client_can_have_and_others_have_their_own() {
        let locks = Arc::new(Locks::default());
        let lock = |connection, file| {
            let holder = locks.holder(connection, file);
            let owner = Owner::new(connection, b"guest", 1).unwrap();
            locks.lock(&holder, &owner, &write(0, 1)).map(|_| holder)
        };
        let held: Vec<Holder> = (0..).map_while(|file| lock(1, file).ok()).collect();
        assert_eq!(held.len(), MOST);
        assert_eq!(lock(1, u64::MAX).err(), Some(Errno::ENOLCK));
        assert!(lock(2, u64::MAX).is_ok(), "another client");
        drop(held);
        assert!(lock(1, 0).is_ok());
        assert!(locks.table.lock().counts.is_empty());
    }

    #[test]
    fn who_has_as_many_as_it_may_can_unlock_and_lock_again_but_not_cut_in_two() {
        let locks = Arc::new(Locks::default());
        let holders: Vec<Holder> = (7..39).map(|file| locks.holder(1, file)).collect();
        for holder in &holders {
            for number in 0..(MOST / holders.len()) as u64 {
                assert_eq!(locks.lock(holder, &owner(1), &write(number * 10, 5)), Ok(true));
            }
        }
        assert_eq!(locks.count(1), MOST);
        let lock = |start, length| locks.lock(&holders[0], &owner(1), &write(start, length));
        assert_eq!(lock(7, 1), Err(Errno::ENOLCK));
        assert_eq!(lock(0, 5), Ok(true), "it has that already");
        assert_eq!(locks.unlock_by(1, &write(22, 1)), Err(Errno::ENOLCK), "leaves two");
        assert_eq!(locks.unlock_by(1, &write(20, 2)), Ok(()), "leaves one");
        assert_eq!(locks.unlock_by(1, &write(20, 5)), Ok(()), "leaves none");
        assert_eq!(locks.count(1), MOST - 1);
        drop(holders);
        assert_eq!(locks.count(1), 0);
    }

    /// What a lock of an opening was had by is of no interest.
    #[test]
    fn ever_new_processes_of_a_kernel_leave_one_record_of_an_opening() {
        let locks = Arc::new(Locks::new(Among::Kernels));
        let holder = locks.holder(1, 7);
        for process in 0..1000 {
            assert_eq!(locks.lock(&holder, &owner(process), &write(0, 0)), Ok(true));
            assert_eq!(locks.count(1), 1);
        }
        let unlock = |process, would_wait| {
            let owner = &owner(process);
            locks.unlock(7, Unlock { owner, holder: Some(&holder), would_wait }, &write(0, 0))
        };
        unlock(5000, false).unwrap();
        assert_eq!(locks.count(1), 1, "a child of the holder has closed the file");
        unlock(5000, true).unwrap();
        assert_eq!(locks.count(1), 0, "it was unlocked");
    }

    /// As SQLite does it, whose connections in one process share their locks.
    #[test]
    fn a_process_unlocks_through_another_opening() {
        for among in [Among::Processes, Among::Kernels] {
            let locks = Arc::new(Locks::new(among));
            let one = locks.holder(1, 7);
            assert_eq!(locks.lock(&one, &owner(1), &read(0, 10)), Ok(true));
            locks.unlock_by(1, &read(0, 10)).unwrap();
            assert_eq!(locks.count(1), 0);
        }
    }

    #[test]
    fn a_range_behind_the_last_byte_is_none() {
        assert_eq!(Range::new(true, u64::MAX, 2), Err(Errno::EINVAL));
        assert_eq!(Range::new(true, u64::MAX, 1).unwrap().end, u64::MAX);
        assert_eq!(Range::new(true, 5, 0).unwrap().length(), 0);
        assert_eq!(Range::new(true, 5, 10).unwrap().length(), 10);
    }
}
