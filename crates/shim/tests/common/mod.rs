//! What the tests of the shim share: the real binary on the other end of a socket.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::collections::VecDeque;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use codeagent_control::{
    Cause, CommandId, Exec, ExitStatus, HostMessage, LineDecoder, MessageWriter, PROTOCOL_VERSION,
    ShimErrorCode, ShimMessage, Stream,
};

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A shim process and the host's end of its channel.
pub(crate) struct ShimUnderTest {
    pub(crate) process: Child,
    to_shim: Option<MessageWriter<UnixStream, HostMessage>>,
    from_shim: UnixStream,
    decoder: LineDecoder<ShimMessage>,
    /// Received while something else was waited for.
    kept: VecDeque<ShimMessage>,
    next_id: u64,
}

/// Everything a command said.
#[derive(Debug)]
pub(crate) struct Run {
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
    pub(crate) pieces: Vec<usize>,
    pub(crate) status: ExitStatus,
    pub(crate) cause: Cause,
}

impl Run {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.stdout.clone()).unwrap()
    }
}

pub(crate) fn binary() -> Command {
    Command::new(env!("CARGO_BIN_EXE_codeagent-shim"))
}

impl ShimUnderTest {
    /// A shim on a socket, with hello said on both sides.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(args: &[&str]) -> Self {
        let mut shim = Self::start_silently(args);
        shim.send(HostMessage::Hello { version: PROTOCOL_VERSION });
        for _ in 0..2 {
            let hello = shim.receive();
            assert!(matches!(hello, ShimMessage::Hello { version: PROTOCOL_VERSION, .. }));
        }
        shim
    }

    /// The shim's standard input and output are one socket, as `--fd` would have it.
    pub(crate) fn start_silently(args: &[&str]) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let stdin = OwnedFd::from(theirs.try_clone().unwrap());
        let process =
            binary().args(args).stdin(stdin).stdout(OwnedFd::from(theirs)).spawn().unwrap();
        Self::on(process, ours)
    }

    pub(crate) fn on(process: Child, channel: UnixStream) -> Self {
        Self {
            process,
            to_shim: Some(MessageWriter::new(channel.try_clone().unwrap())),
            from_shim: channel,
            decoder: LineDecoder::new(),
            kept: VecDeque::new(),
            next_id: 1,
        }
    }

    pub(crate) fn send(&mut self, message: HostMessage) {
        self.to_shim.as_mut().unwrap().write(&message).unwrap();
    }

    pub(crate) fn send_line(&mut self, line: &str) {
        std::io::Write::write_all(&mut &self.from_shim, format!("{line}\n").as_bytes()).unwrap();
    }

    pub(crate) fn exec(&mut self, mut exec: Exec) -> CommandId {
        exec.id = CommandId(self.next_id);
        self.next_id += 1;
        let id = exec.id;
        self.send(HostMessage::Exec(exec));
        id
    }

    /// Runs a shell command and waits until it has started.
    pub(crate) fn begin(&mut self, exec: Exec) -> CommandId {
        let id = self.exec(exec);
        let wanted = ShimMessage::StepStarted { id };
        self.receive_where(|message| *message == wanted);
        id
    }

    pub(crate) fn run(&mut self, exec: Exec) -> Run {
        let id = self.begin(exec);
        self.finish(id)
    }

    pub(crate) fn run_shell(&mut self, line: &str) -> Run {
        self.run(Exec::shell(line))
    }

    /// Waits for the end of a command. Everything else it says in between is part of the result.
    pub(crate) fn finish(&mut self, id: CommandId) -> Run {
        let mut run = Run {
            stdout: Vec::new(),
            stderr: Vec::new(),
            pieces: Vec::new(),
            status: ExitStatus::ExitCode(-1),
            cause: Cause::Exited,
        };
        loop {
            match self.receive_where(|message| id_of(message) == Some(id)) {
                ShimMessage::Output { stream, data, .. } => {
                    run.pieces.push(data.len());
                    match stream {
                        Stream::Stdout => run.stdout.extend_from_slice(data.as_bytes()),
                        Stream::Stderr => run.stderr.extend_from_slice(data.as_bytes()),
                    }
                }
                ShimMessage::StepCompleted { status, cause, .. } => {
                    run.status = status;
                    run.cause = cause;
                    return run;
                }
                ShimMessage::StdinAccepted { .. } => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
    }

    /// Collects a command's standard output until it holds `wanted`; the command goes on.
    pub(crate) fn output_until(&mut self, id: CommandId, wanted: &str) -> String {
        let mut text = String::new();
        while !text.contains(wanted) {
            match self.receive_where(|message| id_of(message) == Some(id)) {
                ShimMessage::Output { data, .. } => text.push_str(&data.to_text()),
                ShimMessage::StdinAccepted { .. } => {}
                other => panic!("unexpected: {other:?} after {text:?}"),
            }
        }
        text
    }

    pub(crate) fn error(&mut self) -> (Option<CommandId>, ShimErrorCode, String) {
        match self.receive_where(|message| matches!(message, ShimMessage::Error { .. })) {
            ShimMessage::Error { id, code, message } => (id, code, message),
            other => panic!("unexpected: {other:?}"),
        }
    }

    pub(crate) fn receive(&mut self) -> ShimMessage {
        self.receive_where(|_| true)
    }

    /// The first message that is wanted; others are kept for later.
    #[track_caller]
    pub(crate) fn receive_where(&mut self, wanted: impl Fn(&ShimMessage) -> bool) -> ShimMessage {
        if let Some(at) = self.kept.iter().position(&wanted) {
            return self.kept.remove(at).unwrap();
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            while let Some(message) = self.decoder.next_message() {
                let message = message.expect("a message");
                if wanted(&message) {
                    return message;
                }
                self.kept.push_back(message);
            }
            assert!(Instant::now() < deadline, "never came; kept: {:?}", self.kept);
            self.from_shim.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut chunk = [0; 64 * 1024];
            let count = self.from_shim.read(&mut chunk).expect("the shim says something");
            assert!(count > 0, "the shim closed the channel; kept: {:?}", self.kept);
            self.decoder.push(&chunk[..count]);
        }
    }

    /// The next message, if one comes in time.
    pub(crate) fn receive_before(&mut self, deadline: Instant) -> Option<ShimMessage> {
        if let Some(message) = self.decoder.next_message() {
            return Some(message.expect("a message"));
        }
        let left = deadline.saturating_duration_since(Instant::now());
        // No time at all would mean to wait for ever.
        self.from_shim.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
        let mut chunk = [0; 64 * 1024];
        match self.from_shim.read(&mut chunk) {
            Ok(count) => self.decoder.push(&chunk[..count]),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock, "{error}"),
        }
        self.decoder.next_message().map(|message| message.expect("a message"))
    }

    /// The host goes away.
    pub(crate) fn hang_up(&mut self) {
        self.to_shim = None;
        self.from_shim.shutdown(std::net::Shutdown::Both).unwrap();
    }

    pub(crate) fn wait_for_exit(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        wait_until("the shim ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for ShimUnderTest {
    /// No test leaves a process behind.
    fn drop(&mut self) {
        let _ = self.from_shim.shutdown(std::net::Shutdown::Both);
        let deadline = Instant::now() + PATIENCE;
        while matches!(self.process.try_wait(), Ok(None)) {
            if Instant::now() > deadline {
                let _ = self.process.kill();
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

pub(crate) fn id_of(message: &ShimMessage) -> Option<CommandId> {
    match message {
        ShimMessage::StepStarted { id }
        | ShimMessage::Output { id, .. }
        | ShimMessage::StdinAccepted { id, .. }
        | ShimMessage::StepCompleted { id, .. } => Some(*id),
        ShimMessage::Error { id, .. } => *id,
        _ => None,
    }
}

/// Polls until `condition` holds.
#[track_caller]
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "never happened: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a process is there and has not ended.
pub(crate) fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().and_then(|rest| rest.trim_start().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// The number in a file that a command writes, once it is there.
pub(crate) fn pid_from(file: &Path) -> i32 {
    let mut pid = None;
    wait_until("a pid is written", || {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|line| line.parse().ok());
        pid.is_some()
    });
    pid.unwrap()
}

/// All processes below one, ended ones included: `(pid, state)`.
pub(crate) fn children(parent: u32) -> Vec<(i32, char)> {
    let stats = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace();
        let state = fields.next()?.chars().next()?;
        (fields.next()?.parse() == Ok(parent)).then_some((pid, state))
    });
    stats.collect()
}

pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}
