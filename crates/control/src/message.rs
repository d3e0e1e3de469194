//! What travels over the control channel; `docs/control-protocol.md` tells it message by message.

use std::collections::BTreeMap;
use std::fmt;

use codeagent_common::StepId;
use serde::{Deserialize, Serialize};

use crate::ByteString;
use crate::framing::Message;

/// Both sides must speak the same one. New optional fields and message types do not change it:
/// both sides ignore fields they do not know, and report types they do not know.
pub const PROTOCOL_VERSION: u32 = 1;

/// The host has at most this much input under way to a command that does not read it.
pub const STDIN_WINDOW_BYTES: usize = 256 * 1024;

/// One run of one command. The host counts upwards and uses no id twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CommandId(pub u64);

impl fmt::Display for CommandId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// From the host to the shim.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum HostMessage {
    /// The first message; the shim answers with its own.
    Hello {
        version: u32,
    },
    Exec(Exec),
    /// Input for a command that was started with [`Stdin::Stream`].
    Stdin {
        id: CommandId,
        #[serde(default)]
        data: ByteString,
        /// Nothing follows.
        #[serde(default, skip_serializing_if = "is_false")]
        eof: bool,
    },
    /// The terminal of a command has another size now.
    Resize {
        id: CommandId,
        size: PtySize,
    },
    /// To the command's foreground processes; what it does then is up to them.
    Signal {
        id: CommandId,
        signal: i32,
    },
    /// Ends the whole process tree of a command: TERM, and KILL after its grace time.
    Cancel {
        id: CommandId,
    },
    /// Files have changed under the commands: a step was undone.
    RollbackNotify {
        step_id: StepId,
    },
    /// What time it is on the host, since the epoch; for a shim whose clock is its own.
    Clock {
        unix_ms: u64,
    },
    Ping {
        token: u64,
    },
    /// End all commands, then the shim.
    Shutdown,
}

impl Message for HostMessage {
    const TYPES: &'static [&'static str] = &[
        "hello",
        "exec",
        "stdin",
        "resize",
        "signal",
        "cancel",
        "rollback_notify",
        "clock",
        "ping",
        "shutdown",
    ];
}

/// A command to run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exec {
    pub id: CommandId,
    pub command: CommandLine,
    /// What histories call it, in place of the command line; for the host alone.
    #[serde(skip)]
    pub label: Option<String>,
    /// Added to the environment of the shim.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, ByteString>,
    /// The command gets `env` and nothing else.
    #[serde(default, skip_serializing_if = "is_false")]
    pub clear_env: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<ByteString>,
    /// Who runs it; the shim's own user if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// Run it in a terminal of this size; stdout and stderr are then one stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pty: Option<PtySize>,
    #[serde(default, skip_serializing_if = "Stdin::is_null")]
    pub stdin: Stdin,
    /// Cancelled by the shim after this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// From TERM to KILL, when it is cancelled.
    #[serde(default = "default_grace_ms", skip_serializing_if = "is_default_grace_ms")]
    pub grace_ms: u64,
    /// What becomes of the processes it leaves behind.
    #[serde(default, skip_serializing_if = "Leftovers::is_keep")]
    pub leftovers: Leftovers,
}

impl Exec {
    /// A command as it mostly is: no input, no terminal, the shim's environment and user.
    pub fn new(command: CommandLine) -> Self {
        Self {
            id: CommandId(0),
            command,
            label: None,
            env: BTreeMap::new(),
            clear_env: false,
            cwd: None,
            user: None,
            pty: None,
            stdin: Stdin::Null,
            timeout_ms: None,
            grace_ms: default_grace_ms(),
            leftovers: Leftovers::Keep,
        }
    }

    pub fn shell(line: impl Into<ByteString>) -> Self {
        Self::new(CommandLine::Shell(line.into()))
    }

    /// What it is called.
    pub fn label(&self) -> String {
        self.label.clone().unwrap_or_else(|| self.command.to_string())
    }
}

