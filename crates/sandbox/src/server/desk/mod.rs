//! Answers in the words of the wire protocols, out of the session that the hub has.
//!
//! Frontends and agents ask for the same things, and get them from here.

mod commands;
mod files;
mod safeguards;
mod session;
mod steps;
mod undo;

use std::collections::HashMap;
use std::sync::Arc;

use codeagent_common::{ErrorCode, RelPathBuf, SafeguardKind, StepInfo};
use codeagent_stdio::{
    DirectoryRef, Failure, Outcome, RequestId, SafeguardTriggered, StepSummary, WirePath,
    limit_paths,
};
use parking_lot::Mutex;

pub(crate) use commands::{Said, changed_meanwhile, denied, refused_paths, steps};
pub(crate) use files::open;
pub(crate) use session::{isolation, view_of, warnings};

use super::hub::{Hub, Pending};
use crate::error::SandboxError;
use crate::session::{FolderInfo, Session};

/// See the module. One for each client.
#[derive(Debug)]
pub(crate) struct Desk {
    pub(crate) hub: Arc<Hub>,
    /// Commands of this client that have not ended, by what the client calls them.
    requests: Mutex<HashMap<u64, RequestId>>,
}

impl Desk {
    pub(crate) fn new(hub: &Arc<Hub>) -> Self {
        Self { hub: Arc::clone(hub), requests: Mutex::default() }
    }

    /// Ends what the client has running.
    pub(crate) fn cancel_all(&self) {
        if let Ok(session) = self.hub.session() {
            for command in self.requests.lock().keys() {
                let _ = session.cancel(*command); // it has just ended
            }
        }
    }

    pub(crate) fn session(&self) -> Outcome<Arc<Session>> {
        self.hub.session().map_err(failure)
    }

    /// The session, and the working directory that is meant.
    pub(crate) fn directory(
        &self,
        named: Option<&DirectoryRef>,
    ) -> Outcome<(Arc<Session>, FolderInfo)> {
        let session = self.session()?;
        let mut folders = session.folders().map_err(failure)?;
        let at = match named {
            None => Some(0),
            Some(DirectoryRef::Index(index)) => usize::try_from(*index).ok(),
            Some(DirectoryRef::Name(name)) => folders.iter().position(|folder| {
                folder.label == *name || folder.path.as_os_str() == name.as_str()
            }),
        };
        match at.filter(|at| *at < folders.len()) {
            Some(at) => Ok((session, folders.swap_remove(at))),
            None => Err(Failure::new(
                ErrorCode::InvalidField,
                "there is no such working directory in this session",
            )
            .at("payload.directory")),
        }
    }
}

pub(crate) fn failure(error: SandboxError) -> Failure {
    let failure = Failure::new(error.code(), error.to_string());
    let failure = match error.hint() {
        Some(hint) => failure.hinted(hint),
        None => failure,
    };
    match &error {
        SandboxError::Failed(failed) if !failed.conflicts.is_empty() => {
            let conflicts = undo::conflicts(failed.conflicts.clone());
            failure
                .with_data(&serde_json::json!({ "conflicts": conflicts }))
                .hinted("set skip_conflicts to keep those files, or force to overwrite them")
        }
        _ => failure,
    }
}

/// The path below the directory.
pub(crate) fn within(folder: &FolderInfo, path: &WirePath) -> Outcome<RelPathBuf> {
    use std::os::unix::ffi::OsStrExt;
    Ok(path.within(folder.path.as_os_str().as_bytes())?)
}

/// A step, with the paths that it changed, as far as they are known.
pub(crate) fn summary(session: &Session, directory: &str, step: StepInfo) -> StepSummary {
    let changes = session.changes(Some(directory), step.id).unwrap_or_default();
    let paths = changes.into_iter().map(|change| change.path).collect();
    StepSummary::new(directory, step, paths)
}

pub(crate) fn triggered(question: &Pending) -> SafeguardTriggered {
    let Pending { name, directory, request, timeout, .. } = question.clone();
    let is = |kind: SafeguardKind| (request.kind == kind).then_some(request.count);
    SafeguardTriggered {
        safeguard_id: name,
        kind: request.kind,
        step_id: request.step,
        directory,
        delete_count: is(SafeguardKind::DeleteCount),
        size_bytes: is(SafeguardKind::OverwriteLarge),
        sample_paths: limit_paths(request.sample_paths).0,
        message: request.message,
        timeout_seconds: timeout.as_secs(),
    }
}
