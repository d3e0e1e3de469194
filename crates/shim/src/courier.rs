//! Carries the streams of one command between it and the host.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Child;
use std::sync::Arc;
use std::time::Instant;

use codeagent_control::{CommandId, LineDecoder, ShimErrorCode, ShimMessage, Stream};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::command::{Luggage, RunningCommand};
use crate::outbox::Outbox;
use crate::output_buffer::{FLUSH_BYTES, OutputBuffer};

/// Ctrl-D: the end of input in a terminal.
const END_OF_TRANSMISSION: u8 = 4;
/// A pipe holds this much unless somebody made it larger.
const PIPE_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub(crate) struct Courier {
    id: CommandId,
    command: Arc<RunningCommand>,
    outbox: Arc<Outbox>,
    supervisor: Child,
    reports: UnixStream,
    decoder: LineDecoder<ShimMessage>,
    outputs: Vec<Output>,
    stdin: Option<OwnedFd>,
    is_terminal: bool,
    pending_input: VecDeque<u8>,
    input_ended: bool,
    bell: UnixStream,
}

#[derive(Debug)]
struct Output {
    stream: Stream,
    fd: OwnedFd,
    buffer: OutputBuffer,
    ended: bool,
}

/// How the supervisor's last report read.
#[derive(Debug)]
pub(crate) enum LastReport {
    Completed(ShimMessage),
    NotStarted(ShimMessage),
    /// The supervisor was killed.
    Lost,
}

impl Courier {
    pub(crate) fn new(
        id: CommandId,
        command: Arc<RunningCommand>,
        outbox: Arc<Outbox>,
        luggage: Luggage,
        is_terminal: bool,
    ) -> Self {
        let Luggage { supervisor, reports, streams, bell } = luggage;
        let output = |(stream, fd)| {
            let buffer = OutputBuffer::default();
            Output { stream, fd, buffer, ended: false }
        };
        Self {
            id,
            command,
            outbox,
            supervisor,
            reports,
            decoder: LineDecoder::new(),
            outputs: streams.outputs.into_iter().map(output).collect(),
            stdin: streams.stdin,
            is_terminal,
            pending_input: VecDeque::new(),
            input_ended: false,
            bell,
        }
    }

    /// Carries until the command is completed, and everything that it printed until then is sent.
    pub(crate) fn carry(&mut self) -> LastReport {
        match self.next_report() {
            Some(started @ ShimMessage::StepStarted { .. }) => self.outbox.send(started),
            Some(other) => return LastReport::NotStarted(other),
            None => return LastReport::Lost,
        }
        let _ = self.reports.set_nonblocking(true);
        let last = loop {
            match self.wait_and_carry() {
                None => {}
                Some(ShimMessage::StepCompleted { id, status, cause }) => {
                    break LastReport::Completed(ShimMessage::StepCompleted { id, status, cause });
                }
                Some(ShimMessage::Error { code: ShimErrorCode::CommandLost, .. }) => {
                    break LastReport::Lost;
                }
                Some(other) => self.outbox.send(other),
            }
        };
        self.drain();
        last
    }

    /// Keeps what the command left behind from blocking or breaking on its output, until the last
    /// of it is gone and the supervisor with it. Nobody is there any more to read it. False if the
    /// supervisor was killed: then processes may be left.
    pub(crate) fn stay_for_leftovers(&mut self) -> bool {
        self.stdin = None;
        while !self.discard_output() {}
        // Only after this have its children become ours: its streams close earlier.
        self.supervisor.wait().is_ok_and(|status| status.success())
    }

    /// Waits for output of leftovers and drops it. True when the supervisor is gone.
    fn discard_output(&mut self) -> bool {
        let mut fds = vec![PollFd::new(&self.reports, PollFlags::IN)];
        fds.extend(self.outputs.iter().map(|output| PollFd::new(&output.fd, PollFlags::IN)));
        if poll(&mut fds, None).is_err() {
            return false;
        }
        let has_report = !fds[0].revents().is_empty();
        let mut void = [0; 16 * 1024];
        for output in &mut self.outputs {
            output.ended |= output.read(&mut void) == Some(0);
        }
        self.outputs.retain(|output| !output.ended);
        has_report && self.read_reports().is_some()
    }

    /// Waits for something to do, and does it. Returns what the supervisor reports.
    fn wait_and_carry(&mut self) -> Option<ShimMessage> {
        if let Some(report) = self.decoder.next_message() {
            return report.ok();
        }
        let ready = self.wait();
        if ready.bell {
            self.take_input();
        }
        self.feed();
        let now = Instant::now();
        for index in 0..self.outputs.len() {
            self.outputs[index].fill(now);
            self.send_due(index, now);
        }
        self.outputs.retain(|output| !output.ended);
        if ready.report { self.read_reports() } else { None }
    }

