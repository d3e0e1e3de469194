//! How an engine is set up. The values come from the edge; nothing here reads a file.

use std::fmt;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use codeagent_common::{
    ExternalModificationPolicy, PathUse, PathVerdict, RelPath, ResourceLimits, SafeguardConfig,
    SymlinkPolicy,
};

use crate::clock::{Clock, SystemClock};
use crate::events::{EventSink, IgnoreEvents};

/// Decides what may happen to which path. The rules live with the implementor.
pub trait PathPolicy: Send + Sync {
    fn judge(&self, path: RelPath<'_>, usage: PathUse) -> PathVerdict;

    /// Whether a rule could apply to something below `path` that is used like this. A directory
    /// that comes or goes as a whole is then looked through first.
    fn guards_below(&self, _path: RelPath<'_>, _usage: PathUse) -> bool {
        false
    }

    /// Whether a rule could apply to a path because this name is in it. A path without any such
    /// name is not asked about when it appears with the directory it is in.
    fn minds(&self, _name: &[u8]) -> bool {
        true
    }

    /// Whether of a staged tree with something that is denied nothing is adopted, instead of the rest.
    fn refuses_step(&self) -> bool {
        false
    }

    /// Whether a rule applies to names below this one, so that a symlink here would lead past it.
    fn leads_to_guarded(&self, _path: RelPath<'_>) -> bool {
        false
    }

    /// Whether content has to be looked at before it takes this name. Where that cannot be done,
    /// because it is written in place or is no file, the policy is asked about
    /// [`PathUse::Write`] instead.
    fn inspects(&self, _path: RelPath<'_>) -> bool {
        false
    }

    /// Judges the content that is about to take a name, given what has the name.
    fn inspect(&self, _path: RelPath<'_>, _former: Option<&[u8]>, _content: &[u8]) -> PathVerdict {
        PathVerdict::Allow
    }
}

/// Everything is allowed.
#[derive(Debug, Clone, Copy, Default)]
pub struct AllowAll;

impl PathPolicy for AllowAll {
    fn judge(&self, _path: RelPath<'_>, _usage: PathUse) -> PathVerdict {
        PathVerdict::Allow
    }
}

#[derive(Clone)]
pub struct EngineConfig {
    pub working_dir: PathBuf,
    /// The working directory, opened by somebody else. Its path is then only a name, has to be
    /// absolute, and may lead elsewhere by now: something can be mounted over it.
    pub opened: Option<Arc<OwnedFd>>,
    pub undo_dir: PathBuf,
    /// The undo directory, likewise.
    pub opened_undo: Option<Arc<OwnedFd>>,
    pub limits: ResourceLimits,
    pub safeguards: SafeguardConfig,
    pub external_modifications: ExternalModificationPolicy,
    pub symlinks: SymlinkPolicy,
    /// Leave paths that `.gitignore` names out of undo.
    pub gitignore: bool,
    /// Refuse every mutation.
    pub read_only: bool,
    /// Sync before each mutation: history survives power loss, at a price.
    pub durable: bool,
    /// An ambient step ends after this much quiet.
    pub ambient_timeout: Duration,
    pub paths: Arc<dyn PathPolicy>,
    pub events: Arc<dyn EventSink>,
    pub clock: Arc<dyn Clock>,
    #[cfg(feature = "fault-injection")]
    pub faults: Option<Arc<dyn crate::probe::FaultInjector>>,
}

impl EngineConfig {
    pub fn new(working_dir: impl Into<PathBuf>, undo_dir: impl Into<PathBuf>) -> Self {
        Self {
            working_dir: working_dir.into(),
            opened: None,
            undo_dir: undo_dir.into(),
            opened_undo: None,
            limits: ResourceLimits::default(),
            safeguards: SafeguardConfig::default(),
            external_modifications: ExternalModificationPolicy::default(),
            symlinks: SymlinkPolicy::default(),
            gitignore: false,
            read_only: false,
            durable: false,
            ambient_timeout: Duration::from_secs(5),
            paths: Arc::new(AllowAll),
            events: Arc::new(IgnoreEvents),
            clock: Arc::new(SystemClock),
            #[cfg(feature = "fault-injection")]
            faults: None,
        }
    }

    /// The path that leads to the working directory.
    pub(crate) fn way_in(&self) -> PathBuf {
        match &self.opened {
            Some(opened) => format!("/proc/self/fd/{}/.", opened.as_raw_fd()).into(),
            None => self.working_dir.clone(),
        }
    }

    /// The path that leads to the undo directory, where its own does not.
    pub(crate) fn way_into_undo(&self) -> Option<PathBuf> {
        let opened = self.opened_undo.as_ref()?;
        Some(format!("/proc/self/fd/{}", opened.as_raw_fd()).into())
    }

    #[cfg(feature = "fault-injection")]
    pub(crate) fn probe(&self) -> crate::probe::Probe {
        crate::probe::Probe::new(self.faults.clone())
    }

    #[cfg(not(feature = "fault-injection"))]
    pub(crate) fn probe(&self) -> crate::probe::Probe {
        crate::probe::Probe::default()
    }
}

impl fmt::Debug for EngineConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineConfig")
            .field("working_dir", &self.working_dir)
            .field("undo_dir", &self.undo_dir)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}
