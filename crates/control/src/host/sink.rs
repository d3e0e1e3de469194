//! Where the steps go: the one trait a session implements.

use codeagent_common::StepId;

/// Opens and closes undo steps: the undo engine itself, or a client of the process that holds it.
pub trait StepSink {
    /// What a step turned out to be.
    type Closed;
    type Error: std::error::Error + Send + Sync + 'static;

    /// From here on, changes to the working directory belong to a new step.
    fn open_step(&mut self, command: &str) -> Result<StepId, Self::Error>;

    /// Ends `step`. If it fails, the step stays open and is closed again a little later.
    fn close_step(
        &mut self,
        step: StepId,
        exit_code: Option<i32>,
    ) -> Result<Self::Closed, Self::Error>;

    /// Ends an ambient step that has been quiet for long enough, if there is one. Asked about once
    /// a second while no command has a step.
    fn close_quiet_ambient_step(&mut self) -> Result<Option<Self::Closed>, Self::Error>;

    /// What the filesystem front end is doing now.
    fn activity(&self) -> Activity;
}

/// Operations that change the working directory, as counted by the filesystem front end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Activity {
    /// Begun and not ended yet.
    pub in_flight: u64,
    /// Begun since the start. Shows operations that came and went between two looks.
    pub begun: u64,
}