    fn wait(&mut self) -> Ready {
        let deadline = self.outputs.iter().filter_map(|output| output.buffer.deadline()).min();
        let timeout = deadline.map(|at| {
            let left = at.saturating_duration_since(Instant::now());
            Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() }
        });
        let mut fds =
            vec![PollFd::new(&self.reports, PollFlags::IN), PollFd::new(&self.bell, PollFlags::IN)];
        fds.extend(self.outputs.iter().map(|output| PollFd::new(&output.fd, PollFlags::IN)));
        if let Some(stdin) = self.stdin.as_ref().filter(|_| !self.pending_input.is_empty()) {
            fds.push(PollFd::new(stdin, PollFlags::OUT));
        }
        let _ = poll(&mut fds, timeout.as_ref());
        Ready { report: !fds[0].revents().is_empty(), bell: !fds[1].revents().is_empty() }
    }

    fn send_due(&mut self, index: usize, now: Instant) {
        let output = &mut self.outputs[index];
        if (output.ended || output.buffer.is_due(now))
            && let Some(bytes) = output.buffer.take()
        {
            let (id, stream) = (self.id, output.stream);
            self.outbox.send(ShimMessage::Output { id, stream, data: bytes.into() });
        }
    }

    /// Everything that was written before the command ended is in its pipes now, and no more than
    /// they hold: what comes after that is from processes it left behind.
    fn drain(&mut self) {
        for index in 0..self.outputs.len() {
            let mut left = self.outputs[index].capacity();
            while left > 0 && !self.outputs[index].ended {
                let now = Instant::now();
                let read = self.outputs[index].fill(now);
                self.send_due(index, now);
                if read == 0 {
                    break;
                }
                left = left.saturating_sub(read);
            }
            if let Some(bytes) = self.outputs[index].buffer.take() {
                let (id, stream) = (self.id, self.outputs[index].stream);
                self.outbox.send(ShimMessage::Output { id, stream, data: bytes.into() });
            }
        }
        self.outputs.retain(|output| !output.ended);
    }

    fn take_input(&mut self) {
        let mut rings = [0; 64];
        while matches!((&self.bell).read(&mut rings), Ok(count) if count > 0) {}
        let mut input = self.command.input();
        input.taken += input.bytes.len();
        self.pending_input.extend(std::mem::take(&mut input.bytes));
        self.input_ended |= input.eof;
    }

    /// Gives the command as much input as it takes now.
    fn feed(&mut self) {
        let Some(stdin) = &self.stdin else { return self.accepted(self.pending_input.len()) };
        let mut fed = 0;
        let mut broken = false;
        while !self.pending_input.is_empty() {
            match rustix::io::write(stdin, self.pending_input.as_slices().0) {
                Ok(count) => {
                    self.pending_input.drain(..count);
                    fed += count;
                }
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => {
                    broken = true;
                    break;
                }
            }
        }
        if broken {
            fed += self.pending_input.len();
        }
        let done = self.input_ended && self.pending_input.is_empty();
        if done && self.is_terminal {
            let _ = rustix::io::write(stdin, &[END_OF_TRANSMISSION]);
        }
        if done || broken {
            self.stdin = None;
        }
        self.accepted(fed);
    }

    /// Input went to the command, or nobody wants it any more.
    fn accepted(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        if self.stdin.is_none() {
            self.pending_input.clear();
        }
        self.command.input().taken -= bytes;
        self.outbox.send(ShimMessage::StdinAccepted { id: self.id, bytes });
    }

    /// Waits for the first report.
    fn next_report(&mut self) -> Option<ShimMessage> {
        loop {
            if let Some(report) = self.decoder.next_message() {
                return report.ok();
            }
            let mut chunk = [0; 1024];
            match self.reports.read(&mut chunk) {
                Ok(0) => return None,
                Ok(count) => self.decoder.push(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return None,
            }
        }
    }

    fn read_reports(&mut self) -> Option<ShimMessage> {
        let mut chunk = [0; 1024];
        match self.reports.read(&mut chunk) {
            Ok(count) if count > 0 => {
                self.decoder.push(&chunk[..count]);
                None
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
            _ => Some(self.lost()),
        }
    }

    /// What the host is told when the supervisor was killed.
    pub(crate) fn lost(&self) -> ShimMessage {
        let message = "the supervisor of the command was killed".to_owned();
        ShimMessage::Error { id: Some(self.id), code: ShimErrorCode::CommandLost, message }
    }
}

#[derive(Debug)]
struct Ready {
    report: bool,
    bell: bool,
}

impl Output {
    /// Reads what is there, as far as the buffer takes it.
    fn fill(&mut self, now: Instant) -> usize {
        let mut chunk = [0; FLUSH_BYTES];
        let room = self.buffer.room();
        match self.read(&mut chunk[..room]) {
            Some(0) => self.ended = true,
            Some(count) => {
                self.buffer.push(&chunk[..count], now);
                return count;
            }
            None => {}
        }
        0
    }

    /// `Some(0)` at the end, `None` if nothing is there now.
    fn read(&self, chunk: &mut [u8]) -> Option<usize> {
        match rustix::io::read(&self.fd, chunk) {
            Ok(count) => Some(count),
            Err(Errno::AGAIN | Errno::INTR) => None,
            // A terminal ends with EIO when nobody has it open.
            Err(_) => Some(0),
        }
    }

    fn capacity(&self) -> usize {
        #[cfg(target_os = "linux")]
        if let Ok(size) = rustix::pipe::fcntl_getpipe_size(self.fd.as_fd()) {
            return size;
        }
        PIPE_BYTES
    }
}

/// Writes what the kernel holds back to the filesystems of these directories.
pub(crate) fn sync(dirs: &[PathBuf]) {
    for dir in dirs {
        let Ok(dir) = std::fs::File::open(dir) else { continue };
        #[cfg(target_os = "linux")]
        let _ = rustix::fs::syncfs(&dir);
        #[cfg(not(target_os = "linux"))]
        let _ = dir.sync_all();
    }
}
