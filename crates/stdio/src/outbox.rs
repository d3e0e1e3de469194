//! What is on its way to the client. Bounded: responses wait for room, events never do.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::event::{Event, Lagged};

/// How much may be unread. Past each bound, less is let in; so output gives way to what matters.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bounds {
    /// Output of commands is dropped from here on,
    pub(crate) output_bytes: usize,
    /// all other events from here on,
    pub(crate) event_bytes: usize,
    /// and responses wait, and so do the requests that want more of them.
    pub(crate) response_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct Outbox {
    bounds: Bounds,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    unread: VecDeque<Vec<u8>>,
    unread_bytes: usize,
    /// Taken for writing and not written yet.
    writing: bool,
    /// Messages written so far; tells a slow client from one that does not read.
    written: u64,
    /// Events for which there was no room.
    missed: u64,
    /// No more will come.
    closed: bool,
    /// Nothing can be written any more.
    broken: bool,
}

impl State {
    fn push(&mut self, line: Vec<u8>) {
        self.unread_bytes += line.len();
        self.unread.push_back(line);
    }

    /// Says what is missing, at the place where it is.
    fn push_lagged(&mut self) {
        if self.missed > 0 {
            let lagged = Event::Lagged(Lagged { missed: std::mem::take(&mut self.missed) });
            if let Some(line) = encode(&lagged) {
                self.push(line);
            }
        }
    }
}

/// A message as a line. Nothing that we send can fail to be JSON; if it did, there is nobody to tell.
pub(crate) fn encode(message: &impl serde::Serialize) -> Option<Vec<u8>> {
    let mut line = serde_json::to_vec(message).ok()?;
    line.push(b'\n');
    Some(line)
}

impl Outbox {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, state: Mutex::default(), changed: Condvar::new() }
    }

    /// Waits for room.
    pub(crate) fn respond(&self, line: Vec<u8>) {
        let mut state = self.state.lock();
        while state.unread_bytes >= self.bounds.response_bytes && !state.broken {
            self.changed.wait(&mut state);
        }
        if !state.broken {
            state.push_lagged();
            state.push(line);
            self.changed.notify_all();
        }
    }

    /// Never waits: it is called in the middle of operations.
    pub(crate) fn emit(&self, event: &Event) {
        let bulk = event.is_bulk();
        let bound = if bulk { self.bounds.output_bytes } else { self.bounds.event_bytes };
        if self.state.lock().broken {
            return;
        }
        let Some(line) = encode(event) else { return };
        let mut state = self.state.lock();
        if state.unread_bytes + line.len() > bound {
            state.missed += 1;
        } else {
            state.push_lagged();
            state.push(line);
            self.changed.notify_all();
        }
    }

    /// For whoever writes: what is next, once the last has been written, and whether more follows
    /// at once. `None` when all has been written and no more will come.
    pub(crate) fn next(&self) -> Option<(Vec<u8>, bool)> {
        let mut state = self.state.lock();
        if std::mem::take(&mut state.writing) {
            state.written += 1;
        }
        self.changed.notify_all();
        loop {
            if state.unread.is_empty() {
                state.push_lagged();
            }
            if let Some(line) = state.unread.pop_front() {
                state.unread_bytes -= line.len();
                state.writing = true;
                return Some((line, !state.unread.is_empty()));
            }
            if state.closed || state.broken {
                return None;
            }
            self.changed.wait(&mut state);
        }
    }

    /// Of whoever writes: the client is not there any more.
    pub(crate) fn broke(&self) {
        let mut state = self.state.lock();
        (state.broken, state.writing) = (true, false);
        state.unread.clear();
        state.unread_bytes = 0;
        self.changed.notify_all();
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.state.lock().broken
    }

    /// No more will come; waits until all is written, unless the client has read nothing for
    /// `patience`.
    pub(crate) fn close(&self, patience: Duration) {
        let mut state = self.state.lock();
        state.closed = true;
        self.changed.notify_all();
        let mut written = state.written;
        let mut deadline = Instant::now() + patience;
        while (state.writing || !state.unread.is_empty()) && !state.broken {
            if self.changed.wait_until(&mut state, deadline).timed_out() {
                return;
            }
            if state.written != written {
                written = state.written;
                deadline = Instant::now() + patience;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use codeagent_common::ByteString;

    use super::*;
    use crate::event::{OutputStream, TerminalOutput, Warning};

    fn output(text: &str) -> Event {
        let data = ByteString::from(text);
        Event::TerminalOutput(TerminalOutput {
            request_id: None,
            stream: OutputStream::Stdout,
            data,
        })
    }

    fn warning(message: &str) -> Event {
        Event::Warning(Warning {
            code: "test".into(),
            message: message.into(),
            step_id: None,
            directory: None,
            paths: vec![],
        })
    }

    fn next(outbox: &Outbox) -> Event {
        serde_json::from_slice(&outbox.next().unwrap().0).unwrap()
    }

    fn small() -> Outbox {
        Outbox::new(Bounds { output_bytes: 200, event_bytes: 400, response_bytes: 600 })
    }

    #[test]
    fn output_gives_way_to_other_events_and_the_gap_is_told_where_it_is() {
        let outbox = small();
        outbox.emit(&output("first"));
        outbox.emit(&output(&"x".repeat(300)));
        outbox.emit(&output(&"y".repeat(300)));
        outbox.emit(&warning("matters"));

        assert_eq!(next(&outbox), output("first"));
        assert_eq!(next(&outbox), Event::Lagged(Lagged { missed: 2 }));
        assert_eq!(next(&outbox), warning("matters"));
    }

    #[test]
    fn a_gap_at_the_end_is_told_when_the_client_has_caught_up() {
        let outbox = small();
        outbox.emit(&output("first"));
        outbox.emit(&warning(&"x".repeat(1000)));

        assert_eq!(next(&outbox), output("first"));
        assert_eq!(next(&outbox), Event::Lagged(Lagged { missed: 1 }));
    }

    #[test]
    fn responses_wait_for_room_and_none_is_lost() {
        let outbox = small();
        let line = |n: u32| format!("{n:0>99}\n").into_bytes();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..100).for_each(|n| outbox.respond(line(n))));
            for n in 0..100 {
                assert_eq!(outbox.next().unwrap().0, line(n));
                assert!(outbox.state.lock().unread_bytes <= 700);
            }
        });
    }

    #[test]
    fn closing_waits_for_a_reader_but_not_for_one_that_does_not_read() {
        let outbox = small();
        outbox.emit(&output("never read"));

        outbox.close(Duration::from_millis(10));

        assert_eq!(next(&outbox), output("never read"));
        assert_eq!(outbox.next(), None);
    }
}
