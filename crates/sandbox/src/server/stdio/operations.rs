//! Each operation, handed to the desk.

use codeagent_stdio::operations::{
    AgentExecute, AgentOperations, AgentPrompt, Executed, FileContent, FsList, FsOperations,
    FsRead, FsStatus, FsStatusQuery, Listing, Prompted, RestoreReport, RollbackReport,
    SafeguardConfigure, SafeguardConfirm, SafeguardOperations, SafeguardSettings,
    SessionOperations, SessionReset, SessionStart, SessionStatus, SessionStatusQuery, SessionStop,
    StepBegin, StepBegun, StepCommit, StepCommitted, StepDiff, StepOperations, StepRollback,
    UndoConfigure, UndoDiff, UndoDiscard, UndoHistory, UndoHistoryReply, UndoLimits,
    UndoOperations, UndoPin, UndoPreview, UndoPreviewed, UndoRedo, UndoRestore, UndoRollback,
};
use codeagent_stdio::{
    AgentOutput, Call, Event, Outcome, StepCompleted, StepSummary, TerminalOutput,
};

use super::Frontend;
use crate::server::desk::Said;

impl SessionOperations for Frontend {
    fn start(&self, request: SessionStart, _: &Call) -> Outcome<SessionStatus> {
        self.desk.start(request)
    }

    fn stop(&self, _: SessionStop, _: &Call) -> Outcome<()> {
        self.desk.stop()
    }

    fn reset(&self, _: SessionReset, _: &Call) -> Outcome<SessionStatus> {
        self.desk.reset()
    }

    fn status(&self, _: SessionStatusQuery, _: &Call) -> Outcome<SessionStatus> {
        self.desk.status()
    }
}

impl UndoOperations for Frontend {
    fn rollback(&self, request: UndoRollback, _: &Call) -> Outcome<RollbackReport> {
        self.desk.rollback(request)
    }

    fn redo(&self, request: UndoRedo, _: &Call) -> Outcome<RollbackReport> {
        self.desk.redo(request)
    }

    fn preview(&self, request: UndoPreview, _: &Call) -> Outcome<UndoPreviewed> {
        self.desk.preview(request)
    }

    fn restore(&self, request: UndoRestore, _: &Call) -> Outcome<RestoreReport> {
        self.desk.restore(request)
    }

    fn history(&self, request: UndoHistory, _: &Call) -> Outcome<UndoHistoryReply> {
        self.desk.history(request)
    }

    fn diff(&self, request: UndoDiff, _: &Call) -> Outcome<StepDiff> {
        self.desk.diff(request)
    }

    fn pin(&self, request: UndoPin, _: &Call) -> Outcome<()> {
        self.desk.pin(request)
    }

    fn configure(&self, request: UndoConfigure, _: &Call) -> Outcome<UndoLimits> {
        self.desk.configure(request)
    }

    fn discard(&self, request: UndoDiscard, _: &Call) -> Outcome<()> {
        self.desk.discard(request)
    }
}

impl StepOperations for Frontend {
    fn begin(&self, request: StepBegin, _: &Call) -> Outcome<StepBegun> {
        self.desk.begin_step(request)
    }

    fn commit(&self, request: StepCommit, _: &Call) -> Outcome<StepCommitted> {
        self.desk.commit_step(request)
    }

    fn rollback(&self, request: StepRollback, _: &Call) -> Outcome<StepBegun> {
        self.desk.rollback_step(request)
    }
}

impl AgentOperations for Frontend {
    fn execute(&self, request: AgentExecute, call: &Call) -> Outcome<Executed> {
        let said = |Said { stream, data }| {
            let request_id = Some(call.request_id.clone());
            call.events.emit(&Event::TerminalOutput(TerminalOutput { request_id, stream, data }));
        };
        let executed = self.desk.execute(request, (&call.request_id, &call.cancel), said)?;
        announce(&executed.steps, call);
        Ok(executed)
    }

    fn prompt(&self, request: AgentPrompt, call: &Call) -> Outcome<Prompted> {
        let said = |Said { stream, data }| {
            let request_id = call.request_id.clone();
            call.events.emit(&Event::AgentOutput(AgentOutput { request_id, stream, data }));
        };
        let prompted = self.desk.prompt(request, (&call.request_id, &call.cancel), said)?;
        announce(&prompted.steps, call);
        Ok(prompted)
    }
}

fn announce(steps: &[StepSummary], call: &Call) {
    for step in steps {
        call.events.emit(&Event::StepCompleted(StepCompleted {
            request_id: Some(call.request_id.clone()),
            step: step.clone(),
        }));
    }
}

impl FsOperations for Frontend {
    fn list(&self, request: FsList, _: &Call) -> Outcome<Listing> {
        self.desk.list(request)
    }

    fn read(&self, request: FsRead, _: &Call) -> Outcome<FileContent> {
        self.desk.read(request)
    }

    fn status(&self, request: FsStatusQuery, _: &Call) -> Outcome<FsStatus> {
        self.desk.fs_status(request)
    }
}

impl SafeguardOperations for Frontend {
    fn configure(&self, request: SafeguardConfigure, _: &Call) -> Outcome<SafeguardSettings> {
        self.desk.configure_safeguards(request)
    }

    fn confirm(&self, request: SafeguardConfirm, _: &Call) -> Outcome<()> {
        self.desk.confirm(request)
    }
}
