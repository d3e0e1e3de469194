//! Which files are open, and in which way.
//!
//! What stands here lasts a little longer than in the kernel, which lets go of an inode before it
//! tells us that a file was closed. So an answer that fits the table fits the kernel.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::backing::Backing;

/// Files whose readers have once stood in somebody's way; more are not remembered.
const MOST_CONTESTED: usize = 10_000;

/// Who may wait for readers at once: each has a thread.
const MOST_WAITING: usize = 64;

/// What somebody opens a file for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    Reading,
    Writing,
    /// Or something that passthrough cannot do.
    Both,
}

impl Access {
    pub(crate) fn of(flags: i32) -> Self {
        // The host's file would have to do it, too, and need not be able to.
        if flags & libc::O_DIRECT != 0 {
            return Self::Both;
        }
        match flags & libc::O_ACCMODE {
            libc::O_RDONLY if flags & libc::O_TRUNC == 0 => Self::Reading,
            libc::O_WRONLY => Self::Writing,
            _ => Self::Both,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// Somebody is about to find out.
    Undecided,
    Ordinary {
        opens: u64,
    },
    Passthrough {
        number: u32,
        opens: u64,
    },
}

/// How one more open is answered. It counts until [`Modes::leave`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Entered {
    Ordinarily,
    /// The kernel knows the file by this number.
    Passthrough(u32),
}

/// Readers in passthrough stand in the way.
#[derive(Debug)]
pub(crate) struct InTheWay;

/// The way every open file is served.
#[derive(Debug)]
pub(crate) struct Modes {
    backing: Box<dyn Backing>,
    /// Files that are smaller are served ordinarily.
    from_bytes: u64,
    table: Mutex<Table>,
    /// A decision has been made, or the last file in passthrough was closed.
    changed: Condvar,
    /// The kernel cannot, or nobody is there any more to tell it.
    given_up: AtomicBool,
}

#[derive(Debug, Default)]
struct Table {
    open: HashMap<u64, Mode>,
    contested: HashSet<u64>,
    waiting: usize,
}

impl Modes {
    pub(crate) fn new(backing: Box<dyn Backing>, from_bytes: u64) -> Self {
        let (table, changed) = Default::default();
        Self { backing, from_bytes, table, changed, given_up: AtomicBool::new(false) }
    }

    /// One more open of `inode`. Whoever is the first to read it opens it with `open`, and the file
    /// decides.
    pub(crate) fn enter_reading<T>(
        &self,
        inode: u64,
        open: impl FnOnce() -> io::Result<T>,
        file: impl FnOnce(&T) -> io::Result<std::fs::File>,
    ) -> io::Result<(T, Entered)> {
        if let Some(entered) = self.enter_or_decide(inode) {
            return self.or_leave(inode, open()).map(|opened| (opened, entered));
        }
        // However this ends, others wait for it.
        let mut deciding = Deciding { modes: self, inode, mode: None };
        let opened = open()?;
        let number = file(&opened).ok().and_then(|file| self.number_of(&file));
        let (mode, entered) = match number {
            Some(number) => (Mode::Passthrough { number, opens: 1 }, Entered::Passthrough(number)),
            None => (Mode::Ordinary { opens: 1 }, Entered::Ordinarily),
        };
        deciding.mode = Some(mode);
        Ok((opened, entered))
    }

    /// One more open of `inode`, to read it. `None`: the caller has to decide, while others wait.
    fn enter_or_decide(&self, inode: u64) -> Option<Entered> {
        let mut table = self.decided(inode);
        let joined = Self::join(&mut table, inode, Access::Reading);
        if joined.is_some() {
            return joined;
        }
        let ordinarily = self.given_up.load(Ordering::Relaxed) || table.contested.contains(&inode);
        let mode = if ordinarily { Mode::Ordinary { opens: 1 } } else { Mode::Undecided };
        table.open.insert(inode, mode);
        ordinarily.then_some(Entered::Ordinarily)
    }

    /// One more open of `inode`, by somebody who does not begin passthrough.
    pub(crate) fn enter(&self, inode: u64, access: Access) -> Result<Entered, InTheWay> {
        Self::enter_in(&mut self.decided(inode), inode, access)
    }

