//! How a session is.

use std::path::PathBuf;
use std::sync::atomic::Ordering;

use codeagent_common::StepId;
use codeagent_interceptor::StoreStatus;
use codeagent_vm::Backend;
use serde::Serialize;

use super::folder::Keeper;
use super::{Access, Session, ViewSetting};
use crate::error::{Result, SandboxError};
use crate::executor::Isolation;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Stopped,
    Idle,
    /// A command runs.
    Running,
}

#[derive(Debug, Clone, Serialize)]
pub struct SessionStatus {
    pub state: State,
    pub isolation: Option<Isolation>,
    /// What would have been better, and why it could not be had.
    pub passed_over: Vec<(Isolation, String)>,
    /// What should keep commands in as well, and cannot be had.
    pub weakness: Option<String>,
    /// What was asked for.
    pub view: ViewSetting,
    /// What carries the folders, if there is a guest.
    pub backend: Backend,
    pub commands: Vec<u64>,
    pub in_transaction: bool,
    pub directories: Vec<FolderStatus>,
}

#[derive(Debug, Clone, Serialize)]
pub struct FolderStatus {
    pub label: String,
    pub path: PathBuf,
    pub undo_dir: PathBuf,
    pub access: Access,
    pub store: StoreStatus,
    pub open_step: Option<StepId>,
    /// The worker is kept to its two directories by everything that should do so.
    pub worker_confined: bool,
}

impl Session {
    pub fn status(&self) -> Result<SessionStatus> {
        let active = match self.active() {
            Ok(active) => active,
            Err(SandboxError::NotRunning) => return Ok(self.stopped()),
            Err(error) => return Err(error),
        };
        let commands = self.running();
        let mut directories = Vec::new();
        for folder in &active.folders {
            let keeper = folder.keeper()?;
            let store = keeper.client().status()?;
            let confinement = match &*keeper {
                Keeper::Own(worker) => Some(worker.ready().confinement),
                Keeper::Other(client) => client.hello()?.confinement,
            };
            directories.push(FolderStatus {
                label: folder.label.clone(),
                path: folder.path.clone(),
                undo_dir: folder.undo_dir.clone(),
                access: folder.access,
                open_step: store.open_step,
                store,
                worker_confined: confinement
                    .is_some_and(codeagent_worker::Confinement::is_complete),
            });
        }
        Ok(SessionStatus {
            state: if commands.is_empty() { State::Idle } else { State::Running },
            isolation: Some(active.executor.isolation()),
            passed_over: active.passed_over.clone(),
            weakness: active.executor.weakness(),
            view: self.options.view,
            backend: self.options.vm.backend,
            commands,
            in_transaction: active.in_transaction.load(Ordering::SeqCst),
            directories,
        })
    }

    fn stopped(&self) -> SessionStatus {
        SessionStatus {
            state: State::Stopped,
            isolation: None,
            passed_over: vec![],
            weakness: None,
            view: self.options.view,
            backend: self.options.vm.backend,
            commands: vec![],
            in_transaction: false,
            directories: vec![],
        }
    }
}
