//! What nobody waits for: deleting what was thrown away, and counting what was moved.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use codeagent_common::RelPath;

use crate::host::{Dir, remove_all, walk};

/// The bytes below some directories, once they have been counted.
pub(crate) type Counted = Arc<OnceLock<u64>>;

/// As `nice` has it.
const NICENESS: i32 = 10;

/// Whoever leaves something to be done here is in the middle of something that is waited for, and
/// would have to share the filesystem's locks and the processors with it.
const PATIENCE: Duration = Duration::from_millis(50);

enum Job {
    Delete(PathBuf),
    Count { objects: Arc<Dir>, directories: Vec<u32>, counted: Counted },
}

impl Job {
    fn run(self, stop: &AtomicBool) {
        match self {
            // What cannot be deleted now is tried again at the next start.
            Self::Delete(path) => drop(delete(&path)),
            Self::Count { objects, directories, counted } => {
                if let Some(bytes) = count(&objects, &directories, stop) {
                    let _ = counted.set(bytes);
                }
            }
        }
    }
}

pub(crate) struct Background {
    /// `None` once shutdown began; dropping it ends the thread when its queue is empty.
    queue: Option<mpsc::Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// Set when shutdown begins: what has not been counted by then is counted after the next start.
    stopping: Arc<AtomicBool>,
}

impl Background {
    pub(crate) fn start() -> io::Result<Self> {
        let (queue, jobs) = mpsc::channel::<Job>();
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let thread =
            std::thread::Builder::new().name("undo-background".into()).spawn(move || {
                // Whoever waits for something comes first. (Of a thread, whatever its name says.)
                let _ = rustix::process::setpriority_process(None, NICENESS);
                while let Ok(first) = jobs.recv() {
                    if !stop.load(Ordering::Relaxed) {
                        std::thread::park_timeout(PATIENCE);
                    }
                    // What came meanwhile has waited, too.
                    std::iter::once(first).chain(jobs.try_iter()).for_each(|job| job.run(&stop));
                }
            })?;
        Ok(Self { queue: Some(queue), thread: Some(thread), stopping })
    }

    pub(crate) fn delete_later(&self, path: PathBuf) {
        self.add(Job::Delete(path));
    }

    pub(crate) fn count_later(&self, objects: Arc<Dir>, directories: Vec<u32>) -> Counted {
        let counted = Counted::default();
        self.add(Job::Count { objects, directories, counted: Arc::clone(&counted) });
        counted
    }

    fn add(&self, job: Job) {
        if let Some(queue) = &self.queue {
            let _ = queue.send(job);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.queue = None;
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

fn delete(path: &Path) -> io::Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    remove_all(&Dir::open(parent)?.entry(name.as_bytes()))
}

/// `None` if it was stopped. What cannot be read, or has gone back meanwhile, is not counted.
fn count(objects: &Arc<Dir>, directories: &[u32], stop: &AtomicBool) -> Option<u64> {
    let mut bytes = 0;
    for number in directories {
        let Ok(dir) = objects.entry(number.to_string().into_bytes()).open_dir() else { continue };
        let _ = walk(&dir, RelPath::ROOT, &mut |_, _, stamp, _| {
            bytes += stamp.held_bytes();
            if stop.load(Ordering::Relaxed) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            Ok(())
        });
    }
    (!stop.load(Ordering::Relaxed)).then_some(bytes)
}
