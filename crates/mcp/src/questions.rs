//! Questions that a command waits with, until a call of its client brings the answers.

use std::collections::BTreeMap;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use codeagent_common::CancelToken;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::ask::{OpenQuestion, Paused, Question};

/// The questions of one command.
#[derive(Debug)]
pub(crate) struct Questions {
    handle: String,
    state: Mutex<State>,
    /// The oldest open one.
    first: watch::Sender<Option<Question>>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    open: BTreeMap<u64, Open>,
    /// Those that got no answer from the client.
    closed: BTreeMap<u64, Closed>,
}

#[derive(Debug)]
struct Open {
    message: String,
    end: Sender<End>,
    /// What ends it without an answer.
    ends: [(CancelToken, Closed); 3],
}

#[derive(Debug)]
enum End {
    Answered(bool),
    Closed(Closed),
}

/// Why nobody waits for an answer any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Closed {
    TimeOver,
    Settled,
    Cancelled,
}

impl Closed {
    pub(crate) fn explain(self) -> &'static str {
        match self {
            Self::TimeOver => "the answer came too late: its time was over, and it was denied",
            Self::Settled => "the answer was not needed any more: the question had been settled",
            Self::Cancelled => "the answer was not needed any more: the command was stopped",
        }
    }
}

impl Questions {
    pub(crate) fn new(handle: String) -> Self {
        Self { handle, state: Mutex::default(), first: watch::Sender::new(None) }
    }

    /// Lays a question open and waits for its answer; `None` if none came. Blocks.
    pub(crate) fn ask(&self, question: &OpenQuestion, cancel: &CancelToken) -> Option<bool> {
        let (end, ended) = channel();
        let ends = [
            (question.settled.clone(), Closed::Settled),
            (question.over.clone(), Closed::TimeOver),
            (cancel.clone(), Closed::Cancelled),
        ];
        for (token, why) in &ends {
            let (end, why) = (end.clone(), *why);
            token.on_cancel(move || drop(end.send(End::Closed(why))));
        }
        let number = self.open(Open { message: question.message.clone(), end, ends });
        let left = question.until.saturating_duration_since(Instant::now());
        let first = ended.recv_timeout(left).unwrap_or(End::Closed(Closed::TimeOver));
        let ended = match first {
            // Unless the answer was on its way.
            End::Closed(why) if self.close(number, why) => None,
            End::Closed(_) => ended.iter().find(|end| matches!(end, End::Answered(_))),
            answered @ End::Answered(_) => Some(answered),
        };
        match ended {
            Some(End::Answered(yes)) => Some(yes),
            _ => None,
        }
    }

    fn open(&self, question: Open) -> u64 {
        let mut state = self.state.lock();
        state.last += 1;
        let number = state.last;
        state.open.insert(number, question);
        self.announce(&state);
        number
    }

    /// Whether it was open.
    fn close(&self, number: u64, why: Closed) -> bool {
        let mut state = self.state.lock();
        let was_open = state.open.remove(&number).is_some();
        if was_open {
            state.closed.insert(number, why);
            self.announce(&state);
        }
        was_open
    }

    /// The client's answer; an error if nobody waits for it any more.
    pub(crate) fn answer(&self, number: u64, yes: bool) -> Result<(), Closed> {
        let mut state = self.state.lock();
        let Some(open) = state.open.get(&number) else {
            return Err(state.closed.get(&number).copied().unwrap_or(Closed::Settled));
        };
        // Whoever waits may not have noticed yet.
        if let Some((_, why)) = open.ends.iter().find(|(token, _)| token.is_cancelled()) {
            return Err(*why);
        }
        let Some(open) = state.open.remove(&number) else { return Err(Closed::Settled) };
        self.announce(&state);
        let _ = open.end.send(End::Answered(yes)); // it has just been told otherwise
        Ok(())
    }

    fn announce(&self, state: &State) {
        let first = state.open.iter().next().map(|(number, open)| Question {
            message: open.message.clone(),
            paused: Some(Paused { handle: self.handle.clone(), number: *number }),
        });
        self.first.send_replace(first);
    }

    /// Waits until one is open.
    pub(crate) async fn next(&self) -> Question {
        let mut first = self.first.subscribe();
        loop {
            if let Some(question) = first.borrow_and_update().clone() {
                return question;
            }
            // The sender is ours, and lives as long as we do.
            let _ = first.changed().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn question(time: Duration) -> OpenQuestion {
        OpenQuestion::new("sure?", Instant::now() + time)
    }

    fn asked(
        questions: &Arc<Questions>,
        question: &OpenQuestion,
        cancel: &CancelToken,
    ) -> std::thread::JoinHandle<Option<bool>> {
        let (questions, question) = (Arc::clone(questions), question.clone());
        let cancel = cancel.clone();
        std::thread::spawn(move || questions.ask(&question, &cancel))
    }

    #[tokio::test]
    async fn a_question_ends_with_its_answer_its_time_its_settling_or_its_command() {
        let long = Duration::from_secs(600);
        let questions = Arc::new(Questions::new("bash_1".into()));
        let (question_, cancel) = (question(long), CancelToken::new());

        let asking = asked(&questions, &question_, &cancel);
        let first = questions.next().await.paused.unwrap();
        assert_eq!(questions.answer(first.number, true), Ok(()));
        assert_eq!(asking.join().unwrap(), Some(true));
        assert_eq!(questions.answer(first.number, true), Err(Closed::Settled));

        let asking = asked(&questions, &question_, &cancel);
        let second = questions.next().await.paused.unwrap();
        question_.settled.cancel();
        assert_eq!(asking.join().unwrap(), None);
        assert_eq!(questions.answer(second.number, true), Err(Closed::Settled));

        let late = question(Duration::ZERO);
        assert_eq!(questions.ask(&late, &cancel), None);
        assert_eq!(questions.answer(second.number + 1, true), Err(Closed::TimeOver));

        let over = question(long);
        let asking = asked(&questions, &over, &cancel);
        let fourth = questions.next().await.paused.unwrap();
        over.over.cancel();
        assert_eq!(asking.join().unwrap(), None);
        assert_eq!(questions.answer(fourth.number, true), Err(Closed::TimeOver));

        let asking = asked(&questions, &question(long), &cancel);
        let last = questions.next().await.paused.unwrap();
        cancel.cancel();
        assert_eq!(asking.join().unwrap(), None);
        assert_eq!(questions.answer(last.number, true), Err(Closed::Cancelled));
        assert!(questions.first.borrow().is_none());
    }

    #[tokio::test]
    async fn two_questions_at_once_are_answered_one_after_the_other() {
        let questions = Arc::new(Questions::new("bash_1".into()));
        let (question, cancel) = (question(Duration::from_secs(600)), CancelToken::new());
        let asking = [(); 2].map(|()| asked(&questions, &question, &cancel));
        let mut numbers = Vec::new();
        for answer in [true, false] {
            let paused = questions.next().await.paused.unwrap();
            numbers.push(paused.number);
            assert_eq!(questions.answer(paused.number, answer), Ok(()));
        }
        let mut answers = asking.map(|asking| asking.join().unwrap());
        answers.sort_unstable();
        assert_eq!(answers, [Some(false), Some(true)]);
        assert_eq!(numbers, [1, 2]);
    }
}
