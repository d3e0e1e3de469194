//! The thread between a shim and those who run commands through it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use codeagent_common::ByteString;

use super::outbox::Outbox;
use super::room::Room;
use super::{News, Order, Report, until};
use crate::error::ControlError;
use crate::framing::encode;
use crate::host::{ControlHost, Event};
use crate::message::{CommandId, Exec};

/// How long a shim may leave lying what it is sent.
const UNREAD_PATIENCE: Duration = Duration::from_secs(10);

pub(super) struct Operator {
    host: ControlHost,
    to_shim: Outbox,
    /// Before that it could not read.
    went_on_at: Instant,
    /// Until the shim has said hello.
    waiting_calls: Vec<(u64, Box<Exec>)>,
    waiting_for_ready: Vec<Sender<Result<(), ControlError>>>,
    /// By the number of their call.
    commands: HashMap<u64, Command>,
    calls: HashMap<CommandId, u64>,
    room: Arc<Room>,
    /// Why nothing can be run any more.
    failed: Option<ControlError>,
}

/// A command that has not ended.
struct Command {
    id: Option<CommandId>,
    reports: Sender<Report>,
    /// Not sent yet.
    input: Vec<u8>,
    input_ends: bool,
    /// For all of it to be sent.
    waiting: Vec<Sender<()>>,
    /// Before it began.
    is_cancelled: bool,
}

impl Operator {
    pub(super) fn new(to_shim: Outbox, room: Arc<Room>) -> Self {
        Self {
            host: ControlHost::new(),
            to_shim,
            went_on_at: Instant::now(),
            waiting_calls: Vec::new(),
            waiting_for_ready: Vec::new(),
            commands: HashMap::new(),
            calls: HashMap::new(),
            room,
            failed: None,
        }
    }

