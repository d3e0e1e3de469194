//! Whose turn it is. Only one connection at a time has a step of its own; what it leaves unfinished
//! when it breaks is given up, because nobody knows its end. As long as anybody but the owner of
//! the worker is at work, the worker stays.
//!
//! Commands in the background take no turns. How many there are is counted for each connection, and
//! those of one that breaks end with it, once nobody is served for it any more.
//!
//! What one connection does never ends up in a transaction of another, with which it would be taken
//! back: beside a transaction nobody else begins anything, and beside somebody else who may write
//! at any time no transaction begins.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::OnceLock;
use std::time::Duration;

use codeagent_common::{ErrorCode, StepId};
use codeagent_interceptor::{AbortedStep, UndoEngine};
use parking_lot::Mutex;

use crate::protocol::{Backgrounds, Failure};
use crate::server::Owner;

/// How long the mounts of a command may outlive the process that ran it.
const DETACH_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
pub(crate) struct Turns {
    /// The connection of the process that started the worker.
    owner: OnceLock<u64>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// No more turns: the worker ends.
    closed: bool,
    turn: Option<Turn>,
    /// Begun during a turn, and not ended.
    transaction: Option<Step>,
    served: Vec<Served>,
    /// Commands in the background, by connection.
    background: BTreeMap<u64, u32>,
    lingering: Vec<Lingering>,
}

/// Commands in the background whose connection is gone, and through what they may still write.
#[derive(Debug)]
struct Lingering {
    commands: u32,
    attachments: BTreeSet<u64>,
}

#[derive(Debug)]
struct Turn {
    connection: u64,
    step: Option<StepId>,
}

/// A step, and the connection that began it.
#[derive(Debug, Clone, Copy)]
struct Step {
    connection: u64,
    id: StepId,
}

/// An attachment, and the connection that asked for it.
#[derive(Debug, Clone, Copy)]
struct Served {
    connection: u64,
    attachment: u64,
}

impl Turns {
    pub(crate) fn owner_is(&self, connection: u64) {
        let _ = self.owner.set(connection); // there is but one
    }

    /// `false`: somebody else has it.
    pub(crate) fn take(&self, connection: u64) -> bool {
        let mut state = self.state.lock();
        if state.turn.is_none() && !state.closed {
            state.turn = Some(Turn { connection, step: None });
        }
        state.turn.as_ref().is_some_and(|turn| turn.connection == connection)
    }

    pub(crate) fn end(&self, connection: u64) {
        self.state.lock().turn.take_if(|turn| turn.connection == connection);
    }

    /// `None`: nobody's; otherwise whether it is the one of this connection.
    pub(crate) fn is_of(&self, connection: u64) -> Option<bool> {
        self.state.lock().turn.as_ref().map(|turn| turn.connection == connection)
    }

    pub(crate) fn opened(&self, connection: u64, step: StepId) {
        if let Some(turn) = self.state.lock().turn_of(connection) {
            turn.step = Some(step);
        }
    }

    /// Refuses whoever is not the one who has a transaction, if somebody has.
    pub(crate) fn admit(&self, connection: u64) -> Result<(), Failure> {
        let others = |step: &Step| step.connection != connection;
        match self.state.lock().transaction.filter(others) {
            None => Ok(()),
            Some(step) => Err(Failure {
                hint: Some("wait until it has been committed or rolled back".into()),
                ..Failure::new(
                    ErrorCode::TransactionOpen,
                    format!(
                        "another process has a transaction open in this folder (step {})",
                        step.id
                    ),
                )
            }),
        }
    }

    /// Refuses a transaction if anybody else is served, and so may write at any time.
    pub(crate) fn admit_transaction(
        &self,
        connection: u64,
        server: Option<&dyn Owner>,
    ) -> Result<(), Failure> {
        let others = |served: &Served| {
            served.connection != connection
                && server.is_some_and(|server| server.is_served(served.attachment))
        };
        match self.state.lock().served.iter().any(others) {
            false => Ok(()),
            true => Err(Failure::new(
                ErrorCode::Busy,
                "another process has a command in the background in this folder, whose changes a \
                 transaction would take along",
            )),
        }
    }

    pub(crate) fn began_transaction(&self, connection: u64, id: StepId) {
        let mut state = self.state.lock();
        if state.turn_of(connection).is_some() {
            state.transaction = Some(Step { connection, id });
        }
    }

    pub(crate) fn ended_transaction(&self) {
        self.state.lock().transaction = None;
    }

