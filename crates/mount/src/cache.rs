//! What the kernel keeps of files' contents.

use std::sync::Arc;

use codeagent_fs::InterceptedFs;
use codeagent_interceptor::{ContentCache, UndoEngine};
use fuser::{INodeNo, Notifier};

pub(crate) struct KernelCache {
    pub(crate) fs: Arc<InterceptedFs<UndoEngine>>,
    pub(crate) notifier: Notifier,
}

impl ContentCache for KernelCache {
    /// Only of open files: what is closed has been written out, and is read anew when it is opened.
    fn settle(&self) {
        for inode in self.fs.open_files() {
            // Fails if it was closed meanwhile, or the mount is gone.
            let _ = self.notifier.inval_inode(INodeNo(inode), 0, 0);
        }
    }
}
