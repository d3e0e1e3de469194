//! Other people's edits, seen as they happen.
//!
//! The watcher only makes them known early. Whose edit it was, the engine decides: what is as the
//! sandbox left it is our own, whatever the watcher says, and undo finds the rest without it.

use std::collections::{HashSet, VecDeque};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use codeagent_common::RelPathBuf;
use codeagent_worker::Request;
use notify::event::{ModifyKind, RenameMode};
use notify::{EventKind, RecursiveMode, Watcher as _};
use parking_lot::{Condvar, Mutex};

use super::event::{Bus, Event};
use super::folder::Folder;
use super::options::WatchOptions;

/// However much goes on, edits are reported after this time,
const LONGEST: Duration = Duration::from_secs(1);
/// and so many paths at once.
const MOST: usize = 4096;
/// So much news waits at most, while what was heard before is looked at.
const MOST_WAITING: usize = 16_384;

type News = notify::Result<notify::Event>;

/// Watches until it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    _inner: notify::RecommendedWatcher,
    inbox: Arc<Inbox>,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.inbox.close();
    }
}

impl Watcher {
    /// Without one, edits are found when something is undone; that is said.
    pub(crate) fn start(
        folders: &[Arc<Folder>],
        bus: &Bus,
        options: &WatchOptions,
    ) -> Option<Self> {
        let inbox = Arc::new(Inbox::default());
        let failed = |error: &dyn std::fmt::Display| bus.tell(&blind(error));
        let ear = Arc::clone(&inbox);
        let hear = move |event: News| ear.put(event);
        let mut inner = notify::recommended_watcher(hear).map_err(|error| failed(&error)).ok()?;
        for folder in folders {
            if let Err(error) = inner.watch(&folder.path, RecursiveMode::Recursive) {
                failed(&error);
            }
        }
        let folders =
            folders.iter().map(|folder| (folder.path.clone(), Arc::downgrade(folder))).collect();
        let listener = Listener { folders, bus: bus.clone(), options: options.clone() };
        let thread = std::thread::Builder::new().name("watcher".into());
        let news = Arc::clone(&inbox);
        thread.spawn(move || listener.listen(&news)).map_err(|error| failed(&error)).ok()?;
        Some(Self { _inner: inner, inbox })
    }
}

/// News that waits to be looked at. Whoever brings it must not wait: then the kernel would lose some,
/// and new directories would be watched too late.
#[derive(Debug, Default)]
struct Inbox {
    waiting: Mutex<Waiting>,
    arrived: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    news: VecDeque<News>,
    /// There was no room for more.
    lost_some: bool,
    /// The watcher is gone.
    is_closed: bool,
}

impl Inbox {
    fn put(&self, news: News) {
        let mut waiting = self.waiting.lock();
        match waiting.news.len() < MOST_WAITING {
            true => waiting.news.push_back(news),
            false => waiting.lost_some = true,
        }
        self.arrived.notify_one();
    }

    fn close(&self) {
        self.waiting.lock().is_closed = true;
        self.arrived.notify_one();
    }