    pub(crate) fn attached(&self, connection: u64, attachment: u64) {
        self.state.lock().served.push(Served { connection, attachment });
    }

    pub(crate) fn attachments_of(&self, connection: u64) -> Vec<u64> {
        let state = self.state.lock();
        let served = state.served.iter().filter(|served| served.connection == connection);
        served.map(|served| served.attachment).collect()
    }

    pub(crate) fn begin_background(&self, connection: u64, engine: &UndoEngine) {
        // Without the lock: the engine may be busy. A connection breaks off after all of its calls.
        engine.begin_background();
        *self.state.lock().background.entry(connection).or_default() += 1;
    }

    /// Nobody ends what is not his.
    pub(crate) fn end_background(
        &self,
        connection: u64,
        engine: &UndoEngine,
    ) -> Result<(), Failure> {
        {
            let mut state = self.state.lock();
            let Some(count) = state.background.get_mut(&connection) else {
                let message = "this connection has no command in the background";
                return Err(Failure::new(ErrorCode::BadRequest, message));
            };
            *count -= 1;
            if *count == 0 {
                state.background.remove(&connection);
            }
        }
        engine.end_background();
        Ok(())
    }

    pub(crate) fn backgrounds(&self, connection: u64) -> Backgrounds {
        let state = self.state.lock();
        let own = state.background.get(&connection).copied().unwrap_or(0);
        let all: u32 = state.background.values().sum();
        Backgrounds { own, others: all - own }
    }

    /// Whether nobody but the owner is at work; then there will be no more turns.
    pub(crate) fn close(&self, server: Option<&dyn Owner>) -> bool {
        let mut state = self.state.lock();
        state
            .served
            .retain(|served| server.is_some_and(|server| server.is_served(served.attachment)));
        let others = |connection: u64| self.owner.get() != Some(&connection);
        let at_work = state.turn.as_ref().is_some_and(|turn| others(turn.connection))
            || state.transaction.is_some_and(|step| others(step.connection))
            || state.served.iter().any(|served| others(served.connection))
            || state.background.keys().any(|connection| others(*connection));
        state.closed = !at_work;
        state.closed
    }

    /// The other end has gone, and what it called for is done. The next one has its turn when
    /// nothing is left of the last one's step.
    pub(crate) fn broke_off(
        &self,
        connection: u64,
        engine: &UndoEngine,
        server: Option<&dyn Owner>,
    ) -> Vec<AbortedStep> {
        let (steps, served, writes) = {
            let state = self.state.lock();
            let (steps, served) = state.left_by(connection);
            (steps, served, state.background.contains_key(&connection))
        };
        // Its processes end with it, a moment later.
        if writes || !steps.is_empty() {
            for served in &served {
                let gone = |server: &dyn Owner| {
                    server.wait_until_detached(served.attachment, DETACH_PATIENCE)
                };
                server.map(gone);
            }
        }
        // At the worst, the next start recovers.
        let give_up = |step: StepId| engine.give_up_unfinished(step).unwrap_or_default();
        let given_up = steps.into_iter().filter_map(give_up).collect();
        let ended = self.state.lock().leave_background(connection, &served, server);
        (0..ended).for_each(|_| engine.end_background());
        let mut state = self.state.lock();
        state.turn.take_if(|turn| turn.connection == connection);
        state.transaction.take_if(|step| step.connection == connection);
        // A mount that nobody takes away is not work.
        state.served.retain(|served| served.connection != connection);
        given_up
    }

    /// Nobody writes through this attachment any more.
    pub(crate) fn detached(&self, attachment: u64, engine: &UndoEngine) {
        let mut ended = 0;
        self.state.lock().lingering.retain_mut(|lingering| {
            lingering.attachments.remove(&attachment);
            if lingering.attachments.is_empty() {
                ended += lingering.commands;
            }
            !lingering.attachments.is_empty()
        });
        (0..ended).for_each(|_| engine.end_background());
    }
}

impl State {
    fn turn_of(&mut self, connection: u64) -> Option<&mut Turn> {
        self.turn.as_mut().filter(|turn| turn.connection == connection)
    }

    /// How many commands in the background have ended with this connection. Those that are served
    /// still, nobody knows why, end when that does.
    fn leave_background(
        &mut self,
        connection: u64,
        served: &[Served],
        server: Option<&dyn Owner>,
    ) -> u32 {
        let commands = self.background.remove(&connection).unwrap_or(0);
        let attachments: BTreeSet<u64> = served
            .iter()
            .map(|served| served.attachment)
            .filter(|attachment| server.is_some_and(|server| server.is_served(*attachment)))
            .collect();
        if commands == 0 || attachments.is_empty() {
            return commands;
        }
        self.lingering.push(Lingering { commands, attachments });
        0
    }

