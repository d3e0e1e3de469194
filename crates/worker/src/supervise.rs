//! Starting a worker, and noticing its death.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::client::{Client, Unreachable, WorkerError};
use crate::link;
use crate::process::ARGUMENT;
use crate::protocol::{Event, Failure, Ready, Settings};

/// How long a worker that was asked to end may take.
const FAREWELL: Duration = Duration::from_secs(30);

/// How to start a worker; the same each time.
#[derive(Debug)]
pub struct WorkerSpec {
    /// A program whose `main` begins with [`is_worker`](crate::is_worker); usually this one.
    pub program: PathBuf,
    pub settings: Settings,
    /// Opened before anything is mounted over it.
    pub working_dir: OwnedFd,
    /// Nobody reads what it says on standard error.
    pub silent: bool,
}

impl WorkerSpec {
    /// A worker that runs this program.
    pub fn new(settings: Settings) -> io::Result<Self> {
        use rustix::fs::{Mode, OFlags};
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let working_dir = rustix::fs::open(&settings.working_dir, flags, Mode::empty())?;
        // Not the path of the program: it may have been replaced by a newer one meanwhile.
        Ok(Self { program: "/proc/self/exe".into(), settings, working_dir, silent: false })
    }
}

/// A worker process that this process has started. Dropping it kills the worker.
#[derive(Debug)]
pub struct WorkerProcess {
    child: Child,
    client: Client,
    ready: Ready,
    is_left_to_others: bool,
}

impl WorkerProcess {
    /// Starts a worker and waits until it has recovered and is ready. The inner error is what the
    /// worker itself has to say.
    pub fn start(
        spec: &WorkerSpec,
        on_event: impl Fn(Event) + Send + 'static,
    ) -> io::Result<Result<Self, Failure>> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut child = Command::new(&spec.program)
            .arg0(OsString::from("codeagent-worker"))
            .arg(ARGUMENT)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(if spec.silent { Stdio::null() } else { Stdio::inherit() })
            // Ctrl-C on the terminal is for us; the worker ends when we say so.
            .process_group(0)
            .spawn()?;
        let settings = link::encode(&spec.settings)?;
        let answer = link::send_bytes(&ours, &settings, &[spec.working_dir.as_fd()])
            .and_then(|()| link::receive::<Result<Ready, Failure>>(&ours));
        match answer {
            Ok(Some((Ok(ready), _))) => {
                let client = Client::over(ours, on_event)?;
                Ok(Ok(Self { child, client, ready, is_left_to_others: false }))
            }
            Ok(Some((Err(failure), _))) => {
                child.wait()?;
                Ok(Err(failure))
            }
            Ok(None) | Err(_) => {
                drop(ours);
                let status = child.wait()?;
                Err(io::Error::other(format!("the worker did not start ({status})")))
            }
        }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    pub fn ready(&self) -> &Ready {
        &self.ready
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it has ended by itself.
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        self.child.wait()
    }

    /// Asks it to end, once its front end has ended or `patience` is over; kills it if it does not.
    /// `None`: others are at work there, and it ends after them.
    pub fn end(mut self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        if !ask_to_end(&self.client, patience)? {
            self.is_left_to_others = true;
            return Ok(None);
        }
        let deadline = Instant::now() + patience + FAREWELL;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        self.child.kill()?;
        self.child.wait().map(Some)
    }
}

impl Drop for WorkerProcess {
    fn drop(&mut self) {
        if self.is_left_to_others {
            return;
        }
        // It may have ended, and been waited for, already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `false`: it ends after others. It may be gone before its answer is.
fn ask_to_end(client: &Client, patience: Duration) -> io::Result<bool> {
    match client.shut_down(patience) {
        Ok(ends) => Ok(ends),
        Err(WorkerError::Gone) => Ok(true),
        Err(error) => Err(io::Error::other(error)),
    }
}

/// Ends a worker that has outlived the process that started it, if one holds this undo directory,
/// and waits until it has gone, unless others are at work there. What it served is a dead mount
/// then.
pub fn end_orphan(undo_dir: &Path) -> io::Result<bool> {
    let client = match Client::connect(undo_dir) {
        Ok(client) => client,
        Err(Unreachable::Nobody) => return Ok(false),
        Err(Unreachable::Failed(error)) => return Err(error),
    };
    // One that does not answer is none of ours; whoever opens the undo log will be told.
    let Ok(mut state) = client.hello() else { return Ok(false) };
    // Its process may have been killed this very moment.
    for _ in 0..20 {
        if state.orphaned {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        match client.hello() {
            Ok(later) => state = later,
            Err(_) => return Ok(false),
        }
    }
    if !state.orphaned {
        return Ok(false);
    }
    let pid = i32::try_from(state.pid).ok().and_then(Pid::from_raw);
    let process = pid.ok_or(io::ErrorKind::InvalidData)?;
    let process = pidfd_open(process, PidfdFlags::empty())?;
    if !ask_to_end(&client, Duration::ZERO)? {
        return Ok(false);
    }
    let deadline = Timespec { tv_sec: FAREWELL.as_secs() as i64, tv_nsec: 0 };
    let mut ended = [PollFd::new(&process, PollFlags::IN)];
    match poll(&mut ended, Some(&deadline))? {
        0 => Err(io::Error::new(io::ErrorKind::TimedOut, "an earlier worker does not end")),
        _ => Ok(true),
    }
}

/// How long to wait before a worker that died is started again: not at all, unless it keeps dying
/// as soon as it is there.
#[derive(Debug, Default)]
pub struct Patience {
    quick_deaths: u32,
}

impl Patience {
    const QUICK: Duration = Duration::from_millis(100);
    const LONGEST: Duration = Duration::from_secs(5);

    pub fn after_a_life_of(&mut self, life: Duration) -> Duration {
        if life >= Self::QUICK {
            self.quick_deaths = 0;
            return Duration::ZERO;
        }
        self.quick_deaths = self.quick_deaths.saturating_add(1);
        let wait = Duration::from_millis(10).saturating_mul(1 << self.quick_deaths.min(16));
        wait.min(Self::LONGEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_keeps_dying_is_started_ever_more_slowly() {
        let mut patience = Patience::default();
        assert_eq!(patience.after_a_life_of(Duration::from_secs(1)), Duration::ZERO);
        let waits: Vec<Duration> =
            (0..20).map(|_| patience.after_a_life_of(Duration::ZERO)).collect();
        assert!(waits.is_sorted());
        assert_eq!(waits.last(), Some(&Patience::LONGEST));
        assert_eq!(patience.after_a_life_of(Duration::from_secs(1)), Duration::ZERO);
    }
}
