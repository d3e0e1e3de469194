//! Running one command through the shim of a sandbox.

use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::thread;
use std::time::Instant;
use std::{convert::Infallible, io};

use codeagent_common::StepId;
use codeagent_control::{
    Activity, Attribution, ByteString, CommandId, ControlError, ControlHost, Event, Exec,
    HostConfig, LineFault, MessageReader, MessageWriter, Outcome, PtySize, ShimMessage, StepSink,
    Stream,
};

/// How many messages may wait for the thread that runs the command.
const NEWS_WAITING: usize = 16;

/// What can be asked for while a command runs.
#[derive(Debug)]
pub enum Order {
    Input {
        data: Vec<u8>,
        eof: bool,
    },
    Resize(PtySize),
    Signal(i32),
    /// Ends the command and everything it started.
    Cancel,
}

/// What the thread that runs the command hears.
enum News {
    Message(Result<ShimMessage, LineFault>),
    Closed,
    Order(Order),
}

/// Runs `exec` and returns when it has ended. Steps are the caller's affair.
pub fn converse(
    channel: &UnixStream,
    exec: Exec,
    orders: Receiver<Order>,
    mut output: impl FnMut(Stream, &[u8]),
) -> Result<Outcome, ConversationError> {
    // A command that says more than its reader takes has to wait.
    let (news, inbox) = mpsc::sync_channel(NEWS_WAITING);
    let reader = channel.try_clone()?;
    let hear = |news: SyncSender<News>| move || listen(MessageReader::new(reader), &news);
    thread::Builder::new().name("shim-reports".into()).spawn(hear(news.clone()))?;
    thread::Builder::new().name("shim-orders".into()).spawn(move || {
        for order in orders {
            if news.send(News::Order(order)).is_err() {
                return;
            }
        }
    })?;
    let now = Instant::now();
    let mut talk = Talk {
        host: ControlHost::new(NoSteps, HostConfig::default(), now),
        to_shim: MessageWriter::new(channel.try_clone()?),
        exec: Some(exec),
        id: None,
        input: Vec::new(),
        input_ends: false,
        is_cancelled: false,
    };
    loop {
        // However much it says: its time passes.
        talk.host.advance(Instant::now());
        talk.send()?;
        while let Some(event) = talk.host.next_event() {
            match event {
                Event::Ready => talk.begin()?,
                Event::Output { stream, data, .. } => output(stream, data.as_bytes()),
                Event::Ended { outcome, .. } => return Ok(outcome),
                Event::StdinRoom { .. } => talk.feed()?,
                Event::Failed(error) => return Err(error.into()),
                _ => {}
            }
        }
        talk.send()?;
        let wait = talk.host.next_deadline().saturating_duration_since(Instant::now());
        match inbox.recv_timeout(wait) {
            Ok(News::Message(message)) => talk.host.receive(message, Instant::now()),
            Ok(News::Closed) | Err(RecvTimeoutError::Disconnected) => {
                talk.host.channel_closed(Instant::now());
            }
            Ok(News::Order(order)) => talk.take(order)?,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ConversationError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the sandbox does not answer: {0}")]
    Io(#[from] io::Error),
}

struct Talk {
    host: ControlHost<NoSteps>,
    to_shim: MessageWriter<UnixStream, codeagent_control::HostMessage>,
    /// Until it has begun.
    exec: Option<Exec>,
    id: Option<CommandId>,
    /// Not sent yet.
    input: Vec<u8>,
    input_ends: bool,
    /// Before it began.
    is_cancelled: bool,
}

impl Talk {
    fn begin(&mut self) -> Result<(), ControlError> {
        if let Some(exec) = self.exec.take() {
            self.id = Some(self.host.exec(exec, Attribution::Background, Instant::now())?);
            self.feed()?;
        }
        match self.id {
            Some(id) if self.is_cancelled => self.host.cancel(id, Instant::now()),
            _ => Ok(()),
        }
    }

    fn take(&mut self, order: Order) -> Result<(), ControlError> {
        if let Order::Input { data, eof } = order {
            self.input.extend(data);
            self.input_ends |= eof;
            return self.feed();
        }
        let Some(id) = self.id else {
            self.is_cancelled |= matches!(order, Order::Cancel);
            return Ok(());
        };
        match order {
            Order::Resize(size) => self.host.resize(id, size),
            Order::Signal(signal) => self.host.signal(id, signal),
            Order::Cancel => self.host.cancel(id, Instant::now()),
            Order::Input { .. } => Ok(()),
        }
    }

    /// Sends as much input as the command takes.
    fn feed(&mut self) -> Result<(), ControlError> {
        let Some(id) = self.id else { return Ok(()) };
        let room = self.host.stdin_room(id)?.min(self.input.len());
        let ends = self.input_ends && room == self.input.len();
        if room == 0 && !ends {
            return Ok(());
        }
        let rest = self.input.split_off(room);
        let data = std::mem::replace(&mut self.input, rest);
        if ends {
            self.input_ends = false;
        }
        self.host.send_stdin(id, ByteString::from(data), ends)
    }

    fn send(&mut self) -> io::Result<()> {
        while let Some(message) = self.host.next_message() {
            // A shim that has gone is noticed by the thread that reads.
            if self.to_shim.write(&message).is_err() {
                break;
            }
        }
        Ok(())
    }
}

fn listen(mut messages: MessageReader<UnixStream, ShimMessage>, news: &SyncSender<News>) {
    while let Ok(Some(message)) = messages.read() {
        if news.send(News::Message(message)).is_err() {
            return;
        }
    }
    let _ = news.send(News::Closed);
}

/// Steps are opened and closed by the executor.
#[derive(Debug)]
struct NoSteps;

impl StepSink for NoSteps {
    type Closed = ();
    type Error = Infallible;

    fn open_step(&mut self, _: &str) -> Result<StepId, Infallible> {
        Ok(StepId(0))
    }

    fn close_step(&mut self, _: StepId, _: Option<i32>) -> Result<(), Infallible> {
        Ok(())
    }

    fn close_quiet_ambient_step(&mut self) -> Result<Option<()>, Infallible> {
        Ok(None)
    }

    fn activity(&self) -> Activity {
        Activity::default()
    }
}
