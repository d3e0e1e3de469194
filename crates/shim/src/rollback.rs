//! What the shim does when files have changed under its commands.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;

use codeagent_control::HostMessage;

/// The environment variable that tells commands where rollbacks are announced.
pub(crate) const VARIABLE: &str = "CODEAGENT_ROLLBACK_FILE";

#[derive(Debug, Clone, Default)]
pub(crate) struct RollbackNotices {
    /// Gets one line, the host's message, per rollback. Commands find its path in
    /// `CODEAGENT_ROLLBACK_FILE`, and an agent among them can follow it.
    pub(crate) file: Option<PathBuf>,
    /// Drop the kernel's caches of names and contents. For a guest, where they could be stale;
    /// needs root.
    pub(crate) drop_caches: bool,
}

impl RollbackNotices {
    /// Tries both, even if the first does not work.
    pub(crate) fn announce(&self, notice: &HostMessage) -> std::io::Result<()> {
        let announced = self.append(notice);
        if self.drop_caches {
            std::fs::write("/proc/sys/vm/drop_caches", "3")?;
        }
        announced
    }

    fn append(&self, notice: &HostMessage) -> std::io::Result<()> {
        let Some(path) = &self.file else { return Ok(()) };
        let line = codeagent_control::encode(notice).map_err(std::io::Error::other)?;
        OpenOptions::new().create(true).append(true).open(path)?.write_all(&line)
    }
}
