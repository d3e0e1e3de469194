//! Messages on their way to the host. Bounded: a host that does not read slows the commands down
//! instead of filling our memory.

use std::collections::VecDeque;
use std::io::Write;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use codeagent_control::{MessageWriter, ShimMessage};

/// So many messages wait before commands do. With 4 KiB of output each, that is 256 KiB.
const CAPACITY: usize = 64;
/// So many more answers to the host wait before they are dropped.
const ANSWERS: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    /// Something to send, or the end.
    filled: Condvar,
    /// Room, or the end.
    emptied: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<ShimMessage>,
    /// No message is taken any more; the queue is still sent.
    finished: bool,
    /// The channel is gone: nothing is sent any more, and nobody waits.
    closed: bool,
}

impl Outbox {
    /// Waits for room. Without a channel the message is dropped at once.
    pub(crate) fn send(&self, message: ShimMessage) {
        let mut state = self.lock();
        while state.queue.len() >= CAPACITY && !state.closed {
            state = self.emptied.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        self.put(state, message);
    }

    /// Does not wait: for the thread that reads the channel, which must always get to a `cancel`.
    pub(crate) fn answer(&self, message: ShimMessage) {
        let state = self.lock();
        if state.queue.len() < CAPACITY + ANSWERS {
            self.put(state, message);
        }
    }

    /// Sends until [`finish`](Self::finish) or [`close`](Self::close), or until it cannot.
    pub(crate) fn pump(&self, channel: impl Write) {
        let mut writer = MessageWriter::new(channel);
        while let Some(message) = self.next() {
            if writer.write(&message).is_err() {
                self.close();
            }
        }
    }

    /// What waits is sent, then it ends.
    pub(crate) fn finish(&self) {
        self.lock().finished = true;
        self.filled.notify_all();
    }

    /// It ends, and what waits is dropped.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.queue.clear();
        drop(state);
        self.filled.notify_all();
        self.emptied.notify_all();
    }

    fn next(&self) -> Option<ShimMessage> {
        let mut state = self.lock();
        loop {
            if let Some(message) = state.queue.pop_front() {
                self.emptied.notify_one();
                return Some(message);
            }
            if state.finished || state.closed {
                return None;
            }
            state = self.filled.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn put(&self, mut state: MutexGuard<'_, State>, message: ShimMessage) {
        if !state.closed && !state.finished {
            state.queue.push_back(message);
            self.filled.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PONG: ShimMessage = ShimMessage::Pong { token: 1 };

    #[test]
    fn what_waits_is_sent_before_the_end() {
        let outbox = Outbox::default();
        outbox.send(PONG);
        outbox.finish();
        outbox.send(PONG);
        let mut sent = Vec::new();
        outbox.pump(&mut sent);
        assert_eq!(sent, b"{\"type\":\"pong\",\"token\":1}\n");
    }

    #[test]
    fn a_full_outbox_makes_senders_wait_until_it_is_closed() {
        let outbox = Outbox::default();
        for _ in 0..CAPACITY {
            outbox.send(PONG);
        }
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| outbox.send(PONG));
            assert_eq!(outbox.lock().queue.len(), CAPACITY);
            outbox.close();
            sender.join().unwrap();
        });
        assert!(outbox.lock().queue.is_empty());
    }

    #[test]
    fn answers_do_not_wait_and_are_bounded_too() {
        let outbox = Outbox::default();
        for _ in 0..10_000 {
            outbox.answer(PONG);
        }
        assert_eq!(outbox.lock().queue.len(), CAPACITY + ANSWERS);
    }
}
