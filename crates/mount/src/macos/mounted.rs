//! The life of a mount.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use codeagent_interceptor::WriteInterceptor;
use fuser::{BackgroundSession, Config, MountOption};

use super::host::Root;
use super::passthrough::Passthrough;

/// Why a folder could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("cannot open {path}: {source}")]
    Source { path: PathBuf, source: io::Error },
    #[error("macFUSE refused to mount: {0}")]
    Refused(io::Error),
}

/// A mounted folder. It stays mounted until [`Mount::unmount`], or until this is dropped.
pub struct Mount {
    session: BackgroundSession,
}

impl Mount {
    /// Serves `source` at `mount_point`.
    pub fn start<I: WriteInterceptor + 'static>(
        source: &Path,
        mount_point: &Path,
        interceptor: I,
        read_only: bool,
    ) -> Result<Self, MountError> {
        // Opened before anything is mounted: the mount may cover it.
        let root = Root::open(source)
            .map_err(|error| MountError::Source { path: source.into(), source: error })?;
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName("codeagent".into()),
            MountOption::DefaultPermissions,
            if read_only { MountOption::RO } else { MountOption::RW },
        ];
        let served = Passthrough::new(root, interceptor, read_only);
        let session =
            fuser::spawn_mount(served, mount_point, &config).map_err(MountError::Refused)?;
        Ok(Self { session })
    }

    pub fn unmount(self) -> io::Result<()> {
        self.session.umount_and_join()
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").finish_non_exhaustive()
    }
}
