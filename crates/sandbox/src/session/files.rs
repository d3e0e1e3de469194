//! Changes that file tools make, each a step.

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use codeagent_common::{PathUse, PathVerdict};
use codeagent_interceptor::{ClosedStep, PathPolicy, StepRequest, UndoError};
use codeagent_worker::FileChange as WorkerChange;
use serde_bytes::ByteBuf;

use super::lane::Patience;
use super::{Access, Session};
use crate::error::{Result, SandboxError};

/// How long to wait for a command that runs.
const PATIENCE: Duration = Duration::from_secs(10);

/// A change by the host. Paths are those of the host, or relative to the first working directory;
/// symlinks are not followed, in no part of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileChange {
    /// Makes the file, or replaces what is in it; directories above it are made.
    Write { path: PathBuf, content: Vec<u8> },
    /// Makes the directory and those above it.
    MakeDir { path: PathBuf },
    /// With `recursive`, whatever is in it.
    Remove { path: PathBuf, recursive: bool },
    /// Within one working directory.
    Rename { from: PathBuf, to: PathBuf },
}

impl FileChange {
    fn path(&self) -> &Path {
        match self {
            Self::Write { path, .. } | Self::MakeDir { path } | Self::Remove { path, .. } => path,
            Self::Rename { to, .. } => to,
        }
    }
}

impl Session {
    /// Makes a change as one step, which is called `label` in the history. If it fails, nothing
    /// of it is left.
    pub fn change_files(&self, label: &str, changes: &[FileChange]) -> Result<ClosedStep> {
        self.change_files_announced(label, changes, |_| {})
    }

    /// As [`Session::change_files`]; the number that its questions go by, as those of a command do,
    /// is announced before it begins.
    pub fn change_files_announced(
        &self,
        label: &str,
        changes: &[FileChange],
        announce: impl FnOnce(u64),
    ) -> Result<ClosedStep> {
        let active = self.active()?;
        let first = changes
            .first()
            .ok_or_else(|| SandboxError::usage("nothing to change", "name at least one change"))?;
        let (folder, _) = active.locate(first.path())?;
        let mut orders = Vec::new();
        for change in changes {
            // The worker judges, too; here there is room to say by which rule.
            let judged = |path: &Path, usage: PathUse| {
                let (owner, below) = active.locate(path)?;
                if owner.path != folder.path {
                    return Err(SandboxError::OutsidePath(path.into()));
                }
                match self.guard.judge(below.as_path(), usage) {
                    PathVerdict::Deny(rule) => {
                        Err(UndoError::PathProtected { path: below, rule }.into())
                    }
                    _ => Ok(below),
                }
            };
            let inside = |path: &Path| {
                let (_, below) = active.locate(path)?;
                let is_in_place = self.guard.inspects(below.as_path());
                judged(path, if is_in_place { PathUse::Write } else { PathUse::Appear })
            };
            match change {
                FileChange::Write { path, content } => {
                    let path = inside(path)?;
                    if let Some(parent) = path.as_path().parent().filter(|parent| !parent.is_root())
                    {
                        orders.push(WorkerChange::MakeDir { path: parent.to_buf() });
                    }
                    orders.push(WorkerChange::Write {
                        path,
                        content: ByteBuf::from(content.clone()),
                    });
                }
                FileChange::MakeDir { path } => {
                    orders.push(WorkerChange::MakeDir { path: inside(path)? });
                }
                FileChange::Remove { path, recursive } => {
                    let recursive = *recursive;
                    orders.push(WorkerChange::Remove {
                        path: judged(path, PathUse::Disappear)?,
                        recursive,
                    });
                }
                FileChange::Rename { from, to } => {
                    orders.push(WorkerChange::Rename {
                        from: judged(from, PathUse::Disappear)?,
                        to: inside(to)?,
                    });
                }
            }
        }
        if folder.access == Access::ReadOnly {
            return Err(SandboxError::ReadOnly(folder.path.clone()));
        }
        let id = self.next_command.fetch_add(1, Ordering::Relaxed);
        announce(id);
        let _turn = active.take_turn_in(folder, &Patience::of(PATIENCE))?;
        let _asks = self.questions.may_come_from(id, false);
        let keeper = folder.keeper()?;
        let client = keeper.client();
        client.open_step(StepRequest::api(label))?;
        for order in orders {
            if let Err(error) = client.change(order) {
                client.abort_step()?;
                return Err(error.into());
            }
        }
        Ok(client.close_step(None)?)
    }
}
