//! What nobody waits for: deleting what was thrown away, and counting what was moved.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use codeagent_common::RelPath;
use parking_lot::{Condvar, Mutex};

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
    pace: Arc<Pace>,
}

/// How soon things are done.
#[derive(Default)]
struct Pace {
    state: Mutex<PaceState>,
    changed: Condvar,
}

#[derive(Default)]
struct PaceState {
    /// Somebody else is at work, and comes first.
    patient: bool,
    /// Jobs that are not done.
    left: usize,
}

impl Pace {
    fn wait(&self) {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.state.lock();
        while state.patient && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }

    fn set_patient(&self, patient: bool) {
        self.state.lock().patient = patient;
        self.changed.notify_all();
    }

    fn done(&self) {
        self.state.lock().left -= 1;
        self.changed.notify_all();
    }
}

impl Background {
    pub(crate) fn start() -> io::Result<Self> {
        let (queue, jobs) = mpsc::channel::<Job>();
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let pace = Arc::new(Pace::default());
        let keeps_to = Arc::clone(&pace);
        let thread =
            std::thread::Builder::new().name("undo-background".into()).spawn(move || {
                // Whoever waits for something comes first. (Of a thread, whatever its name says.)
                let _ = rustix::process::setpriority_process(None, NICENESS);
                while let Ok(first) = jobs.recv() {
                    keeps_to.wait();
                    for job in std::iter::once(first).chain(jobs.try_iter()) {
                        job.run(&stop);
                        keeps_to.done();
                    }
                }
            })?;
        Ok(Self { queue: Some(queue), thread: Some(thread), stopping, pace })
    }

    /// What is left from an earlier process has waited long enough; from here on, others come first.
    pub(crate) fn be_patient(&self) {
        self.pace.set_patient(true);
    }

    /// Nobody else is at work any more: what is left is done at once, as far as time allows. The rest
    /// is done after the next start.
    pub(crate) fn finish(&self, time: Duration) {
        self.pace.set_patient(false);
        let deadline = Instant::now() + time;
        let mut state = self.pace.state.lock();
        while state.left > 0 && !self.pace.changed.wait_until(&mut state, deadline).timed_out() {}
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
            self.pace.state.lock().left += 1;
            let _ = queue.send(job);
        }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Relaxed);
        self.pace.set_patient(false);
        self.queue = None;
        if let Some(thread) = self.thread.take() {
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
