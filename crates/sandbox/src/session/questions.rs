//! Questions that wait for an answer, in all folders of a session, and the commands they may be of.
//!
//! Whoever ends a command ends what it waits for: a question that may be of a command that is
//! cancelled, or whose time is up, is denied, by whoever waits for its answer. So nobody who cancels
//! waits for anything, and a machine that stands still because of the question goes on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use codeagent_common::{SafeguardId, SafeguardRequest};
use parking_lot::{Condvar, Mutex};

#[derive(Debug, Default)]
pub(crate) struct Questions {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    open: Vec<Open>,
    commands: BTreeMap<u64, Command>,
}

#[derive(Debug)]
struct Open {
    directory: String,
    id: SafeguardId,
    /// Of an ambient step: it is of a command in the background, or of no command.
    is_ambient: bool,
    /// The command it was of has ended, or was lost: nothing waits for the answer but others.
    is_abandoned: bool,
}

/// One that runs.
#[derive(Debug)]
struct Command {
    is_background: bool,
    is_ending: bool,
    times_out_at: Option<Instant>,
}

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    /// The command is being ended.
    Unwanted,
    /// Nobody has answered in time, which means no.
    TimeIsUp,
}

impl Questions {
    pub(crate) fn open(&self, directory: &str, request: &SafeguardRequest) {
        let (directory, is_ambient) = (directory.to_owned(), request.step.is_ambient());
        let open = Open { directory, id: request.id, is_ambient, is_abandoned: false };
        self.state.lock().open.push(open);
    }

    /// It is answered, or for somebody else to answer.
    pub(crate) fn settle(&self, directory: &str, id: SafeguardId) {
        self.state.lock().open.retain(|open| !open.is(directory, id));
        self.changed.notify_all();
    }

    /// Waits until it is known what becomes of a question, which is not open any more then.
    pub(crate) fn wait(&self, directory: &str, id: SafeguardId, denied_at: Instant) -> Fate {
        let mut state = self.state.lock();
        loop {
            let Some(open) = state.open.iter().find(|open| open.is(directory, id)) else {
                return Fate::Answered;
            };
            let unwanted_at = state.unwanted_at(open);
            let now = Instant::now();
            let fate = match unwanted_at {
                Some(at) if now >= at => Fate::Unwanted,
                _ if now >= denied_at => Fate::TimeIsUp,
                _ => {
                    let until = unwanted_at.map_or(denied_at, |at| at.min(denied_at));
                    self.changed.wait_until(&mut state, until);
                    continue;
                }
            };
            state.open.retain(|open| !open.is(directory, id));
            return fate;
        }
    }

    /// A command may ask from now on, until what comes back is dropped.
    pub(crate) fn may_come_from(&self, command: u64, is_background: bool) -> MayAsk<'_> {
        let asker = Command { is_background, is_ending: false, times_out_at: None };
        self.state.lock().commands.insert(command, asker);
        MayAsk { questions: self, command }
    }

    /// A command is being ended.
    pub(crate) fn deny_those_of(&self, command: u64) {
        if let Some(command) = self.state.lock().commands.get_mut(&command) {
            command.is_ending = true;
        }
        self.changed.notify_all();
    }
}

impl Open {
    fn is(&self, directory: &str, id: SafeguardId) -> bool {
        self.directory == directory && self.id == id
    }
}

impl State {
    /// From when on a question is to be denied.
    fn unwanted_at(&self, open: &Open) -> Option<Instant> {
        let now = Instant::now();
        if open.is_abandoned {
            return Some(now);
        }
        let may_be_its = |command: &&Command| command.is_background == open.is_ambient;
        let ends_at = |command: &Command| match command.is_ending {
            true => Some(now),
            false => command.times_out_at,
        };
        self.commands.values().filter(may_be_its).filter_map(ends_at).min()
    }
}

/// See [`Questions::may_come_from`].
#[derive(Debug)]
pub(crate) struct MayAsk<'a> {
    questions: &'a Questions,
    command: u64,
}

impl MayAsk<'_> {
    /// The command begins; it has so much time.
    pub(crate) fn begins(&self, timeout: Option<Duration>) {
        if let Some(command) = self.questions.state.lock().commands.get_mut(&self.command) {
            command.times_out_at = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        }
    }
}

impl Drop for MayAsk<'_> {
    /// Beside it no other command has a step, so what is still asked about one is of this.
    fn drop(&mut self) {
        let mut state = self.questions.state.lock();
        let was_in_front = state.commands.remove(&self.command).is_some_and(|c| !c.is_background);
        let its_own = state.open.iter_mut().filter(|open| was_in_front && !open.is_ambient);
        its_own.for_each(|open| open.is_abandoned = true);
        drop(state);
        self.questions.changed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use codeagent_common::{SafeguardKind, StepId};

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn ask(questions: &Questions, step: StepId) -> SafeguardId {
        let id = SafeguardId(7);
        let request = SafeguardRequest {
            id,
            step,
            kind: SafeguardKind::DeleteCount,
            count: 1,
            sample_paths: vec![],
            message: String::new(),
        };
        questions.open("work", &request);
        id
    }

    #[test]
    fn a_cancel_denies_what_its_command_asks_now_and_later() {
        let questions = Questions::default();
        let _command = questions.may_come_from(1, false);
        let id = ask(&questions, StepId(1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| questions.wait("work", id, Instant::now() + LONG));
            questions.deny_those_of(1);
            assert_eq!(waiting.join().unwrap(), Fate::Unwanted);
        });
        ask(&questions, StepId(1));
        assert_eq!(questions.wait("work", id, Instant::now() + LONG), Fate::Unwanted);
    }

    #[test]
    fn what_another_command_asks_is_left_to_whoever_is_asked() {
        let questions = Questions::default();
        let background = questions.may_come_from(1, true);
        let _command = questions.may_come_from(2, false);
        let id = ask(&questions, StepId(1));
        questions.deny_those_of(1);
        assert_eq!(questions.wait("work", id, Instant::now()), Fate::TimeIsUp);
        ask(&questions, StepId(-1));
        assert_eq!(questions.wait("work", id, Instant::now()), Fate::Unwanted);
        drop(background);
        ask(&questions, StepId(-1));
        assert_eq!(questions.wait("work", id, Instant::now()), Fate::TimeIsUp);
    }

    #[test]
    fn a_command_whose_time_is_up_is_not_asked_about_any_more() {
        let questions = Questions::default();
        let command = questions.may_come_from(1, false);
        command.begins(Some(Duration::from_millis(50)));
        let id = ask(&questions, StepId(1));
        assert_eq!(questions.wait("work", id, Instant::now() + LONG), Fate::Unwanted);
    }

    /// As that of a guest that has died.
    #[test]
    fn a_question_does_not_outlive_its_command() {
        let questions = Questions::default();
        let command = questions.may_come_from(1, false);
        let id = ask(&questions, StepId(1));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| questions.wait("work", id, Instant::now() + LONG));
            drop(command);
            assert_eq!(waiting.join().unwrap(), Fate::Unwanted);
        });
        // Those of file tools have no command.
        ask(&questions, StepId(2));
        assert_eq!(questions.wait("work", id, Instant::now()), Fate::TimeIsUp);
    }

    #[test]
    fn an_answer_is_all_that_is_waited_for() {
        let questions = Questions::default();
        let id = ask(&questions, StepId(1));
        questions.settle("work", id);
        assert_eq!(questions.wait("work", id, Instant::now() + LONG), Fate::Answered);
    }
}
