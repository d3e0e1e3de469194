//! The life of a mount.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use codeagent_interceptor::WriteInterceptor;
use codeagent_windows::host::Root;
use winfsp_wrs::{
    FileSystem, InitError, OperationGuardStrategy, Params, U16CString, VolumeParams, u16cstr,
};

use super::passthrough::Passthrough;

/// Why a folder could not be mounted.
#[derive(Debug, thiserror::Error)]
pub enum MountError {
    #[error("WinFsp is not there: {0}")]
    NoDriver(InitError),
    #[error("cannot open {path}: {source}")]
    Source { path: PathBuf, source: io::Error },
    #[error("{0} cannot be a mount point: its name has a NUL")]
    MountPoint(PathBuf),
    #[error("WinFsp refused to mount (status {0:#010x})")]
    Refused(i32),
}

/// A mounted folder. It stays mounted until [`Mount::unmount`], or until this is dropped.
pub struct Mount {
    volume: Option<FileSystem>,
}

impl Mount {
    /// Serves `source` at `mount_point`, a drive (`X:`) or a folder that does not exist yet.
    pub fn start<I: WriteInterceptor + 'static>(
        source: &Path,
        mount_point: &Path,
        interceptor: I,
        read_only: bool,
    ) -> Result<Self, MountError> {
        winfsp_wrs::init().map_err(MountError::NoDriver)?;
        let root = Root::open(source)
            .map_err(|error| MountError::Source { path: source.into(), source: error })?;
        let at = U16CString::from_os_str(mount_point.as_os_str())
            .map_err(|_| MountError::MountPoint(mount_point.into()))?;
        let served = Passthrough::new(root, interceptor, read_only);
        let volume =
            FileSystem::start(params(read_only), Some(&at), served).map_err(MountError::Refused)?;
        Ok(Self { volume: Some(volume) })
    }

    pub fn unmount(self) {
        drop(self);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(volume) = self.volume.take() {
            volume.stop();
        }
    }
}

impl fmt::Debug for Mount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mount").finish_non_exhaustive()
    }
}

fn params(read_only: bool) -> Params {
    let mut volume_params = VolumeParams::default();
    volume_params
        .set_sector_size(512)
        .set_sectors_per_allocation_unit(8)
        .set_max_component_length(255)
        .set_case_sensitive_search(false)
        .set_case_preserved_names(true)
        .set_unicode_on_disk(true)
        .set_persistent_acls(true)
        .set_post_cleanup_when_modified_only(true)
        .set_read_only_volume(read_only)
        // Nothing may be remembered of files: undo changes them without the driver's knowledge.
        .set_file_info_timeout(0);
    // A shorter name than the longest, so it fits.
    let _ = volume_params.set_file_system_name(u16cstr!("codeagent"));
    // Creation, removal and renaming happen one at a time: the names they find stay as they are.
    Params { volume_params, guard_strategy: OperationGuardStrategy::Fine }
}
