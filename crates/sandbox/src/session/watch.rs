//! Other people's edits, seen as they happen.
//!
//! The watcher only makes them known early. Whose edit it was, the engine decides: what is as the
//! sandbox left it is our own, whatever the watcher says, and undo finds the rest without it.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use codeagent_common::RelPathBuf;
use codeagent_worker::Request;
use notify::{RecursiveMode, Watcher as _};

use super::event::{Bus, Event};
use super::folder::Folder;

/// Edits are reported after this much quiet,
const QUIET: Duration = Duration::from_millis(150);
/// at the latest after this time,
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
    pub(crate) fn start(folders: &[Arc<Folder>], bus: &Bus) -> Option<Self> {
        let (sender, news) = channel();
        let warn = |error: &dyn std::fmt::Display| {
            let message =
                format!("edits by others are noticed only when something is undone: {error}");
            bus.tell(&Event::Warning { directory: None, message });
        };
        let hear = move |event: News| drop(sender.send(event)); // nobody listens at the very end
        let mut inner = notify::recommended_watcher(hear).map_err(|error| warn(&error)).ok()?;
        for folder in folders {
            if let Err(error) = inner.watch(&folder.path, RecursiveMode::Recursive) {
                warn(&error);
            }
        }
        let folders: Vec<(PathBuf, Weak<Folder>)> =
            folders.iter().map(|folder| (folder.path.clone(), Arc::downgrade(folder))).collect();
        let listening = std::thread::Builder::new().name("watcher".into());
        listening.spawn(move || listen(&news, &folders)).map_err(|error| warn(&error)).ok()?;
        Some(Self { _inner: inner })
    }
}

fn listen(news: &Receiver<News>, folders: &[(PathBuf, Weak<Folder>)]) {
    while let Ok(first) = news.recv() {
        let mut paths = paths_of(first);
        let begun = Instant::now();
        while paths.len() < MOST && begun.elapsed() < LONGEST {
            match news.recv_timeout(QUIET) {
                Ok(more) => paths.extend(paths_of(more)),
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
        paths.sort_unstable();
        paths.dedup();
        for (root, folder) in folders {
            let Some(folder) = folder.upgrade() else { return };
            let below = |path: &PathBuf| {
                let below = path.strip_prefix(root).ok()?.as_os_str().as_bytes();
                RelPathBuf::new(below).ok().filter(|path| !path.as_path().is_root())
            };
            let inside: Vec<RelPathBuf> = paths.iter().filter_map(below).collect();
            if !inside.is_empty() {
                check(&folder, inside);
            }
        }
    }
}

/// Has the engine compare; what is somebody else's comes back as an event.
fn check(folder: &Arc<Folder>, paths: Vec<RelPathBuf>) {
    let Ok(keeper) = folder.keeper() else { return };
    // A worker that is about to end hears of it from nobody, and the next one finds it.
    let _ = keeper.client().call::<Vec<RelPathBuf>>(Request::ExternalModification { paths });
}

fn paths_of(event: News) -> Vec<PathBuf> {
    match event {
        Ok(event) if !event.kind.is_access() => event.paths,
        _ => vec![],
    }
}
