//! Getting at an undo log: through the process that holds it, or, if there is none, by opening it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use codeagent_common::ErrorCode;
use codeagent_interceptor::{EngineConfig, UndoEngine, working_dir_of};
use codeagent_worker::{Client, Greeting, Server, Unreachable, WorkerError, end_orphan};

use super::log::Found;
use super::output::notice;
use crate::error::{Result, SandboxError};

/// How long a process that is about to let go of an undo log may take.
const ENDING: Duration = Duration::from_secs(2);
const ASK_AGAIN: Duration = Duration::from_millis(10);

/// Whoever holds the undo log; this process, if nobody does.
pub(crate) fn holder(found: &Found) -> Result<Client> {
    let since = Instant::now();
    loop {
        let held = match served(&found.undo_dir) {
            Err(SandboxError::NotServed) => open(found),
            outcome => outcome,
        };
        match held {
            Err(error) if error.code() == ErrorCode::UndoLocked && since.elapsed() < ENDING => {
                std::thread::sleep(ASK_AGAIN);
            }
            outcome => return outcome,
        }
    }
}

/// The process that serves the folder.
pub(crate) fn served(undo_dir: &Path) -> Result<Client> {
    let (client, greeting) = greet(undo_dir)?;
    if !greeting.orphaned {
        return Ok(client);
    }
    // The process it belonged to has gone, or was killed: what that left unfinished is taken back
    // first. Others may be at work there still.
    end_orphan(undo_dir)?;
    greet(undo_dir).map(|(client, _)| client)
}

fn greet(undo_dir: &Path) -> Result<(Client, Greeting)> {
    let client = match Client::connect(undo_dir) {
        Ok(client) => client,
        Err(Unreachable::Nobody) if working_dir_of(undo_dir)?.is_none() => {
            return Err(SandboxError::NoLog(undo_dir.into()));
        }
        Err(Unreachable::Nobody) => return Err(SandboxError::NotServed),
        Err(Unreachable::Failed(error)) => return Err(error.into()),
    };
    match client.hello() {
        Ok(greeting) => Ok((client, greeting)),
        Err(WorkerError::Gone) => Err(SandboxError::NotServed),
        Err(error) => Err(error.into()),
    }
}

fn open(Found { working_dir, undo_dir }: &Found) -> Result<Client> {
    let engine = UndoEngine::open(EngineConfig::new(working_dir, undo_dir))?;
    if engine.recovery().is_some() {
        // Nobody asked for it: whoever held the log last was interrupted.
        notice("took back what an interrupted step had left unfinished");
    }
    let server = Server::local(Arc::new(engine), working_dir.clone());
    Ok(Client::over(server.connect()?, |_| {})?)
}
