//! Questions that wait for an answer, in all folders of a session, and the commands they may be of.
//!
//! Who raised a question cannot always be told: about an ambient step it is any command in the
//! background, about a step that is shared it is that of the step, or any in the background. Those
//! that ran when it came up are remembered with it; the question is put to whoever runs one of them.
//!
//! Whoever ends a command ends what it waits for: a question that may be of a command that is
//! cancelled, or whose time is up, is denied, by whoever waits for its answer; and one that can only
//! be of commands that have ended is as well, those of other processes among them. So nobody who cancels waits for anything, and a machine
//! that stands still because of the question goes on.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use codeagent_common::{Refusal, SafeguardId, SafeguardRequest, StepId};
use parking_lot::{Condvar, Mutex};

/// Commands in the background may run for days; more is not remembered for them.
const MOST_REFUSALS: usize = 100;

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
    /// Those that may have raised it. None at all: it is of no command of ours.
    commands: Vec<u64>,
}

/// One that runs.
#[derive(Debug)]
struct Command {
    is_background: bool,
    is_ending: bool,
    times_out_at: Option<Instant>,
    /// What was refused meanwhile and may have been its doing, with the directories.
    refusals: Vec<(String, Refusal)>,
}

impl Command {
    /// About a step of others it asks only if they share it, about ambient ones only if it has none.
    fn may_ask_about(&self, step: StepId, is_shared: bool) -> bool {
        match self.is_background {
            true => step.is_ambient() || is_shared,
            false => !step.is_ambient(),
        }
    }
}

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Answered,
    /// A command that it may be of is being ended.
    Cancelled,
    /// All commands of ours that it may be of have ended.
    AllEnded,
    /// Nobody has answered in time, which means no.
    TimeIsUp,
}

impl Questions {
    /// Comes back with the commands that it may be of.
    pub(crate) fn open(&self, directory: &str, request: &SafeguardRequest) -> Vec<u64> {
        let mut state = self.state.lock();
        let commands = state.that_may_ask_about(request.step, request.shared);
        // Of a worker that has gone, and with it whoever would have settled it.
        state.open.retain(|open| !open.is(directory, request.id));
        let directory = directory.to_owned();
        state.open.push(Open { directory, id: request.id, commands: commands.clone() });
        commands
    }

    /// It is answered, or for somebody else to answer. `false`: that was known.
    pub(crate) fn settle(&self, directory: &str, id: SafeguardId) -> bool {
        let mut state = self.state.lock();
        let before = state.open.len();
        state.open.retain(|open| !open.is(directory, id));
        let was_open = state.open.len() < before;
        drop(state);
        self.changed.notify_all();
        was_open
    }

    pub(crate) fn is_open(&self, directory: &str, id: SafeguardId) -> bool {
        self.state.lock().open.iter().any(|open| open.is(directory, id))
    }

    /// Operations were refused in a step of which nothing is taken back: commands in the background
    /// that may have wanted them are told at their end. Whoever has the step is told with it.
    pub(crate) fn refused(&self, directory: &str, step: StepId, refusal: &Refusal) {
        let mut state = self.state.lock();
        for command in state.commands.values_mut() {
            let is_told = command.refusals.len() < MOST_REFUSALS;
            if is_told && command.is_background && command.may_ask_about(step, true) {
                command.refusals.push((directory.to_owned(), refusal.clone()));
            }
        }
    }

    /// Waits until it is known what becomes of a question. It is open until it is settled, so that one
    /// that others answer while we are about to deny it is still known when the worker says so.
    pub(crate) fn wait(&self, directory: &str, id: SafeguardId, denied_at: Instant) -> Fate {
        let mut state = self.state.lock();
        loop {
            let Some(open) = state.open.iter().find(|open| open.is(directory, id)) else {
                return Fate::Answered;
            };
            let unwanted = state.unwanted(open);
            let now = Instant::now();
            match unwanted {
                Some((at, fate)) if now >= at => return fate,
                _ if now >= denied_at => return Fate::TimeIsUp,
                _ => {
                    let until = unwanted.map_or(denied_at, |(at, _)| at.min(denied_at));
                    self.changed.wait_until(&mut state, until);
                }
            }
        }
    }

    /// It is not of a command of ours, as far as is known now.
    pub(crate) fn leave_to_others(&self, directory: &str, id: SafeguardId) {
        let mut state = self.state.lock();
        if let Some(open) = state.open.iter_mut().find(|open| open.is(directory, id)) {
            open.commands.clear();
        }
    }

    /// A command may ask from now on, until what comes back is dropped.
    pub(crate) fn may_come_from(&self, command: u64, is_background: bool) -> MayAsk<'_> {
        let asker =
            Command { is_background, is_ending: false, times_out_at: None, refusals: vec![] };
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
    fn that_may_ask_about(&self, step: StepId, is_shared: bool) -> Vec<u64> {
        let may_ask = |(_, command): &(&u64, &Command)| command.may_ask_about(step, is_shared);
        self.commands.iter().filter(may_ask).map(|(id, _)| *id).collect()
    }