    /// The same, once the readers have gone; not after `deadline`.
    pub(crate) fn enter_after_readers(
        &self,
        inode: u64,
        access: Access,
        deadline: Instant,
    ) -> Result<Entered, InTheWay> {
        let mut table = self.decided(inode);
        if table.contested.len() < MOST_CONTESTED {
            // It will be opened like that again, and then nobody should have to wait.
            table.contested.insert(inode);
        }
        loop {
            let entered = Self::enter_in(&mut table, inode, access);
            if entered.is_ok() || self.changed.wait_until(&mut table, deadline).timed_out() {
                return entered;
            }
            table = self.until_decided(table, inode);
        }
    }

    /// Whether one more may wait; then it says so when it has stopped.
    pub(crate) fn may_wait(&self) -> bool {
        let mut table = self.table.lock();
        let may = table.waiting < MOST_WAITING;
        table.waiting += usize::from(may);
        may
    }

    pub(crate) fn waits_no_more(&self) {
        self.table.lock().waiting -= 1;
    }

    fn enter_in(table: &mut Table, inode: u64, access: Access) -> Result<Entered, InTheWay> {
        match table.open.get(&inode) {
            Some(Mode::Passthrough { .. }) if access == Access::Both => Err(InTheWay),
            _ => Ok(Self::join(table, inode, access).unwrap_or_else(|| {
                table.open.insert(inode, Mode::Ordinary { opens: 1 });
                Entered::Ordinarily
            })),
        }
    }

    /// One more of those that are there already.
    fn join(table: &mut Table, inode: u64, access: Access) -> Option<Entered> {
        match table.open.get_mut(&inode)? {
            Mode::Ordinary { opens } => {
                *opens += 1;
                Some(Entered::Ordinarily)
            }
            Mode::Passthrough { number, opens } if access != Access::Both => {
                *opens += 1;
                Some(Entered::Passthrough(*number))
            }
            _ => None,
        }
    }

    fn decided(&self, inode: u64) -> MutexGuard<'_, Table> {
        self.until_decided(self.table.lock(), inode)
    }

    fn until_decided<'a>(
        &self,
        mut table: MutexGuard<'a, Table>,
        inode: u64,
    ) -> MutexGuard<'a, Table> {
        while table.open.get(&inode) == Some(&Mode::Undecided) {
            self.changed.wait(&mut table);
        }
        table
    }

    /// A file was closed, or could not be opened after all.
    pub(crate) fn leave(&self, inode: u64) {
        let mut table = self.table.lock();
        let last = match table.open.get_mut(&inode) {
            Some(Mode::Ordinary { opens } | Mode::Passthrough { opens, .. }) => {
                *opens -= 1;
                *opens == 0
            }
            _ => false,
        };
        let gone = last.then(|| table.open.remove(&inode)).flatten();
        drop(table);
        if let Some(Mode::Passthrough { number, .. }) = gone {
            self.changed.notify_all();
            self.backing.close(number);
        }
    }

    pub(crate) fn or_leave<T>(&self, inode: u64, outcome: io::Result<T>) -> io::Result<T> {
        outcome.inspect_err(|_| self.leave(inode))
    }

    /// What the kernel knows a file by, if it is worth it.
    fn number_of(&self, file: &std::fs::File) -> Option<u32> {
        let found = file.metadata().ok()?;
        if !found.is_file() || found.len() < self.from_bytes {
            return None;
        }
        match self.backing.open(file.as_fd()) {
            Ok(number) => Some(number),
            Err(error) => {
                // Of this file, or for want of something that may be there later.
                let passes = [libc::EXDEV, libc::EINVAL, libc::ENFILE, libc::ENOMEM];
                if !error.raw_os_error().is_some_and(|errno| passes.contains(&errno)) {
                    self.given_up.store(true, Ordering::Relaxed);
                }
                None
            }
        }
    }
}

/// Nobody else opens the inode meanwhile.
struct Deciding<'a> {
    modes: &'a Modes,
    inode: u64,
    mode: Option<Mode>,
}

