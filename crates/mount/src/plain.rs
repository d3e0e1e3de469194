//! The same mount without interception: what interception is measured against.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeagent_fs::Plain;
use fuser::BackgroundSession;

use crate::adapter::Adapter;
use crate::attach::attach;
use crate::front_end::serve_anything;
use crate::mounted::{MountOptions, fs_config};
use crate::stale;

/// A folder that is served as it is; nothing can be undone. Unmounted when it is dropped.
pub struct PlainMount {
    mount_point: PathBuf,
    /// Gone once the mount has ended.
    session: Option<BackgroundSession>,
    /// The filesystem finds its root through it.
    _root: OwnedFd,
}

impl PlainMount {
    pub fn start(options: &MountOptions) -> io::Result<Self> {
        let Plain { fs, root } = Plain::new(&fs_config(options))?;
        let mount_point = options.mount_point.canonicalize()?;
        let adapter = Adapter::new(Arc::new(fs), options.cache, root.as_fd(), None, || false)?;
        let channel = attach(&mount_point, options.read_only)?;
        let session = serve_anything(adapter, channel, options.threads)?;
        Ok(Self { mount_point, session: Some(session), _root: root })
    }

    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }
}

impl Drop for PlainMount {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        if stale::unmount(&self.mount_point, true).is_ok() {
            // It ends with its last user; to unmount again could hit a mount below.
            std::mem::forget(session);
        }
    }
}

impl fmt::Debug for PlainMount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainMount").field("mount_point", &self.mount_point).finish_non_exhaustive()
    }
}