    /// Adds the next news to what was heard; waits for it, if told so for so long only.
    fn take(&self, heard: &mut Heard, patience: Option<Duration>) -> Taken {
        let mut waiting = self.waiting.lock();
        let deadline = patience.map(|patience| Instant::now() + patience);
        loop {
            if waiting.is_closed {
                return Taken::Closed;
            }
            heard.lost_some |= std::mem::take(&mut waiting.lost_some);
            if let Some(news) = waiting.news.pop_front() {
                heard.add(news);
                return Taken::News;
            }
            match deadline {
                None => self.arrived.wait(&mut waiting),
                Some(deadline) => {
                    if self.arrived.wait_until(&mut waiting, deadline).timed_out() {
                        return Taken::Nothing;
                    }
                }
            }
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Taken {
    News,
    Nothing,
    Closed,
}

fn blind(error: &dyn std::fmt::Display) -> Event {
    let message =
        format!("some edits by others are noticed only when something is undone: {error}");
    Event::Warning { directory: None, message }
}

struct Listener {
    folders: Vec<(PathBuf, Weak<Folder>)>,
    bus: Bus,
    options: WatchOptions,
}

/// What was heard in a while.
#[derive(Default)]
struct Heard {
    paths: Vec<PathBuf>,
    /// Those of them that have appeared, then or earlier.
    appeared: HashSet<PathBuf>,
    /// There was more.
    lost_some: bool,
    error: Option<notify::Error>,
}

impl Heard {
    fn add(&mut self, news: News) {
        match news {
            Ok(event) => {
                self.lost_some |= event.need_rescan();
                let appears = matches!(
                    event.kind,
                    EventKind::Create(_) | EventKind::Modify(ModifyKind::Name(RenameMode::To))
                );
                if appears && self.appeared.len() < MOST {
                    self.appeared.extend(event.paths.iter().cloned());
                }
                if !event.kind.is_access() {
                    self.paths.extend(event.paths);
                }
            }
            Err(error) => self.error = Some(error),
        }
    }
}

impl Listener {
    /// Until the watcher is gone, or the session.
    fn listen(&self, news: &Inbox) {
        let mut has_warned = false;
        let mut appeared = HashSet::new();
        loop {
            let mut heard = Heard { appeared: std::mem::take(&mut appeared), ..Heard::default() };
            if news.take(&mut heard, None) == Taken::Closed {
                return;
            }
            let begun = Instant::now();
            while heard.paths.len() < MOST && begun.elapsed() < LONGEST {
                match news.take(&mut heard, Some(self.options.quiet)) {
                    Taken::News => {}
                    Taken::Nothing => break,
                    Taken::Closed => return,
                }
            }
            if let Some(error) = heard.error.take()
                && !std::mem::replace(&mut has_warned, true)
            {
                self.bus.tell(&blind(&error));
            }
            heard.paths.sort_unstable();
            heard.paths.dedup();
            for (root, folder) in &self.folders {
                let Some(folder) = folder.upgrade() else { return };
                self.check(&folder, root, &heard);
            }
            // What is still there may go later.
            appeared = heard.appeared;
            appeared.retain(|path| path.symlink_metadata().is_ok());
        }
    }

    /// Has the engine compare; what is somebody else's comes back as an event.
    fn check(&self, folder: &Arc<Folder>, root: &Path, heard: &Heard) {
        let below = |path: &PathBuf| {
            let below = path.strip_prefix(root).ok()?.as_os_str().as_bytes();
            RelPathBuf::new(below).ok().filter(|path| !path.as_path().is_root())
        };
        let is_excluded = |path: &RelPathBuf| {
            let names: Vec<&[u8]> = path.as_path().components().collect();
            self.options.exclude.iter().any(|pattern| pattern.matches(&names))
        };
        // Temporary files are no news, whoever made them.
        let is_passing =
            |path: &&PathBuf| heard.appeared.contains(*path) && path.symlink_metadata().is_err();
        let (passing, lasting): (Vec<&PathBuf>, _) = heard.paths.iter().partition(is_passing);
        let told = |paths: Vec<&PathBuf>| -> Vec<RelPathBuf> {
            paths.into_iter().filter_map(below).filter(|path| !is_excluded(path)).collect()
        };
        let (paths, passing) = (told(lasting), told(passing));
        let request = match (heard.lost_some, paths.is_empty() && passing.is_empty()) {
            (true, _) => Request::WatcherOverflowed,
            (false, true) => return,
            (false, false) => Request::ExternalModification { paths, passing },
        };
        let Ok(keeper) = folder.keeper() else { return };
        // A worker that is about to end hears of it from nobody, and the next one finds it.
        let _ = keeper.client().call::<Vec<RelPathBuf>>(request);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn news(number: usize) -> News {
        Ok(notify::Event::new(EventKind::Any).add_path(format!("/{number}").into()))
    }

    #[test]
    fn news_that_nobody_looks_at_does_not_pile_up_and_is_said_to_be_lost() {
        let inbox = Inbox::default();
        (0..MOST_WAITING).for_each(|number| inbox.put(news(number)));
        let mut heard = Heard::default();
        assert_eq!(inbox.take(&mut heard, Some(Duration::ZERO)), Taken::News);
        assert!(!heard.lost_some);
        (0..10 * MOST_WAITING).for_each(|number| inbox.put(news(number)));
        assert_eq!(inbox.waiting.lock().news.len(), MOST_WAITING);
        while inbox.take(&mut heard, Some(Duration::ZERO)) == Taken::News {}
        assert!(heard.lost_some);
        assert_eq!(heard.paths.len(), 1 + MOST_WAITING);
        let mut later = Heard::default();
        inbox.put(news(0));
        assert_eq!(inbox.take(&mut later, None), Taken::News);
        assert!(!later.lost_some);
        inbox.close();
        assert_eq!(inbox.take(&mut later, None), Taken::Closed);
    }
}