/// On the wire a string is a shell command and an array is a program with its arguments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum CommandLine {
    /// Run by `/bin/sh -c`.
    Shell(ByteString),
    /// Run as it is; the first element is the program.
    Argv(Vec<ByteString>),
}

impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(line) => f.write_str(&line.to_text()),
            Self::Argv(argv) => {
                let words: Vec<_> = argv.iter().map(ByteString::to_text).collect();
                f.write_str(&words.join(" "))
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    pub rows: u16,
    pub columns: u16,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stdin {
    /// Empty from the start. A terminal's input always streams.
    #[default]
    Null,
    /// Follows in [`HostMessage::Stdin`].
    Stream,
}

impl Stdin {
    fn is_null(&self) -> bool {
        *self == Self::Null
    }
}

/// What becomes of background processes when their command ends by itself. A cancelled command
/// takes all of them with it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Leftovers {
    /// They go on; what they print is dropped.
    #[default]
    Keep,
    /// They end before the command counts as completed.
    Kill,
}

impl Leftovers {
    fn is_keep(&self) -> bool {
        *self == Self::Keep
    }
}

/// From the shim to the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum ShimMessage {
    /// At the start, and in answer to the host's.
    Hello {
        version: u32,
        /// Differs from one shim process to the next: a new one knows nothing of old commands.
        instance: u64,
    },
    StepStarted {
        id: CommandId,
    },
    Output {
        id: CommandId,
        stream: Stream,
        data: ByteString,
    },
    /// So many bytes of input went to the command; the host may send as many more.
    StdinAccepted {
        id: CommandId,
        bytes: usize,
    },
    /// The last message of a command that had started.
    StepCompleted {
        id: CommandId,
        #[serde(flatten)]
        status: ExitStatus,
        #[serde(default, skip_serializing_if = "Cause::is_exited")]
        cause: Cause,
    },
    /// The commands have been told of the rollback, and caches are dropped.
    RollbackNoted {
        step_id: StepId,
    },
    Pong {
        token: u64,
    },
    /// Something the host asked for was not done. With the id of a command that has not started,
    /// it is the last message of that command.
    Error {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        id: Option<CommandId>,
        code: ShimErrorCode,
        message: String,
    },
}

impl Message for ShimMessage {
    const TYPES: &'static [&'static str] = &[
        "hello",
        "step_started",
        "output",
        "stdin_accepted",
        "step_completed",
        "rollback_noted",
        "pong",
        "error",
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    Stdout,
    Stderr,
}

/// How the command's first process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExitStatus {
    ExitCode(i32),
    Signal(i32),
}

impl ExitStatus {
    /// One number, as shells have it: 128 and the signal's number.
    pub fn shell_code(self) -> i32 {
        match self {
            Self::ExitCode(code) => code,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}

/// Why the command ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// By itself, or by a signal that was not ours.
    #[default]
    Exited,
    Cancelled,
    TimedOut,
}

impl Cause {
    fn is_exited(&self) -> bool {
        *self == Self::Exited
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ShimErrorCode {
    /// The line was no message; it was skipped.
    BadMessage,
    VersionMismatch,
    DuplicateCommand,
    UnknownCommand,
    TooManyCommands,
    /// The program could not be started.
    SpawnFailed,
    /// More input than [`STDIN_WINDOW_BYTES`] was under way; it was dropped.
    StdinOverflow,
    /// The command has no terminal, or takes no input.
    NotSupported,
    /// Processes of a cancelled command are still there.
    ProcessesRemain,
    /// The shim lost sight of the command.
    CommandLost,
    /// A code this side does not know.
    #[serde(other)]
    Other,
}

fn default_grace_ms() -> u64 {
    5_000
}

fn is_default_grace_ms(grace_ms: &u64) -> bool {
    *grace_ms == default_grace_ms()
}

fn is_false(flag: &bool) -> bool {
    !flag
}
