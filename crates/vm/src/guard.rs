//! The process between the owner and QEMU. It ends QEMU as soon as the owner has gone, also by
//! SIGKILL; and QEMU dies with it, if it should be killed itself.
//!
//! A death signal in the owner would not do: the kernel sends it when the *thread* ends that
//! started the process, and a session has threads that come and go. The guard has one.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitCode, ExitStatus, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::{link, raw};

/// Tells the program that it is to become a guard.
const ARGUMENT: &str = "--codeagent-vm-guard";
/// Descriptors for QEMU have these numbers and up, in their order. Those that come for it have lower
/// ones: no message brings so many.
pub(crate) const FIRST_DESCRIPTOR: i32 = 2 * link::MAX_DESCRIPTORS as i32;

/// What to run.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    qemu: PathBuf,
    arguments: Vec<Vec<u8>>,
}

/// What the guard has to say.
#[derive(Debug, Serialize, Deserialize)]
enum News {
    /// With a descriptor of the process.
    Started,
    NotStarted(String),
    Ended {
        raw_status: i32,
    },
}

/// If this process was started to be a guard, it is that, and its exit code comes back. To be called
/// before anything else, in a process that has one thread.
pub fn run_if_asked() -> Option<ExitCode> {
    if std::env::args_os().nth(1)? != ARGUMENT {
        return None;
    }
    raw::close_what_was_inherited();
    let lifeline = rustix::stdio::stdin().try_clone_to_owned().ok()?;
    Some(match guard(&UnixStream::from(lifeline)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    })
}

fn guard(lifeline: &UnixStream) -> io::Result<()> {
    let (order, descriptors) = link::receive::<Order>(lifeline)?;
    let mut qemu = match spawn(&order, descriptors) {
        Ok(qemu) => qemu,
        Err(error) => return link::send(lifeline, &News::NotStarted(error.to_string()), &[]),
    };
    let process = pidfd_open(Pid::from_child(&qemu), PidfdFlags::empty())?;
    let told = link::send(lifeline, &News::Started, &[process.as_fd()]);
    if told.is_err() || !ends_before(lifeline, &process) {
        let _ = pidfd_send_signal(&process, Signal::KILL);
    }
    let status = qemu.wait()?;
    // Nobody may be there any more to hear it.
    let _ = link::send(lifeline, &News::Ended { raw_status: status.into_raw() }, &[]);
    Ok(())
}

fn spawn(order: &Order, descriptors: Vec<OwnedFd>) -> io::Result<Child> {
    let mut inherited = Vec::new();
    for (wanted, descriptor) in (FIRST_DESCRIPTOR..).zip(descriptors) {
        let moved = fcntl_dupfd_cloexec(&descriptor, wanted)?;
        if std::os::fd::AsRawFd::as_raw_fd(&moved) != wanted {
            return Err(io::Error::other("a descriptor has another number than it should"));
        }
        fcntl_setfd(&moved, FdFlags::empty())?;
        inherited.push(moved);
    }
    let mut command = Command::new(&order.qemu);
    command
        .args(order.arguments.iter().map(|argument| OsStr::from_bytes(argument)))
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    raw::die_with_us(&mut command);
    command.spawn()
}

/// Waits for the end of QEMU, or of the owner. True if QEMU was first.
fn ends_before(lifeline: &UnixStream, process: &OwnedFd) -> bool {
    let mut fds = [
        PollFd::new(process, PollFlags::IN),
        PollFd::new(lifeline, PollFlags::IN | PollFlags::RDHUP),
    ];
    match rustix::io::retry_on_intr(|| poll(&mut fds, None)) {
        Ok(_) => !fds[0].revents().is_empty(),
        Err(_) => false,
    }
}

/// The owner's side.
#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    lifeline: UnixStream,
    qemu: OwnedFd,
}

/// How QEMU ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QemuEnd {
    Status(ExitStatus),
    /// The guard was killed, and QEMU with it.
    WithItsGuard,
}

impl Guard {
    /// Starts QEMU with these descriptors, the first of which is [`FIRST_DESCRIPTOR`] to it.
    pub(crate) fn start(
        program: &Path,
        qemu: &Path,
        arguments: &[std::ffi::OsString],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<(Self, ChildStderr)> {
        let (lifeline, theirs) = UnixStream::pair()?;
        let mut process = Command::new(program)
            .arg0("codeagent-vm")
            .arg(ARGUMENT)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            // Ctrl-C on the terminal is for us.
            .process_group(0)
            .spawn()?;
        let stderr = process.stderr.take().ok_or_else(|| io::Error::other("no error stream"))?;
        let arguments = arguments.iter().map(|argument| argument.as_bytes().to_vec()).collect();
        let order = Order { qemu: qemu.to_owned(), arguments };
        let started = link::send(&lifeline, &order, descriptors)
            .and_then(|()| link::receive::<News>(&lifeline));
        let failure = match started {
            Ok((News::Started, descriptors)) => match descriptors.into_iter().next() {
                Some(qemu) => return Ok((Self { process, lifeline, qemu }, stderr)),
                None => io::Error::other("the guard does not say which process it started"),
            },
            Ok((News::NotStarted(reason), _)) => io::Error::other(reason),
            Ok((News::Ended { .. }, _)) => io::Error::other("it ended at once"),
            Err(error) => error,
        };
        drop(lifeline);
        let _ = process.wait();
        Err(failure)
    }

    /// What can be waited on from another thread.
    pub(crate) fn listener(&self) -> io::Result<Listener> {
        Ok(Listener { lifeline: self.lifeline.try_clone()?, qemu: self.qemu.try_clone()? })
    }

    /// Ends QEMU, if it has not ended, and waits until nothing is left.
    pub(crate) fn end(&mut self) {
        let _ = self.lifeline.shutdown(std::net::Shutdown::Write);
        let _ = self.process.wait();
        // The guard may have been killed; QEMU dies a moment after it.
        let _ = pidfd_send_signal(&self.qemu, Signal::KILL);
        let mut ended = [PollFd::new(&self.qemu, PollFlags::IN)];
        let _ = rustix::io::retry_on_intr(|| poll(&mut ended, None));
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end();
    }
}

#[derive(Debug)]
pub(crate) struct Listener {
    lifeline: UnixStream,
    qemu: OwnedFd,
}

impl Listener {
    /// Waits until QEMU has ended.
    pub(crate) fn wait(self) -> QemuEnd {
        if let Ok((News::Ended { raw_status }, _)) = link::receive::<News>(&self.lifeline) {
            return QemuEnd::Status(ExitStatus::from_raw(raw_status));
        }
        let mut ended = [PollFd::new(&self.qemu, PollFlags::IN)];
        let _ = rustix::io::retry_on_intr(|| poll(&mut ended, None));
        QemuEnd::WithItsGuard
    }
}
