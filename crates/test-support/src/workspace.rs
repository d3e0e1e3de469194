//! Throw-away working directories.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::{TreeSnapshot, remove_tree};

/// A working directory and the path for its undo directory, both deleted on drop.
#[derive(Debug)]
pub struct TempWorkspace {
    working: PathBuf,
    undo: PathBuf,
    /// What to delete: the directories that hold the two.
    holders: Vec<PathBuf>,
}

impl TempWorkspace {
    /// An empty workspace where tests are quickest: in the directory that
    /// `CODEAGENT_TEST_DIR` names, else in `/dev/shm`, else in the temporary directory.
    #[expect(clippy::new_without_default, reason = "it creates directories")]
    pub fn new() -> Self {
        if let Some(dir) = std::env::var_os("CODEAGENT_TEST_DIR") {
            return Self::on(Path::new(&dir));
        }
        let holder = make_holder(Path::new("/dev/shm"))
            .or_else(|_| make_holder(&std::env::temp_dir()))
            .expect("create a directory for a test");
        Self::in_holders(vec![holder])
    }

    /// An empty workspace on the filesystem of `dir`.
    pub fn on(dir: &Path) -> Self {
        Self::in_holders(vec![holder_in(dir)])
    }

    /// An empty workspace whose undo directory is on another filesystem.
    pub fn across(working_parent: &Path, undo_parent: &Path) -> Self {
        Self::in_holders(vec![holder_in(working_parent), holder_in(undo_parent)])
    }

    /// A workspace as [`Self::new`] makes it, filled by `fixture`.
    pub fn with_fixture(fixture: impl FnOnce(&Path)) -> Self {
        Self::new().filled(fixture)
    }

    /// The same workspace, filled by `fixture`.
    #[must_use]
    pub fn filled(self, fixture: impl FnOnce(&Path)) -> Self {
        fixture(&self.working);
        self
    }

    /// The working directory.
    pub fn working(&self) -> &Path {
        &self.working
    }

    /// Where the undo directory belongs; nothing is there yet.
    pub fn undo(&self) -> &Path {
        &self.undo
    }

    /// A path below the working directory.
    pub fn path(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.working.join(relative)
    }

    /// The working directory as it is now.
    pub fn snapshot(&self) -> TreeSnapshot {
        TreeSnapshot::capture(&self.working)
    }

    fn in_holders(holders: Vec<PathBuf>) -> Self {
        let working = holders[0].join("working");
        let undo = holders[holders.len() - 1].join("undo");
        fs::create_dir(&working).expect("create the working directory");
        // Whatever the umask is.
        fs::set_permissions(&working, fs::Permissions::from_mode(0o755)).expect("chmod");
        Self { working, undo, holders }
    }
}

impl Drop for TempWorkspace {
    #[expect(clippy::print_stderr, reason = "a second panic would abort the test")]
    fn drop(&mut self) {
        for holder in &self.holders {
            if let Err(error) = remove_tree(holder) {
                eprintln!("left behind: {}: {error}", holder.display());
            }
        }
    }
}

fn holder_in(dir: &Path) -> PathBuf {
    make_holder(dir)
        .unwrap_or_else(|error| panic!("create a directory in {}: {error}", dir.display()))
}

fn make_holder(dir: &Path) -> std::io::Result<PathBuf> {
    let holder = tempfile::Builder::new().prefix("codeagent-").tempdir_in(dir)?;
    // Deleted by ourselves: the crate's own way stops at directories of mode 000.
    Ok(holder.keep())
}