    /// Until the shim has gone and nobody wants anything any more.
    pub(super) fn work(mut self, inbox: &Receiver<News>) {
        loop {
            // However much it says: its time passes.
            self.host.advance(Instant::now());
            while let Some(event) = self.host.next_event() {
                self.pass_on(event);
            }
            self.send();
            let unread_at = self.unread_at();
            if unread_at.is_some_and(|at| Instant::now() >= at) {
                self.give_up_on_shim();
                continue;
            }
            let deadline = [self.host.next_deadline(), unread_at].into_iter().flatten().min();
            let heard = match deadline {
                Some(at) => inbox.recv_timeout(until(at)),
                None => inbox.recv().map_err(RecvTimeoutError::from),
            };
            match heard {
                Ok(News::Message(message)) => self.host.receive(message),
                Ok(News::Closed) => self.host.channel_closed(),
                Ok(news) => self.take(news),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn take(&mut self, news: News) {
        match news {
            News::Run(call, exec, reports) => self.call(call, exec, reports),
            News::Order(call, order) => self.order(call, order),
            News::TellWhenReady(tell) if self.host.is_ready() => drop(tell.send(Ok(()))),
            News::TellWhenReady(tell) => match self.failed.clone() {
                Some(error) => drop(tell.send(Err(error))),
                None => self.waiting_for_ready.push(tell),
            },
            // Without a shim there is nobody to tell.
            News::RollbackNotify(step) => drop(self.host.notify_rollback(step)),
            News::Clock(unix_ms) => drop(self.host.tell_time(unix_ms)),
            News::StandStill => self.host.stand_still(Instant::now()),
            News::GoOn => {
                self.went_on_at = Instant::now();
                self.host.go_on(self.went_on_at);
            }
            News::ShutDown => drop(self.host.shut_down()),
            News::Message(_) | News::Closed => {}
        }
    }

    fn call(&mut self, call: u64, exec: Box<Exec>, reports: Sender<Report>) {
        if let Some(error) = self.failed.clone() {
            let _ = reports.send(Report::Failed(error)); // nobody waits for it any more
            return;
        }
        let command = Command {
            id: None,
            reports,
            input: Vec::new(),
            input_ends: false,
            waiting: Vec::new(),
            is_cancelled: false,
        };
        self.commands.insert(call, command);
        match self.host.is_ready() {
            true => self.begin(call, *exec),
            false => self.waiting_calls.push((call, exec)),
        }
    }

    fn begin(&mut self, call: u64, exec: Exec) {
        let Some(command) = self.commands.get_mut(&call) else { return };
        match self.host.exec(exec, Instant::now()) {
            Ok(id) => {
                command.id = Some(id);
                self.calls.insert(id, call);
                if command.is_cancelled {
                    let _ = self.host.cancel(id, Instant::now()); // it is running: just begun
                }
                self.feed(call);
            }
            Err(error) => self.end(call, Report::Failed(error)),
        }
    }

    fn order(&mut self, call: u64, order: Order) {
        let Some(command) = self.commands.get_mut(&call) else { return };
        match order {
            Order::Input { data, eof } => {
                command.input.extend(data);
                command.input_ends |= eof;
                return self.feed(call);
            }
            Order::TellWhenTaken(waiting) => {
                command.waiting.push(waiting);
                return command.tell_if_taken();
            }
            Order::Cancel if command.id.is_none() => command.is_cancelled = true,
            _ => {}
        }
        let Some(id) = command.id else { return };
        let obeyed = match order {
            Order::Resize(size) => self.host.resize(id, size),
            Order::Signal(signal) => self.host.signal(id, signal),
            Order::Cancel => self.host.cancel(id, Instant::now()),
            Order::Input { .. } | Order::TellWhenTaken(_) => Ok(()),
        };
        drop(obeyed); // or it has just ended
    }

    /// Sends as much input as the command takes.
    fn feed(&mut self, call: u64) {
        let Some(command) = self.commands.get_mut(&call) else { return };
        let Some(id) = command.id else { return };
        let Ok(room) = self.host.stdin_room(id) else { return };
        let now = room.min(command.input.len());
        let ends = command.input_ends && now == command.input.len();
        if now == 0 && !ends {
            return;
        }
        let rest = command.input.split_off(now);
        let data = std::mem::replace(&mut command.input, rest);
        if ends {
            command.input_ends = false;
        }
        match self.host.send_stdin(id, ByteString::from(data), ends) {
            Ok(()) => command.tell_if_taken(),
            Err(error) => self.end(call, Report::Failed(error)),
        }
    }

    fn pass_on(&mut self, event: Event) {
        match event {
            Event::Ready => {
                for tell in self.waiting_for_ready.drain(..) {
                    let _ = tell.send(Ok(())); // it does not wait any more
                }
                for (call, exec) in std::mem::take(&mut self.waiting_calls) {
                    self.begin(call, *exec);
                }
            }
            Event::Output { id, stream, data } => {
                let Some(command) = self.calls.get(&id).and_then(|call| self.commands.get(call))
                else {
                    return;
                };
                let bytes = data.len();
                self.room.take(bytes);
                if command.reports.send(Report::Output(stream, data)).is_err() {
                    self.room.give_back(bytes);
                }
            }
            Event::StdinRoom { id, .. } => {
                if let Some(call) = self.calls.get(&id).copied() {
                    self.feed(call);
                }
            }
            Event::Ended { id, outcome } => {
                if let Some(call) = self.calls.get(&id).copied() {
                    self.end(call, Report::Ended(outcome));
                }
            }
            Event::Failed(error) => self.fail(&error),
            _ => {}
        }
    }

    /// Nothing can be run any more.
    fn fail(&mut self, error: &ControlError) {
        for tell in self.waiting_for_ready.drain(..) {
            let _ = tell.send(Err(error.clone()));
        }
        self.waiting_calls.clear();
        let calls: Vec<u64> = self.commands.keys().copied().collect();
        for call in calls {
            self.end(call, Report::Failed(error.clone()));
        }
        self.failed.get_or_insert_with(|| error.clone());
    }

    fn end(&mut self, call: u64, report: Report) {
        let Some(command) = self.commands.remove(&call) else { return };
        if let Some(id) = command.id {
            self.calls.remove(&id);
        }
        let _ = command.reports.send(report); // nobody waits for it any more
    }

    fn send(&mut self) {
        while let Some(message) = self.host.next_message() {
            // One that is too long was refused before it came here.
            let Ok(line) = encode(&message) else { continue };
            if !self.to_shim.put(line) {
                return self.give_up_on_shim();
            }
        }
    }

    /// When to stop waiting for the shim to read.
    fn unread_at(&self) -> Option<Instant> {
        if self.failed.is_some() || self.host.is_still() {
            return None;
        }
        Some(self.to_shim.unread_since()?.max(self.went_on_at) + UNREAD_PATIENCE)
    }

    fn give_up_on_shim(&mut self) {
        self.fail(&ControlError::Unread);
        self.host.channel_closed();
    }
}

impl Command {
    fn tell_if_taken(&mut self) {
        if self.input.is_empty() {
            for waiting in self.waiting.drain(..) {
                let _ = waiting.send(()); // it does not wait any more
            }
        }
    }
}
