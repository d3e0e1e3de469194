//! A line to a shim: carries bytes and time for [`ControlHost`](crate::ControlHost), for any number of
//! commands at once.
//!
//! ```text
//!      ◄── writer ◄── outbox ◄──┐
//! shim ──► reader ──► operator ─┴► reports of each command ──► whoever runs it
//!            ▲           ▲                                          │
//!            └── room ◄──┼──────── what was read of them ◄──────────┤
//!                        └──────── orders ◄─────────────────────────┘
//! ```
//!
//! Who does not read the output of a command holds up the reader, and so the shim, in the end; but
//! never the operator, so that a cancel always gets through. Nor does a shim that does not read what
//! it is sent: the operator hands it to a writer, and after a while gives the shim up.

mod operator;
mod outbox;
mod room;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant, SystemTime};
use std::{fmt, io};

use codeagent_common::StepId;

use crate::error::{ControlError, LineFault};
use crate::framing::MessageReader;
use crate::host::Outcome;
use crate::message::{Exec, PtySize, ShimMessage, Stream};
use operator::Operator;
use outbox::Outbox;
use room::Room;

/// How many messages may wait for the operator.
const NEWS_WAITING: usize = 16;

/// What can be asked for while a command runs.
#[derive(Debug)]
pub enum Order {
    Input {
        data: Vec<u8>,
        eof: bool,
    },
    /// Is answered when all input before it has gone to the command, so that whoever has much of it
    /// can wait; never, if the command ends first.
    TellWhenTaken(Sender<()>),
    Resize(PtySize),
    Signal(i32),
    /// Ends the command and everything it started.
    Cancel,
}

#[derive(Debug, thiserror::Error)]
pub enum LineError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error("the sandbox does not answer: {0}")]
    Io(#[from] io::Error),
}

/// A conversation with a shim, for as long as it lasts. Steps are its owner's affair.
pub struct Line {
    news: SyncSender<News>,
    room: Arc<Room>,
    /// Commands are told apart by it before the shim knows them.
    last_call: AtomicU64,
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Line")
    }
}

/// What the operator hears.
enum News {
    Message(Result<ShimMessage, LineFault>),
    Closed,
    Run(u64, Box<Exec>, Sender<Report>),
    Order(u64, Order),
    RollbackNotify(StepId),
    Clock(u64),
    StandStill,
    GoOn,
    /// Whoever waits for the shim to say hello.
    TellWhenReady(Sender<Result<(), ControlError>>),
    ShutDown,
}

/// What whoever runs a command hears.
enum Report {
    Output(Stream, crate::ByteString),
    Ended(Outcome),
    Failed(ControlError),
}

impl Line {
    /// Says hello. Commands wait until the shim has answered.
    pub fn open(
        from_shim: impl Read + Send + 'static,
        to_shim: impl Write + Send + 'static,
    ) -> io::Result<Self> {
        let (news, inbox) = mpsc::sync_channel(NEWS_WAITING);
        let room = Arc::new(Room::default());
        let operator = Operator::new(Outbox::open(to_shim)?, Arc::clone(&room));
        thread::Builder::new().name("shim-line".into()).spawn(move || operator.work(&inbox))?;
        let (to_operator, gate) = (news.clone(), Arc::clone(&room));
        thread::Builder::new()
            .name("shim-reports".into())
            .spawn(move || listen(MessageReader::new(from_shim), &to_operator, &gate))?;
        Ok(Self { news, room, last_call: AtomicU64::new(0) })
    }

    /// As [`Line::open`], over a stream that goes both ways.
    #[cfg(unix)]
    pub fn over(stream: &std::os::unix::net::UnixStream) -> io::Result<Self> {
        Self::open(stream.try_clone()?, stream.try_clone()?)
    }

    /// Waits for the shim's hello.
    pub fn wait_until_ready(&self, patience: Duration) -> Result<(), LineError> {
        let (tell, told) = mpsc::channel();
        self.tell(News::TellWhenReady(tell))?;
        match told.recv_timeout(patience) {
            Ok(answer) => Ok(answer?),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(ControlError::NotReady.into()),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err(ControlError::Disconnected.into()),
        }
    }

    /// Runs a command and returns when it has ended.
    pub fn run(
        &self,
        exec: Exec,
        orders: Receiver<Order>,
        mut output: impl FnMut(Stream, &[u8]),
    ) -> Result<Outcome, LineError> {
        let call = self.last_call.fetch_add(1, Ordering::Relaxed) + 1;
        let (report, reports) = mpsc::channel();
        self.tell(News::Run(call, Box::new(exec), report))?;
        let news = self.news.clone();
        thread::Builder::new().name("shim-orders".into()).spawn(move || {
            for order in orders {
                if news.send(News::Order(call, order)).is_err() {
                    return;
                }
            }
        })?;
        let _leftovers = Leftovers { room: &self.room, reports: &reports };
        for report in &reports {
            match report {
                Report::Output(stream, data) => {
                    output(stream, data.as_bytes());
                    self.room.give_back(data.len());
                }
                Report::Ended(outcome) => return Ok(outcome),
                Report::Failed(error) => return Err(error.into()),
            }
        }
        Err(ControlError::Disconnected.into())
    }

    /// Tells running commands that files have changed under them.
    pub fn notify_rollback(&self, step: StepId) -> Result<(), LineError> {
        self.tell(News::RollbackNotify(step))
    }

    /// Tells a shim with a clock of its own what time it is; commands that are run afterwards find it
    /// so.
    pub fn tell_time(&self, now: SystemTime) -> Result<(), LineError> {
        let since = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        self.tell(News::Clock(u64::try_from(since.as_millis()).unwrap_or(u64::MAX)))
    }

    /// Whatever the shim runs in stands still: it has all the time it needs, until it
    /// [goes on](Self::go_on).
    pub fn stand_still(&self) -> Result<(), LineError> {
        self.tell(News::StandStill)
    }

    pub fn go_on(&self) -> Result<(), LineError> {
        self.tell(News::GoOn)
    }

    /// Ends the shim, with all commands.
    pub fn shut_down(&self) -> Result<(), LineError> {
        self.tell(News::ShutDown)
    }

    fn tell(&self, news: News) -> Result<(), LineError> {
        self.news.send(news).map_err(|_| ControlError::Disconnected.into())
    }
}

/// What nobody reads any more takes no room.
struct Leftovers<'a> {
    room: &'a Room,
    reports: &'a Receiver<Report>,
}

impl Drop for Leftovers<'_> {
    fn drop(&mut self) {
        for report in self.reports.try_iter() {
            if let Report::Output(_, data) = report {
                self.room.give_back(data.len());
            }
        }
    }
}

fn listen(
    mut messages: MessageReader<impl Read, ShimMessage>,
    operator: &SyncSender<News>,
    room: &Room,
) {
    while let Ok(Some(message)) = messages.read() {
        if operator.send(News::Message(message)).is_err() {
            return;
        }
        room.wait_for();
    }
    let _ = operator.send(News::Closed);
}

/// When to look at the clock again.
fn until(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}
