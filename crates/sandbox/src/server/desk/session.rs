//! `session.*`

use std::path::PathBuf;

use codeagent_common::ErrorCode;
use codeagent_network::{BadRule, Rule};
use codeagent_stdio::operations::{
    Access, DirectoryStatus, Isolation, NetworkPolicy, RunningCommand, SessionStart, SessionState,
    SessionStatus, UndoStatus, View, VmMode, WorkingDirectory,
};
use codeagent_stdio::{Failure, Outcome};

use super::{Desk, failure, safeguards, triggered, undo};
use crate::config;
use crate::error::SandboxError;
use crate::executor::{Isolation as OurIsolation, IsolationChoice};
use crate::session::{
    Access as OurAccess, FolderOptions, FolderStatus, NetworkChoice, SessionOptions,
    SessionStatus as OurStatus, State, ViewSetting,
};

impl Desk {
    pub(crate) fn start(&self, request: SessionStart) -> Outcome<SessionStatus> {
        let mut options = self.options(request)?;
        let ignored = config::tighten_for_projects(&mut options).map_err(failure)?;
        self.hub.start(options).map_err(failure)?;
        let mut status = self.status()?;
        status.warnings.extend(ignored);
        Ok(status)
    }

    pub(crate) fn stop(&self) -> Outcome<()> {
        self.hub.stop().map_err(failure)
    }

    pub(crate) fn reset(&self) -> Outcome<SessionStatus> {
        self.session()?.reset().map_err(failure)?;
        self.status()
    }

    /// What the command line and the user's configuration say, and what the frontend wants.
    fn options(&self, request: SessionStart) -> Outcome<SessionOptions> {
        let mut options = self.hub.defaults().clone();
        options.folders = request.working_directories.into_iter().map(folder).collect();
        // The place of the first folder's history is a flag, too.
        if let (Some(given), Some(first)) =
            (self.hub.defaults().folders.first(), options.folders.first_mut())
            && given.path == first.path
            && first.undo_dir.is_none()
        {
            first.undo_dir.clone_from(&given.undo_dir);
        }
        if let Some(isolation) = request.isolation {
            options.isolation = match isolation {
                Isolation::Auto => IsolationChoice::Auto,
                Isolation::Vm => IsolationChoice::Vm,
                Isolation::Namespace => IsolationChoice::Namespace,
                Isolation::Host => IsolationChoice::Host,
            };
        }
        if let Some(view) = request.view {
            options.view = view_of(view);
        }
        if let Some(policy) = request.network_policy {
            options.network = network(policy);
        }
        if !request.network_allowlist.is_empty() {
            options.allow_hosts = hosts(&request.network_allowlist)?;
        }
        if let Some(mode) = request.vm_mode {
            options.persistent = mode == VmMode::Persistent;
        }
        if let Some(settings) = request.safeguards {
            options.safeguards = safeguards::config(&settings, options.safeguards);
        }
        if let Some(limits) = request.undo_limits {
            options.limits = undo::limits(&limits, options.limits);
        }
        if let Some(policy) = request.external_modifications {
            options.external_modifications = policy;
        }
        options.symlinks = request.symlinks.unwrap_or(options.symlinks);
        Ok(options)
    }

    pub(crate) fn status(&self) -> Outcome<SessionStatus> {
        let session = match self.hub.session() {
            Ok(session) => session,
            Err(SandboxError::NotRunning) => return Ok(self.nothing()),
            Err(error) => return Err(failure(error)),
        };
        let status = session.status().map_err(failure)?;
        let options = session.options();
        Ok(SessionStatus {
            state: match status.state {
                State::Stopped => SessionState::Idle,
                State::Idle | State::Running => SessionState::Running,
            },
            isolation: status.isolation.map(isolation),
            view: Some(view(options.view)),
            network_policy: Some(match options.network {
                NetworkChoice::Open => NetworkPolicy::Open,
                NetworkChoice::Allowlist => NetworkPolicy::Allowlist,
                NetworkChoice::Disabled => NetworkPolicy::Disabled,
            }),
            vm_mode: Some(match options.persistent {
                true => VmMode::Persistent,
                false => VmMode::Ephemeral,
            }),
            warnings: warnings(&status),
            directories: status
                .directories
                .iter()
                .map(|folder| directory(folder, &status))
                .collect(),
            ..self.nothing()
        })
    }