    fn left_by(&self, connection: u64) -> (Vec<StepId>, Vec<Served>) {
        let step = self.turn.as_ref().filter(|turn| turn.connection == connection);
        let step = step.and_then(|turn| turn.step);
        let transaction = self.transaction.filter(|step| step.connection == connection);
        let steps = step.into_iter().chain(transaction.map(|step| step.id)).collect();
        let served = self.served.iter().filter(|served| served.connection == connection);
        (steps, served.copied().collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use codeagent_interceptor::{EngineConfig, StepRequest};
    use codeagent_test_support::{Applier, TempWorkspace};

    use super::*;

    /// Whoever is served stays so until told otherwise.
    struct Mounts(AtomicBool);

    impl Owner for Mounts {
        fn attach(&self, _: OwnedFd, _: Option<OwnedFd>, _: &[u8]) -> std::io::Result<u64> {
            Ok(7)
        }

        fn wait_until_detached(&self, _: u64, _: Duration) -> bool {
            !self.is_attached()
        }

        fn wait_until_answered(&self, _: &[u64], _: Duration) -> bool {
            true
        }

        fn is_attached(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }

        fn is_served(&self, _: u64) -> bool {
            self.is_attached()
        }

        fn is_orphaned(&self) -> bool {
            false
        }

        fn shut_down(&self, _: Duration) {}
    }

    /// Whether a step that is given up now is kept.
    fn is_shared(engine: &UndoEngine, workspace: &TempWorkspace) -> bool {
        engine.open_step(StepRequest::command("work")).unwrap();
        Applier::new(engine, workspace.working()).create("new", b"").unwrap();
        let is_kept = matches!(engine.abort_step().unwrap(), AbortedStep::Kept(_));
        if is_kept {
            std::fs::remove_file(workspace.path("new")).unwrap();
        }
        is_kept
    }

    #[test]
    fn background_commands_that_may_still_write_count_after_their_connection_has_broken() {
        let workspace = TempWorkspace::new();
        let config = EngineConfig::new(workspace.working(), workspace.undo());
        let engine = UndoEngine::open(config).unwrap();
        let (turns, mounts) = (Turns::default(), Mounts(AtomicBool::new(true)));
        turns.attached(1, 7);
        turns.begin_background(1, &engine);
        turns.broke_off(1, &engine, Some(&mounts));
        assert!(is_shared(&engine, &workspace));
        turns.detached(8, &engine);
        assert!(is_shared(&engine, &workspace), "another one's end");
        mounts.0.store(false, Ordering::SeqCst);
        turns.detached(7, &engine);
        assert!(!is_shared(&engine, &workspace));
        // If it has gone by then, nothing lingers.
        turns.attached(2, 9);
        turns.begin_background(2, &engine);
        turns.broke_off(2, &engine, Some(&mounts));
        assert!(!is_shared(&engine, &workspace));
    }

    #[test]
    fn one_connection_at_a_time_has_the_turn_and_only_it_can_end_it() {
        let turns = Turns::default();
        assert_eq!(turns.is_of(1), None);
        assert!(turns.take(1) && turns.take(1));
        assert!(!turns.take(2));
        assert_eq!((turns.is_of(1), turns.is_of(2)), (Some(true), Some(false)));
        turns.end(2);
        assert!(!turns.take(2));
        turns.end(1);
        assert!(turns.take(2));
    }

    #[test]
    fn a_worker_may_end_when_only_its_owner_is_at_work_and_gives_no_turn_after_that() {
        let turns = Turns::default();
        turns.owner_is(1);
        assert!(turns.take(2));
        assert!(!turns.close(None));
        turns.began_transaction(2, StepId(1));
        turns.end(2);
        assert!(!turns.close(None), "a transaction of somebody else");
        turns.ended_transaction();
        assert!(turns.take(1));
        assert!(turns.close(None));
        turns.end(1);
        assert!(!turns.take(2));
    }

    #[test]
    fn beside_a_transaction_nobody_else_begins_anything() {
        let turns = Turns::default();
        turns.take(1);
        turns.began_transaction(1, StepId(7));
        turns.end(1);
        assert!(turns.admit(1).is_ok());
        let refused = turns.admit(2).unwrap_err();
        assert_eq!(refused.code, ErrorCode::TransactionOpen);
        turns.ended_transaction();
        assert!(turns.admit(2).is_ok());
    }
}
