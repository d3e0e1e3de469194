//! The host's side of the conversation. No I/O, no clock: bytes and time come from outside. It knows
//! commands and no steps: whoever runs a command opens its step before, and closes it after its end.

mod deadlines;
mod event;
mod receive;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use codeagent_common::StepId;

pub use event::{Event, Outcome, Violation};

use crate::error::{ControlError, Result};
use crate::message::{
    CommandId, Exec, HostMessage, PROTOCOL_VERSION, PtySize, STDIN_WINDOW_BYTES, Stdin,
};
use crate::{ByteString, encode};

/// How long past its deadline the shim may take to report the end of a command.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// Runs commands through a shim.
///
/// The owner carries bytes and time: it hands every message to [`receive`](Self::receive), sends
/// what [`next_message`](Self::next_message) gives, calls [`advance`](Self::advance) at
/// [`next_deadline`](Self::next_deadline), and looks at [`next_event`](Self::next_event) after each.
#[derive(Debug)]
pub struct ControlHost {
    link: Link,
    next_id: u64,
    commands: BTreeMap<CommandId, Command>,
    /// Since when the shim cannot answer, because whatever it runs in was stopped.
    still_since: Option<Instant>,
    outgoing: VecDeque<HostMessage>,
    events: VecDeque<Event>,
}

/// The state of the channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    AwaitingHello,
    Ready { instance: u64 },
    Incompatible { shim: u32 },
    Closed,
}

/// A command that has not ended.
#[derive(Debug)]
struct Command {
    started: bool,
    grace: Duration,
    /// Input under way, or `None` if it takes none.
    stdin_unaccepted: Option<usize>,
    /// When it is to end, unless it has been told so already.
    times_out_at: Option<Instant>,
    /// It was told to end because its time was up.
    timed_out: bool,
    /// When to stop waiting for the shim to report its end.
    give_up_at: Option<Instant>,
}

impl Default for ControlHost {
    fn default() -> Self {
        Self::new()
    }
}

impl ControlHost {
    /// A new conversation; its first message is `hello`.
    pub fn new() -> Self {
        Self {
            link: Link::AwaitingHello,
            next_id: 1,
            commands: BTreeMap::new(),
            still_since: None,
            outgoing: VecDeque::from([HostMessage::Hello { version: PROTOCOL_VERSION }]),
            events: VecDeque::new(),
        }
    }

    /// Runs a command; `exec.id` is chosen here.
    pub fn exec(&mut self, mut exec: Exec, now: Instant) -> Result<CommandId> {
        self.expect_ready()?;
        let id = CommandId(self.next_id);
        exec.id = id;
        let grace = Duration::from_millis(exec.grace_ms);
        let timeout = exec.timeout_ms.map(Duration::from_millis);
        let times_out_at = timeout.and_then(|timeout| now.checked_add(timeout));
        let takes_input = exec.stdin == Stdin::Stream || exec.pty.is_some();
        let message = HostMessage::Exec(exec);
        // One that cannot be sent runs nothing.
        encode(&message)?;
        self.next_id += 1;
        let stdin_unaccepted = takes_input.then_some(0);
        let command = Command {
            started: false,
            grace,
            stdin_unaccepted,
            times_out_at,
            timed_out: false,
            give_up_at: None,
        };
        self.commands.insert(id, command);
        self.outgoing.push_back(message);
        Ok(id)
    }

    /// Input for a command; at most [`stdin_room`](Self::stdin_room) bytes at a time.
    pub fn send_stdin(&mut self, id: CommandId, data: ByteString, eof: bool) -> Result<()> {
        let room_bytes = self.stdin_room(id)?;
        if data.len() > room_bytes {
            return Err(ControlError::StdinFull { id, room_bytes, size_bytes: data.len() });
        }
        if let Some(unaccepted) = self.command(id)?.stdin_unaccepted.as_mut() {
            *unaccepted += data.len();
        }
        self.outgoing.push_back(HostMessage::Stdin { id, data, eof });
        Ok(())
    }

    /// How much input a command takes now. None at all if it was started without.
    pub fn stdin_room(&mut self, id: CommandId) -> Result<usize> {
        let unaccepted = self.command(id)?.stdin_unaccepted;
        Ok(unaccepted.map_or(0, |bytes| STDIN_WINDOW_BYTES.saturating_sub(bytes)))
    }

    pub fn resize(&mut self, id: CommandId, size: PtySize) -> Result<()> {
        self.command(id)?;
        self.outgoing.push_back(HostMessage::Resize { id, size });
        Ok(())
    }

    pub fn signal(&mut self, id: CommandId, signal: i32) -> Result<()> {
        self.command(id)?;
        self.outgoing.push_back(HostMessage::Signal { id, signal });
        Ok(())
    }

    /// Ends a command and everything it started.
    pub fn cancel(&mut self, id: CommandId, now: Instant) -> Result<()> {
        let command = self.command(id)?;
        command.times_out_at = None;
        let give_up_at = now.checked_add(command.grace.saturating_add(PATIENCE));
        command.give_up_at = command.give_up_at.or(give_up_at);
        self.outgoing.push_back(HostMessage::Cancel { id });
        Ok(())
    }

    /// Whatever the shim runs in stands still from now on: nothing is expected of it until it
    /// [goes on](Self::go_on).
    pub fn stand_still(&mut self, now: Instant) {
        self.still_since.get_or_insert(now);
    }

    pub fn is_still(&self) -> bool {
        self.still_since.is_some()
    }

    pub fn go_on(&mut self, now: Instant) {
        let Some(since) = self.still_since.take() else { return };
        let meanwhile = now.saturating_duration_since(since);
        for command in self.commands.values_mut() {
            command.give_up_at = command.give_up_at.map(|at| at + meanwhile);
        }
    }

    /// Tells running commands that files have changed under them.
    pub fn notify_rollback(&mut self, step_id: StepId) -> Result<()> {
        self.expect_ready()?;
        self.outgoing.push_back(HostMessage::RollbackNotify { step_id });
        Ok(())
    }

    /// Tells the shim what time it is.
    pub fn tell_time(&mut self, unix_ms: u64) -> Result<()> {
        self.expect_ready()?;
        self.outgoing.push_back(HostMessage::Clock { unix_ms });
        Ok(())
    }

    pub fn ping(&mut self, token: u64) -> Result<()> {
        self.expect_ready()?;
        self.outgoing.push_back(HostMessage::Ping { token });
        Ok(())
    }

    /// Ends the shim and all commands; their ends are still reported.
    pub fn shut_down(&mut self) -> Result<()> {
        self.expect_ready()?;
        self.outgoing.push_back(HostMessage::Shutdown);
        Ok(())
    }

    /// The next message to send.
    pub fn next_message(&mut self) -> Option<HostMessage> {
        self.outgoing.pop_front()
    }

    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    pub fn is_ready(&self) -> bool {
        matches!(self.link, Link::Ready { .. })
    }

    fn expect_ready(&self) -> Result<()> {
        match self.link {
            Link::Ready { .. } => Ok(()),
            Link::AwaitingHello => Err(ControlError::NotReady),
            Link::Incompatible { shim } => {
                Err(ControlError::VersionMismatch { host: PROTOCOL_VERSION, shim })
            }
            Link::Closed => Err(ControlError::Disconnected),
        }
    }

    fn command(&mut self, id: CommandId) -> Result<&mut Command> {
        self.commands.get_mut(&id).ok_or(ControlError::UnknownCommand { id })
    }

    fn violation(&mut self, violation: Violation) {
        self.events.push_back(Event::Violation(violation));
    }
}