    fn nothing(&self) -> SessionStatus {
        let requests = self.requests.lock();
        let command = |(id, command): (u64, crate::server::hub::RunningCommand)| RunningCommand {
            request_id: requests.get(&id).cloned(),
            command: command.line,
            started_at_ms: command.started_at,
        };
        SessionStatus {
            state: SessionState::Idle,
            isolation: None,
            view: None,
            network_policy: None,
            vm_mode: None,
            warnings: vec![],
            directories: vec![],
            commands: self.hub.commands().into_iter().map(command).collect(),
            safeguards: self.hub.questions().iter().map(triggered).collect(),
            mcp_socket: self.hub.mcp_socket().map(|path| path.display().to_string()),
        }
    }
}

fn folder(directory: WorkingDirectory) -> FolderOptions {
    FolderOptions {
        undo_dir: directory.undo_directory.map(PathBuf::from),
        label: directory.label,
        access: match directory.access {
            Access::ReadWrite => OurAccess::ReadWrite,
            Access::ReadOnly => OurAccess::ReadOnly,
        },
        ..FolderOptions::new(directory.path)
    }
}

fn network(policy: NetworkPolicy) -> NetworkChoice {
    match policy {
        NetworkPolicy::Disabled => NetworkChoice::Disabled,
        NetworkPolicy::Open => NetworkChoice::Open,
        NetworkPolicy::Allowlist => NetworkChoice::Allowlist,
    }
}

fn hosts(texts: &[String]) -> Outcome<Vec<Rule>> {
    let host = |(nth, text): (usize, &String)| {
        text.parse().map_err(|error: BadRule| {
            Failure::new(ErrorCode::BadRequest, error.to_string())
                .hinted("write it as 10.0.0.0/8, example.org:443 or *.example.org")
                .at(format!("payload.network_allowlist[{nth}]"))
        })
    };
    texts.iter().enumerate().map(host).collect()
}

pub(crate) fn view_of(view: View) -> ViewSetting {
    match view {
        View::Auto => ViewSetting::Auto,
        View::Transactional => ViewSetting::Transactional,
        View::Live => ViewSetting::Live,
        View::ReadOnly => ViewSetting::ReadOnly,
    }
}

fn view(view: ViewSetting) -> View {
    match view {
        ViewSetting::Auto => View::Auto,
        ViewSetting::Transactional => View::Transactional,
        ViewSetting::Live => View::Live,
        ViewSetting::ReadOnly => View::ReadOnly,
    }
}

pub(crate) fn isolation(isolation: OurIsolation) -> Isolation {
    match isolation {
        OurIsolation::Vm => Isolation::Vm,
        OurIsolation::Namespace => Isolation::Namespace,
        OurIsolation::Host => Isolation::Host,
    }
}

/// Everything that is not as protected as it could be.
pub(crate) fn warnings(status: &OurStatus) -> Vec<String> {
    let mut warnings = Vec::new();
    if status.isolation == Some(OurIsolation::Host) {
        warnings.push("commands run on this machine as they are: nothing contains them".to_owned());
    }
    for (better, reason) in &status.passed_over {
        warnings.push(format!("{better} isolation cannot be had: {reason}"));
    }
    warnings.extend(status.weakness.clone());
    for folder in &status.directories {
        if !folder.worker_confined {
            warnings.push(format!("what serves {} is not fully confined", folder.label));
        }
        if !folder.store.unprotected.is_empty() {
            let count = folder.store.unprotected.len();
            warnings.push(format!("{count} steps in {} cannot be undone", folder.label));
        }
        if let Some(found) = &folder.store.disabled_by_version {
            warnings.push(format!(
                "nothing is recorded in {}: its history is of format {found}",
                folder.label
            ));
        }
    }
    warnings
}

fn directory(folder: &FolderStatus, status: &OurStatus) -> DirectoryStatus {
    let store = &folder.store;
    let backend = super::files::front_end(status.isolation, status.view, status.backend);
    let undo = UndoStatus {
        undo_directory: folder.undo_dir.display().to_string(),
        steps: store.steps as u64,
        redoable: store.redoable as u64,
        stored_bytes: store.stored_bytes,
        held_bytes: store.held_bytes,
        free_bytes: store.free_bytes,
        open_step_id: store.open_step,
        unprotected_step_ids: store.unprotected.clone(),
        disabled: store.disabled_by_version.clone(),
    };
    DirectoryStatus {
        path: folder.path.display().to_string(),
        label: folder.label.clone(),
        access: match folder.access {
            OurAccess::ReadWrite => Access::ReadWrite,
            OurAccess::ReadOnly => Access::ReadOnly,
        },
        backend: backend.to_owned(),
        undo: (folder.access == OurAccess::ReadWrite).then_some(undo),
    }
}
