//! What happens as time goes by.

use std::time::Instant;

use super::{Command, ControlHost, Event, Outcome};
use crate::message::CommandId;

impl ControlHost {
    /// Does what is due. To be called at [`next_deadline`](Self::next_deadline); more often is
    /// harmless.
    pub fn advance(&mut self, now: Instant) {
        self.end_timed_out(now);
        self.give_up_on_overdue(now);
    }

    /// When to call [`advance`](Self::advance) next, if nothing else happens.
    pub fn next_deadline(&self) -> Option<Instant> {
        let time_up = self.commands.values().filter_map(|command| command.times_out_at).min();
        let expected = self.commands.values().filter(|_| self.still_since.is_none());
        let overdue = expected.filter_map(|command| command.give_up_at).min();
        [time_up, overdue].into_iter().flatten().min()
    }

    /// The command has ended, one way or another.
    pub(super) fn end(&mut self, id: CommandId, outcome: Outcome) {
        self.commands.remove(&id);
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
            self.end(id, Outcome::Unresponsive);
        }
    }
}
