//! A running command, as the thread sees it that reads the channel.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Mutex, MutexGuard, PoisonError};

use codeagent_control::{
    Exec, HostMessage, MessageWriter, PtySize, STDIN_WINDOW_BYTES, ShimErrorCode,
};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, kill_process_group};

use crate::streams::{self, Streams};

/// The thread that reads the channel never waits for a command: everything here is quick.
#[derive(Debug)]
pub(crate) struct RunningCommand {
    pub(crate) supervisor: Pid,
    orders: Mutex<MessageWriter<UnixStream, HostMessage>>,
    terminal: Option<OwnedFd>,
    takes_input: bool,
    input: Mutex<Input>,
    /// Wakes the courier when there is input.
    bell: UnixStream,
}

/// Input on its way to the command; never more than the window of the protocol.
#[derive(Debug, Default)]
pub(crate) struct Input {
    pub(crate) bytes: Vec<u8>,
    pub(crate) eof: bool,
    /// Taken by the courier and not written yet.
    pub(crate) taken: usize,
}

/// What the courier of a command gets.
#[derive(Debug)]
pub(crate) struct Luggage {
    pub(crate) supervisor: Child,
    pub(crate) reports: UnixStream,
    pub(crate) streams: Streams,
    pub(crate) bell: UnixStream,
}

/// Starts a supervisor for `exec`. One at a time: the supervisor's socket is inheritable for a
/// moment, and must not be inherited by another one.
pub(crate) fn start(exec: Exec, program: &Path) -> io::Result<(RunningCommand, Luggage)> {
    let (mut streams, ends) = streams::open(&exec)?;
    let (ours, theirs) = UnixStream::pair()?;
    fcntl_setfd(&theirs, FdFlags::empty())?;
    let supervisor = Command::new(program)
        .arg("--supervise")
        .arg(theirs.as_raw_fd().to_string())
        .stdin(ends.stdin)
        .stdout(ends.stdout)
        .stderr(ends.stderr)
        .spawn()?;
    drop(theirs);
    let (bell, courier_bell) = UnixStream::pair()?;
    bell.set_nonblocking(true)?;
    courier_bell.set_nonblocking(true)?;
    let command = RunningCommand {
        supervisor: Pid::from_child(&supervisor),
        orders: Mutex::new(MessageWriter::new(ours.try_clone()?)),
        terminal: streams.terminal.take(),
        takes_input: streams.stdin.is_some(),
        input: Mutex::default(),
        bell,
    };
    command.order(HostMessage::Exec(exec));
    Ok((command, Luggage { supervisor, reports: ours, streams, bell: courier_bell }))
}

impl RunningCommand {
    pub(crate) fn cancel(&self, order: HostMessage) {
        self.order(order);
    }

    /// To the processes in the foreground of its terminal, or else to its process group.
    pub(crate) fn signal(&self, order: HostMessage) {
        if let HostMessage::Signal { signal, .. } = order
            && let Some(terminal) = &self.terminal
            && let Ok(group) = rustix::termios::tcgetpgrp(terminal)
            && let Some(signal) = Signal::from_named_raw(signal)
        {
            let _ = kill_process_group(group, signal);
            return;
        }
        self.order(order);
    }

    pub(crate) fn resize(&self, size: PtySize) -> Result<(), ShimErrorCode> {
        let terminal = self.terminal.as_ref().ok_or(ShimErrorCode::NotSupported)?;
        streams::set_size(terminal, size).map_err(|_| ShimErrorCode::NotSupported)
    }

    pub(crate) fn push_input(&self, data: &[u8], eof: bool) -> Result<(), ShimErrorCode> {
        if !self.takes_input {
            return Err(ShimErrorCode::NotSupported);
        }
        let mut input = self.input();
        if input.bytes.len() + input.taken + data.len() > STDIN_WINDOW_BYTES {
            return Err(ShimErrorCode::StdinOverflow);
        }
        input.bytes.extend_from_slice(data);
        input.eof |= eof;
        drop(input);
        // Full means that it has been rung often enough.
        let _ = io::Write::write(&mut &self.bell, b"!");
        Ok(())
    }

    pub(crate) fn input(&self) -> MutexGuard<'_, Input> {
        self.input.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A supervisor that is gone takes no orders and needs none.
    fn order(&self, order: HostMessage) {
        let mut orders = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = orders.write(&order);
    }
}
