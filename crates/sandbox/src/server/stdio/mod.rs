//! The STDIO API, answered by a session. One group of operations, one file.

mod agent;
mod events;
mod files;
mod safeguards;
mod session;
mod steps;
mod undo;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;

use codeagent_common::{ErrorCode, RelPathBuf, StepInfo};
use codeagent_stdio::{
    DirectoryRef, Events, Failure, Handler, Outcome, RequestId, StdioError, StepSummary, WirePath,
};
use parking_lot::Mutex;

use super::hub::{Hub, Listening};
use crate::error::SandboxError;
use crate::session::{FolderInfo, Session};

/// Serves a frontend until it says no more. The session ends with it.
pub fn serve(
    hub: &Arc<Hub>,
    reader: impl Read,
    writer: impl Write + Send + 'static,
) -> Result<(), StdioError> {
    let frontend = Arc::new(Frontend {
        hub: Arc::clone(hub),
        listening: Mutex::default(),
        requests: Mutex::default(),
    });
    let served = codeagent_stdio::serve(reader, writer, frontend);
    // Without a session there is nothing to end, and its other troubles nobody hears any more.
    let _ = hub.stop();
    served
}

/// One frontend.
pub(crate) struct Frontend {
    hub: Arc<Hub>,
    /// For as long as it is connected.
    listening: Mutex<Option<Listening>>,
    /// Commands of this frontend that have not ended.
    requests: Mutex<HashMap<u64, RequestId>>,
}

impl Handler for Frontend {
    fn connected(&self, events: &Events) {
        let events = events.clone();
        let listening = self.hub.listen(move |heard| {
            events::translate(heard).iter().for_each(|event| events.emit(event));
        });
        *self.listening.lock() = Some(listening);
    }

    /// What it left running is of no use to anybody, and would keep its sandbox alive.
    fn input_ended(&self) {
        if let Ok(session) = self.hub.session() {
            for command in self.requests.lock().keys() {
                let _ = session.cancel(*command); // it has just ended
            }
        }
    }
}

impl Frontend {
    fn session(&self) -> Outcome<Arc<Session>> {
        self.hub.session().map_err(failure)
    }

    /// The session, and the working directory that is meant.
    fn directory(&self, named: Option<&DirectoryRef>) -> Outcome<(Arc<Session>, FolderInfo)> {
        let session = self.session()?;
        let mut folders = session.folders().map_err(failure)?;
        let at = match named {
            None => Some(0),
            Some(DirectoryRef::Index(index)) => usize::try_from(*index).ok(),
            Some(DirectoryRef::Name(name)) => folders
                .iter()
                .position(|folder| folder.label == *name || folder.path.as_os_str() == name.as_str()),
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

fn failure(error: SandboxError) -> Failure {
    let failure = Failure::new(error.code(), error.to_string());
    let failure = match error.hint() {
        Some(hint) => failure.hinted(hint),
        None => failure,
    };
    match &error {
        SandboxError::Failed(failed) if !failed.conflicts.is_empty() => {
            failure.with_data(&undo::conflicts(failed.conflicts.clone()))
        }
        _ => failure,
    }
}

/// The path below the directory.
fn within(folder: &FolderInfo, path: &WirePath) -> Outcome<RelPathBuf> {
    use std::os::unix::ffi::OsStrExt;
    Ok(path.within(folder.path.as_os_str().as_bytes())?)
}

/// A step, with the paths that it changed, as far as they are known.
fn summary(session: &Session, directory: &str, step: StepInfo) -> StepSummary {
    let changes = session.changes(Some(directory), step.id).unwrap_or_default();
    let paths = changes.into_iter().map(|change| change.path).collect();
    StepSummary::new(directory, step, paths)
}
