//! What the kernel wants of an overlay beside its layers: a directory for itself. One that two have at
//! the same time is emptied by the second, under the hands of the first.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::surroundings::{make_dir, remove_tree};

const PREFIX: &str = "work";

/// Those of one command. They go with this value; nothing of the command may be left by then.
#[derive(Debug)]
pub(crate) struct WorkDirs {
    name: String,
    made: Vec<PathBuf>,
}

impl WorkDirs {
    /// None yet.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{PREFIX}-{}-{number}", std::process::id());
        Self { name, made: Vec::new() }
    }

    /// Makes one. What its name is comes back.
    pub(crate) fn make_in(&mut self, staging: &Path) -> io::Result<String> {
        let dir = staging.join(&self.name);
        make_dir(&dir)?;
        self.made.push(dir);
        Ok(self.name.clone())
    }
}

impl Drop for WorkDirs {
    fn drop(&mut self) {
        // What cannot be removed is, by the next session.
        self.made.iter().for_each(|dir| drop(remove_tree(dir)));
    }
}

/// Removes what killed sessions have left below directories of this one.
pub(crate) fn remove_orphans(within: &Path) {
    let entries = |dir: &Path| fs::read_dir(dir).into_iter().flatten().flatten();
    for staging in entries(within) {
        for entry in entries(&staging.path()) {
            if entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
                let _ = remove_tree(&entry.path());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// As the kernel leaves it.
    fn use_up(dir: &Path) {
        fs::create_dir_all(dir.join("work/#1")).unwrap();
        fs::set_permissions(dir.join("work"), fs::Permissions::from_mode(0o000)).unwrap();
    }

    #[test]
    fn no_two_commands_have_the_same_and_they_go_with_them() {
        let staging = tempfile::tempdir().unwrap();
        let (mut one, mut other) = (WorkDirs::new(), WorkDirs::new());
        let one_dir = staging.path().join(one.make_in(staging.path()).unwrap());
        let other_dir = staging.path().join(other.make_in(staging.path()).unwrap());
        assert_ne!(one_dir, other_dir);
        use_up(&one_dir);
        drop(one);
        assert!(!one_dir.exists() && other_dir.exists());
        drop(other);
        assert_eq!(names(staging.path()), Vec::<String>::new());
    }

    #[test]
    fn those_of_killed_sessions_are_removed_and_nothing_else() {
        let toolchains = tempfile::tempdir().unwrap();
        let staging = toolchains.path().join(".cargo");
        fs::create_dir_all(staging.join("up/work-1")).unwrap();
        use_up(&staging.join("work-1-1"));
        use_up(&staging.join("work"));
        remove_orphans(toolchains.path());
        assert_eq!(names(&staging), ["up"]);
        assert_eq!(names(&staging.join("up")), ["work-1"]);
        remove_orphans(&toolchains.path().join("none"));
    }
}
