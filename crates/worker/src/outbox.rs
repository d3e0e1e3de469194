//! What is on its way to one client: replies to its calls, and events.

use std::collections::VecDeque;
use std::os::unix::net::UnixStream;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use serde_bytes::ByteBuf;

use crate::link;
use crate::protocol::{Event, Failure, FromWorker};

/// Calls of one client that may wait at once: for a safeguard's answer, for quiet.
pub(crate) const MAX_CALLS: usize = 64;

/// Messages a client may leave unread.
const MAX_UNREAD: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// For all but whoever writes.
    changed: Condvar,
    /// There is something to write, or no more will come: it is not woken for anything else.
    to_write: Condvar,
    /// For replies that need not wait for anything: to wake up whoever writes takes longer.
    client: Option<UnixStream>,
}

#[derive(Debug, Default)]
struct State {
    unread: VecDeque<Vec<u8>>,
    /// One more, which is being written.
    writing: bool,
    /// One more, which whoever gave it writes himself.
    writing_itself: bool,
    /// Calls that have no reply yet.
    calls: usize,
    /// No more calls will come.
    heard_all: bool,
    /// Nothing can be written any more.
    broken: bool,
    subscribed: bool,
    /// Events for which there was no room.
    missed: u64,
}

impl State {
    /// Nothing more has to be written, once what is there has been.
    fn is_over(&self) -> bool {
        self.broken || (self.heard_all && self.calls == 0)
    }
}

impl Outbox {
    pub(crate) fn to(client: UnixStream) -> Self {
        Self { client: Some(client), ..Self::default() }
    }

    /// Whether there may be one more call, to which then belongs one reply.
    pub(crate) fn begin_call(&self) -> bool {
        let mut state = self.state.lock();
        let admitted = state.calls < MAX_CALLS;
        state.calls += usize::from(admitted);
        admitted
    }

    /// A call is over: it has its reply, and its thread is free. Only then, so that who does not
    /// read gets no more threads.
    pub(crate) fn end_call(&self) {
        let mut state = self.state.lock();
        state.calls -= 1;
        if state.is_over() {
            self.to_write.notify_one();
        }
        drop(state);
        self.changed.notify_all();
    }

    /// The reply to a call, or to what never became one. Waits for room.
    pub(crate) fn reply(&self, id: u64, outcome: Result<ByteBuf, Failure>) {
        let Ok(message) = link::encode(&FromWorker::Reply { id, outcome }) else { return };
        let mut state = self.state.lock();
        while state.unread.len() >= MAX_UNREAD && !state.broken {
            self.changed.wait(&mut state);
        }
        if state.broken {
            return;
        }
        let is_first = state.unread.is_empty() && !state.writing && !state.writing_itself;
        let Some(client) = self.client.as_ref().filter(|_| is_first) else {
            state.unread.push_back(message);
            self.to_write.notify_one();
            return;
        };
        state.writing_itself = true;
        drop(state);
        let written = link::send_bytes(client, &message, &[]);
        let mut state = self.state.lock();
        state.writing_itself = false;
        if !state.unread.is_empty() {
            self.to_write.notify_one();
        }
        drop(state);
        if written.is_err() {
            self.broke();
        }
        self.changed.notify_all();
    }

    pub(crate) fn subscribe(&self) {
        self.state.lock().subscribed = true;
    }

    /// Never waits: it is called in the middle of operations. An event for which there is no room
    /// is lost, and the client learns of that.
    pub(crate) fn tell(&self, message: &[u8]) {
        let mut state = self.state.lock();
        if !state.subscribed || state.broken {
            return;
        }
        if state.unread.len() >= MAX_UNREAD {
            state.missed += 1;
        } else {
            state.unread.push_back(message.to_vec());
            self.to_write.notify_one();
        }
    }

    /// For whoever writes: the next message, once the last one has been written. `None` after the
    /// reply to the last call.
    pub(crate) fn next(&self) -> Option<Vec<u8>> {
        let mut state = self.state.lock();
        state.writing = false;
        self.changed.notify_all();
        loop {
            if !state.writing_itself
                && let Some(message) = state.unread.pop_front()
            {
                state.writing = true;
                // In the place of those that are missing.
                if state.missed > 0 {
                    let lagged = Event::Lagged { missed: std::mem::take(&mut state.missed) };
                    state.unread.extend(link::encode(&FromWorker::Event(lagged)));
                }
                return Some(message);
            }
            if state.is_over() {
                return None;
            }
            self.to_write.wait(&mut state);
        }
    }

    /// Of whoever reads: no more calls will come.
    pub(crate) fn heard_all(&self) {
        self.state.lock().heard_all = true;
        self.to_write.notify_one();
        self.changed.notify_all();
    }

    /// Of whoever writes: the client is not there any more.
    pub(crate) fn broke(&self) {
        let mut state = self.state.lock();
        (state.broken, state.writing) = (true, false);
        state.unread.clear();
        self.to_write.notify_one();
        self.changed.notify_all();
    }

    /// Waits until the last call has been heard and is done.
    pub(crate) fn wait_for_calls(&self) {
        let mut state = self.state.lock();
        while !state.heard_all || state.calls > 0 {
            self.changed.wait(&mut state);
        }
    }

    /// Waits until every call has its reply and all is written, or that is not to be expected.
    pub(crate) fn settle(&self, deadline: Instant) {
        let mut state = self.state.lock();
        let busy = |state: &State| {
            let unwritten = state.writing || state.writing_itself || !state.unread.is_empty();
            state.calls > 0 || (!state.broken && unwritten)
        };
        while busy(&state) && !self.changed.wait_until(&mut state, deadline).timed_out() {}
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn decode(message: &[u8]) -> FromWorker {
        link::decode(message).unwrap()
    }

    /// Before, it just got no more events.
    #[test]
    fn who_reads_too_slowly_learns_how_many_events_are_missing_and_gets_those_that_follow() {
        let outbox = Outbox::default();
        let event = Event::Detached { attachment: 1 };
        let is_it = |message: Vec<u8>| {
            matches!(decode(&message), FromWorker::Event(Event::Detached { .. }))
        };
        let event = link::encode(&FromWorker::Event(event)).unwrap();
        outbox.tell(&event); // nobody has asked for it
        outbox.subscribe();
        for _ in 0..MAX_UNREAD + 5 {
            outbox.tell(&event);
        }
        for _ in 0..MAX_UNREAD {
            assert!(is_it(outbox.next().unwrap()));
        }
        outbox.tell(&event);
        let FromWorker::Event(lagged) = decode(&outbox.next().unwrap()) else { panic!() };
        assert_eq!(lagged, Event::Lagged { missed: 5 });
        assert!(is_it(outbox.next().unwrap()));
        outbox.heard_all();
        assert_eq!(outbox.next(), None);
    }

    #[test]
    fn replies_are_never_lost_and_wait_for_room() {
        let outbox = Outbox::default();
        let calls = MAX_UNREAD as u64 + 10;
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for id in 0..calls {
                    assert!(outbox.begin_call());
                    outbox.reply(id, Ok(ByteBuf::new()));
                    outbox.end_call();
                }
                outbox.heard_all();
            });
            let seen = std::iter::from_fn(|| outbox.next()).map(|message| match decode(&message) {
                FromWorker::Reply { id, .. } => id,
                FromWorker::Event(event) => panic!("{event:?}"),
            });
            assert!(seen.eq(0..calls));
        });
    }
}
