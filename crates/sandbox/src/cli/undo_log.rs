//! Getting at an undo log: through the process that holds it, or, if there is none, by opening it.

use std::path::Path;
use std::sync::Arc;

use codeagent_interceptor::{EngineConfig, UndoEngine, working_dir_of};
use codeagent_worker::{Client, Server, Unreachable};

use super::output::notice;
use crate::error::{Result, SandboxError};

/// Whoever holds the undo log; this process, if nobody does.
pub(crate) fn holder(undo_dir: &Path) -> Result<Client> {
    match served(undo_dir) {
        Err(SandboxError::NotServed) => open(undo_dir),
        outcome => outcome,
    }
}

/// The process that serves the folder.
pub(crate) fn served(undo_dir: &Path) -> Result<Client> {
    let client = match Client::connect(undo_dir) {
        Ok(client) => client,
        Err(Unreachable::Nobody) if working_dir_of(undo_dir)?.is_none() => {
            return Err(SandboxError::NoLog(undo_dir.into()));
        }
        Err(Unreachable::Nobody) => return Err(SandboxError::NotServed),
        Err(Unreachable::Failed(error)) => return Err(error.into()),
    };
    client.hello()?;
    Ok(client)
}

fn open(undo_dir: &Path) -> Result<Client> {
    let working_dir =
        working_dir_of(undo_dir)?.ok_or_else(|| SandboxError::NoLog(undo_dir.into()))?;
    let engine = UndoEngine::open(EngineConfig::new(&working_dir, undo_dir))?;
    if engine.recovery().is_some() {
        // Nobody asked for it: whoever held the log last was interrupted.
        notice("took back what an interrupted step had left unfinished");
    }
    let server = Server::local(Arc::new(engine), working_dir);
    Ok(Client::over(server.connect()?, |_| {})?)
}
