//! From the end of a command to the end of its step, and what happens as time goes by.

use std::sync::Arc;
use std::time::Instant;

use codeagent_common::StepId;

use super::quiescence::Quiescence;
use super::{Command, ControlHost, Event, Outcome, StepSink};
use crate::error::{ControlError, Result};
use crate::message::CommandId;

#[derive(Debug)]
pub(super) struct OpenStep {
    pub(super) id: StepId,
    command: CommandId,
    phase: Phase,
}

#[derive(Debug)]
enum Phase {
    Running,
    /// The command has ended; writes may still be on their way.
    Settling {
        exit_code: Option<i32>,
        quiescence: Quiescence,
    },
    /// Closing failed; the step is open still.
    CloseFailed {
        exit_code: Option<i32>,
        again_at: Instant,
    },
}

impl<S: StepSink> ControlHost<S> {
    /// Does what is due. To be called at [`next_deadline`](Self::next_deadline); more often is
    /// harmless.
    pub fn advance(&mut self, now: Instant) {
        self.end_timed_out(now);
        self.give_up_on_overdue(now);
        self.close_settled_step(now);
        if now >= self.housekeeping_at {
            self.housekeeping_at = now + self.config.housekeeping_every;
            self.close_quiet_ambient_step();
        }
    }

    /// When to call [`advance`](Self::advance) next.
    pub fn next_deadline(&self) -> Instant {
        let time_up = self.commands.values().filter_map(|command| command.times_out_at).min();
        let expected = self.commands.values().filter(|_| self.still_since.is_none());
        let overdue = expected.filter_map(|command| command.give_up_at).min();
        let step = self.step.as_ref().and_then(|step| match &step.phase {
            Phase::Running => None,
            Phase::Settling { quiescence, .. } => Some(quiescence.look_again_at(&self.config)),
            Phase::CloseFailed { again_at, .. } => Some(*again_at),
        });
        [time_up, overdue, step].into_iter().flatten().fold(self.housekeeping_at, Instant::min)
    }

    pub(super) fn open_step(&mut self, command: CommandId, label: &str) -> Result<()> {
        if let Some(open) = &self.step {
            return Err(ControlError::StepOpen { step: open.id });
        }
        let id =
            self.sink.open_step(label).map_err(|error| ControlError::OpenStep(Arc::new(error)))?;
        self.step = Some(OpenStep { id, command, phase: Phase::Running });
        Ok(())
    }

    /// The command has ended, one way or another; its step begins to settle.
    pub(super) fn end(&mut self, id: CommandId, outcome: Outcome, now: Instant) {
        self.commands.remove(&id);
        if let Some(step) = self.step.as_mut().filter(|step| step.command == id) {
            step.phase = Phase::Settling {
                exit_code: outcome.exit_code(),
                quiescence: Quiescence::begin(now, self.sink.activity(), &self.config),
            };
        }
        self.events.push_back(Event::Ended { id, outcome });
    }

    /// The shim has a clock, too; but one that stood still for a while is late.
    fn end_timed_out(&mut self, now: Instant) {
        let time_up = |(id, command): (&CommandId, &Command)| {
            command.times_out_at.filter(|at| now >= *at).map(|at| (*id, at))
        };
        let timed_out: Vec<(CommandId, Instant)> =
            self.commands.iter().filter_map(time_up).collect();
        for (id, at) in timed_out {
            if let Ok(command) = self.command(id) {
                command.timed_out = true;
            }
            let _ = self.cancel(id, at); // it is there: just found
        }
    }

    fn give_up_on_overdue(&mut self, now: Instant) {
        if self.still_since.is_some() {
            return;
        }
        let is_overdue = |give_up_at: Option<Instant>| give_up_at.is_some_and(|at| now >= at);
        let overdue: Vec<CommandId> = self
            .commands
            .iter()
            .filter(|(_, command)| is_overdue(command.give_up_at))
            .map(|(id, _)| *id)
            .collect();
        for id in overdue {
            self.end(id, Outcome::Unresponsive, now);
        }
    }

    fn close_settled_step(&mut self, now: Instant) {
        let Some(step) = &mut self.step else { return };
        let (due, exit_code) = match &mut step.phase {
            Phase::Running => return,
            Phase::Settling { exit_code, quiescence } => {
                let activity = self.sink.activity();
                (quiescence.is_over(now, activity, self.config.quiet), *exit_code)
            }
            Phase::CloseFailed { exit_code, again_at } => (now >= *again_at, *exit_code),
        };
        if !due {
            return;
        }
        match self.sink.close_step(step.id, exit_code) {
            Ok(closed) => {
                let (step, id) = (step.id, step.command);
                self.step = None;
                self.events.push_back(Event::StepClosed { step, id, closed });
            }
            Err(error) => {
                let again_at = now + self.config.housekeeping_every;
                step.phase = Phase::CloseFailed { exit_code, again_at };
                let (step, error) = (Some(step.id), Box::new(error));
                self.events.push_back(Event::StepCloseFailed { step, error });
            }
        }
    }

    fn close_quiet_ambient_step(&mut self) {
        if self.step.is_some() {
            return;
        }
        match self.sink.close_quiet_ambient_step() {
            Ok(None) => {}
            Ok(Some(closed)) => self.events.push_back(Event::AmbientStepClosed { closed }),
            Err(error) => {
                let error = Box::new(error);
                self.events.push_back(Event::StepCloseFailed { step: None, error });
            }
        }
    }
}