    /// From when on nobody of ours wants an answer to a question, and why.
    fn unwanted(&self, open: &Open) -> Option<(Instant, Fate)> {
        let now = Instant::now();
        let mut running =
            open.commands.iter().filter_map(|command| self.commands.get(command)).peekable();
        // They have ended, or were lost: nothing waits for the answer but others.
        if !open.commands.is_empty() && running.peek().is_none() {
            return Some((now, Fate::AllEnded));
        }
        let ends_at = |command: &Command| match command.is_ending {
            true => Some(now),
            false => command.times_out_at,
        };
        running.filter_map(ends_at).min().map(|at| (at, Fate::Cancelled))
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

impl MayAsk<'_> {
    /// What was refused so far and may have been its doing, in this directory.
    pub(crate) fn refusals_in(&self, directory: &str) -> Vec<Refusal> {
        let state = self.questions.state.lock();
        let refusals = state.commands.get(&self.command).map(|command| &command.refusals);
        let there = refusals.into_iter().flatten().filter(|(there, _)| there == directory);
        there.map(|(_, refusal)| refusal.clone()).collect()
    }
}

impl Drop for MayAsk<'_> {
    fn drop(&mut self) {
        self.questions.state.lock().commands.remove(&self.command);
        self.questions.changed.notify_all();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use codeagent_common::SafeguardKind;

    use super::*;

    const LONG: Duration = Duration::from_secs(600);

    fn ask(questions: &Questions, step: StepId) -> SafeguardId {
        ask_about(questions, step, false)
    }

    fn ask_about(questions: &Questions, step: StepId, shared: bool) -> SafeguardId {
        let id = SafeguardId(7);
        let request = SafeguardRequest {
            id,
            step,
            kind: SafeguardKind::DeleteCount,
            count: 1,
            sample_paths: vec![],
            message: String::new(),
            shared,
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
            assert_eq!(waiting.join().unwrap(), Fate::Cancelled);
        });
        ask(&questions, StepId(1));
        assert_eq!(questions.wait("work", id, Instant::now() + LONG), Fate::Cancelled);
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
        assert_eq!(questions.wait("work", id, Instant::now()), Fate::Cancelled);
        drop(background);
        ask(&questions, StepId(-1));
        assert_eq!(questions.wait("work", id, Instant::now()), Fate::TimeIsUp);
    }

    #[test]
    fn what_is_asked_about_a_shared_step_may_be_of_either_and_of_nobody_who_came_later() {
        for cancelled in [1, 2] {
            let questions = Questions::default();
            let _background = questions.may_come_from(1, true);
            let _command = questions.may_come_from(2, false);
            let id = ask_about(&questions, StepId(1), true);
            let _later = questions.may_come_from(3, true);
            questions.deny_those_of(3);
            assert_eq!(questions.wait("work", id, Instant::now()), Fate::TimeIsUp);
            let id = ask_about(&questions, StepId(1), true);
            questions.deny_those_of(cancelled);
            assert_eq!(questions.wait("work", id, Instant::now() + LONG), Fate::Cancelled);
        }
    }

    #[test]
    fn a_question_about_a_shared_step_lives_as_long_as_anybody_it_may_be_of() {
        for first in [true, false] {
            let questions = Questions::default();
            let mut commands =
                [questions.may_come_from(1, true), questions.may_come_from(2, false)];
            commands.sort_by_key(|command| (command.command == 1) != first);
            let id = ask_about(&questions, StepId(1), true);
            let [one, other] = commands;
            drop(one);
            {
                let state = questions.state.lock();
                assert!(state.unwanted(&state.open[0]).is_none());
            }
            drop(other);
            assert_eq!(questions.wait("work", id, Instant::now() + LONG), Fate::AllEnded);
        }
    }

    #[test]
    fn a_command_in_the_background_hears_what_was_refused_while_it_ran() {
        let questions = Questions::default();
        let background = questions.may_come_from(1, true);
        let command = questions.may_come_from(2, false);
        let refusal = Refusal {
            safeguard: SafeguardId(7),
            kind: SafeguardKind::DeleteCount,
            asked: "about to delete".into(),
            count: 1,
            sample_paths: vec![],
        };
        questions.refused("work", StepId(1), &refusal);
        let later = questions.may_come_from(3, true);
        assert_eq!(background.refusals_in("work"), [refusal]);
        assert_eq!(background.refusals_in("other"), []);
        assert_eq!((command.refusals_in("work"), later.refusals_in("work")), (vec![], vec![]));
    }

    #[test]
    fn a_command_whose_time_is_up_is_not_asked_about_any_more() {
        let questions = Questions::default();
        let command = questions.may_come_from(1, false);
        command.begins(Some(Duration::from_millis(50)));
        let id = ask(&questions, StepId(1));
        assert_eq!(questions.wait("work", id, Instant::now() + LONG), Fate::Cancelled);
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
            assert_eq!(waiting.join().unwrap(), Fate::AllEnded);
        });
        // Another process may have raised it, and wait for the answer.
        questions.leave_to_others("work", id);
        assert_eq!(questions.wait("work", id, Instant::now()), Fate::TimeIsUp);
        // Those of file tools have no command.
        ask(&questions, StepId(2));
        assert_eq!(questions.wait("work", id, Instant::now()), Fate::TimeIsUp);
    }

    /// Somebody else may have answered meanwhile, and those who were asked are to hear of it.
    #[test]
    fn a_question_that_is_about_to_be_denied_is_open_until_that_is_done() {
        let questions = Questions::default();
        let _command = questions.may_come_from(1, false);
        let id = ask(&questions, StepId(1));
        questions.deny_those_of(1);
        assert_eq!(questions.wait("work", id, Instant::now() + LONG), Fate::Cancelled);
        assert!(questions.is_open("work", id));
        assert!(questions.settle("work", id));
        assert!(!questions.settle("work", id));
    }

    #[test]
    fn an_answer_is_all_that_is_waited_for() {
        let questions = Questions::default();
        let id = ask(&questions, StepId(1));
        questions.settle("work", id);
        assert_eq!(questions.wait("work", id, Instant::now() + LONG), Fate::Answered);
    }
}
