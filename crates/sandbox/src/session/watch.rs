//! Other people's edits, seen as they happen.
//!
//! The watcher only makes them known early. Whose edit it was, the engine decides: what is as the
//! sandbox left it is our own, whatever the watcher says, and undo finds the rest without it.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use codeagent_common::RelPathBuf;
use codeagent_worker::Request;
use notify::event::{ModifyKind, RenameMode};
use notify::{EventKind, RecursiveMode, Watcher as _};

use super::event::{Bus, Event};
use super::folder::Folder;
use super::options::WatchOptions;

/// However much goes on, edits are reported after this time,
const LONGEST: Duration = Duration::from_secs(1);
/// and so many paths at once.
const MOST: usize = 4096;

type News = notify::Result<notify::Event>;

/// Watches until it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    /// Its end is that of the thread that hears it.
    _inner: notify::RecommendedWatcher,
}

impl Watcher {
    /// Without one, edits are found when something is undone; that is said.
    pub(crate) fn start(
        folders: &[Arc<Folder>],
        bus: &Bus,
        options: &WatchOptions,
    ) -> Option<Self> {
        let (sender, news) = channel();
        let failed = |error: &dyn std::fmt::Display| bus.tell(&blind(error));
        let hear = move |event: News| drop(sender.send(event)); // nobody listens at the very end
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
        thread.spawn(move || listener.listen(&news)).map_err(|error| failed(&error)).ok()?;
        Some(Self { _inner: inner })
    }
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
    fn listen(&self, news: &Receiver<News>) {
        let mut has_warned = false;
        let mut appeared = HashSet::new();
        while let Ok(first) = news.recv() {
            let mut heard = Heard { appeared: std::mem::take(&mut appeared), ..Heard::default() };
            heard.add(first);
            let begun = Instant::now();
            while heard.paths.len() < MOST && begun.elapsed() < LONGEST {
                match news.recv_timeout(self.options.quiet) {
                    Ok(more) => heard.add(more),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return,
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
