//! What the kernel keeps of files' contents.

use std::sync::Arc;

use codeagent_fs::InterceptedFs;
use codeagent_interceptor::{ContentCache, UndoEngine};
use fuser::{INodeNo, Notifier};

#[derive(Debug)]
pub(crate) struct KernelCache {
    pub(crate) fs: Arc<InterceptedFs<UndoEngine>>,
    pub(crate) notifier: Notifier,
}

impl KernelCache {
    /// The kernel writes out what it forgets.
    fn forget(&self, inodes: &[u64]) {
        for inode in inodes {
            // Fails if it was closed meanwhile, or the mount is gone.
            let _ = self.notifier.inval_inode(INodeNo(*inode), 0, 0);
        }
    }
}

/// Only of open files: what is closed has been written out, and is read anew when it is opened.
impl ContentCache for KernelCache {
    fn write_out(&self) {
        self.forget(&self.fs.writable_files());
    }

    fn forget(&self) {
        self.forget(&self.fs.open_files());
    }
}