impl Drop for Deciding<'_> {
    fn drop(&mut self) {
        let mut table = self.modes.table.lock();
        match self.mode {
            Some(mode) => table.open.insert(self.inode, mode),
            None => table.open.remove(&self.inode),
        };
        drop(table);
        self.modes.changed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    /// Gives numbers, and remembers which are in use.
    #[derive(Debug, Clone, Default)]
    struct Kernel(Arc<Mutex<(u32, Vec<u32>)>>);

    impl Backing for Kernel {
        fn open(&self, _file: BorrowedFd<'_>) -> io::Result<u32> {
            let mut kernel = self.0.lock();
            kernel.0 += 1;
            let number = kernel.0;
            kernel.1.push(number);
            Ok(number)
        }

        fn close(&self, number: u32) {
            self.0.lock().1.retain(|used| *used != number);
        }
    }

    #[derive(Debug)]
    struct Nobody;

    impl Backing for Nobody {
        fn open(&self, _file: BorrowedFd<'_>) -> io::Result<u32> {
            Err(io::Error::from_raw_os_error(libc::EPERM))
        }

        fn close(&self, _number: u32) {}
    }

    fn some_file(bytes: u64) -> io::Result<File> {
        let file = tempfile::tempfile()?;
        file.set_len(bytes)?;
        Ok(file)
    }

    fn read(modes: &Modes, inode: u64, bytes: u64) -> Entered {
        modes.enter_reading(inode, || Ok(()), |()| some_file(bytes)).unwrap().1
    }

    #[test]
    fn who_opens_first_decides_until_the_last_has_closed() {
        let kernel = Kernel::default();
        let modes = Modes::new(Box::new(kernel.clone()), 10);
        assert_eq!(read(&modes, 1, 10), Entered::Passthrough(1));
        assert_eq!(read(&modes, 1, 0), Entered::Passthrough(1), "it is asked once");
        assert_eq!(modes.enter(1, Access::Writing).unwrap(), Entered::Passthrough(1));
        assert!(modes.enter(1, Access::Both).is_err());
        assert_eq!(modes.enter(2, Access::Both).unwrap(), Entered::Ordinarily);
        assert_eq!(read(&modes, 2, 10), Entered::Ordinarily);
        (0..3).for_each(|_| modes.leave(1));
        assert!(kernel.0.lock().1.is_empty(), "the last one closes it");
        assert_eq!(modes.enter(1, Access::Both).unwrap(), Entered::Ordinarily);
        (0..2).for_each(|_| modes.leave(2));
        assert_eq!(read(&modes, 2, 10), Entered::Passthrough(2));
    }

    #[test]
    fn small_files_and_those_that_cannot_be_opened_are_not_the_kernels() {
        let kernel = Kernel::default();
        let modes = Modes::new(Box::new(kernel.clone()), 10);
        assert_eq!(read(&modes, 1, 9), Entered::Ordinarily);
        let failed =
            modes.enter_reading(2, || Err::<(), _>(io::Error::other("no")), |()| some_file(10));
        assert!(failed.is_err());
        assert_eq!(modes.table.lock().open.len(), 1);
        assert_eq!(kernel.0.lock().0, 0);
    }

    #[test]
    fn where_nobody_can_tell_the_kernel_he_is_not_asked_again() {
        let modes = Modes::new(Box::new(Nobody), 0);
        assert_eq!(read(&modes, 1, 10), Entered::Ordinarily);
        assert!(modes.given_up.load(Ordering::Relaxed));
        assert_eq!(read(&modes, 2, 10), Entered::Ordinarily);
    }

    #[test]
    fn a_file_that_was_waited_for_is_served_ordinarily_from_then_on() {
        let modes = Modes::new(Box::new(Kernel::default()), 0);
        read(&modes, 1, 10);
        let now = Instant::now();
        assert!(modes.enter_after_readers(1, Access::Both, now).is_err());
        let soon = now + Duration::from_secs(30);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| modes.enter_after_readers(1, Access::Both, soon));
            modes.leave(1);
            assert_eq!(waiting.join().unwrap().unwrap(), Entered::Ordinarily);
        });
        modes.leave(1);
        assert_eq!(read(&modes, 1, 10), Entered::Ordinarily);
    }

    #[test]
    fn what_cannot_be_done_in_passthrough_is_not() {
        assert_eq!(Access::of(libc::O_RDONLY | libc::O_NOATIME), Access::Reading);
        assert_eq!(Access::of(libc::O_WRONLY | libc::O_TRUNC), Access::Writing);
        for flags in [libc::O_RDWR, libc::O_RDONLY | libc::O_TRUNC, libc::O_DIRECT, libc::O_ACCMODE]
        {
            assert_eq!(Access::of(flags), Access::Both);
        }
    }
}
