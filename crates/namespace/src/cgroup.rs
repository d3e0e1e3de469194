//! Limits for all commands of a sandbox together, where the system lets us have a cgroup.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use crate::spec::Limits;

const ROOT: &str = "sys/fs/cgroup";
const CONTROLLERS: [&str; 2] = ["memory", "pids"];
/// What the names of our groups begin with; the process that made one follows.
const PREFIX: &str = "codeagent-";

/// A cgroup of version 2, removed with this value; nothing may be left in it by then.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Puts a process, and what it starts from now on, under these limits. `None`: not here.
    pub(crate) fn around(process: u32, limits: &Limits) -> Option<Self> {
        if limits.memory_bytes.is_none() && limits.processes.is_none() {
            return None;
        }
        let parent = delegated(Path::new("/")).ok()?;
        remove_orphans(&parent);
        let group = Self(parent.join(format!("{PREFIX}{}-{process}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        group.limit(limits).and_then(|()| group.write("cgroup.procs", process)).ok()?;
        Some(group)
    }

    /// Puts a process of it to where this one is.
    pub(crate) fn release(&self, process: u32) -> io::Result<()> {
        release(Path::new("/"), process)
    }

    fn limit(&self, limits: &Limits) -> io::Result<()> {
        if let Some(bytes) = limits.memory_bytes {
            self.write("memory.max", bytes)?;
            // Swapping out instead would be no limit. Not every kernel counts it.
            let _ = self.write("memory.swap.max", 0);
            let _ = self.write("memory.oom.group", 1);
        }
        if let Some(processes) = limits.processes {
            self.write("pids.max", processes)?;
        }
        Ok(())
    }

    fn write(&self, file: &str, value: impl ToString) -> io::Result<()> {
        fs::write(self.0.join(file), value.to_string())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its last process may have been waited for, and still be on its way out.
        for _ in 0..50 {
            match fs::remove_dir(&self.0) {
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                _ => return,
            }
        }
    }
}

fn release(root: &Path, process: u32) -> io::Result<()> {
    let own = own(root).map_err(io::Error::other)?;
    fs::write(own.join("cgroup.procs"), process.to_string())
}

/// Groups of processes that were killed before they could remove them. One that is in use cannot
/// be removed.
fn remove_orphans(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split('-').next());
        if owner.is_some_and(|owner| !Path::new("/proc").join(owner).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Why there is no cgroup to be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoCgroup {
    #[error("cgroups of version 2 are not mounted")]
    NotMounted,
    #[error("the controllers `memory` and `pids` are not delegated to this user")]
    NotDelegated,
}

/// The next group upwards from that of this process in which groups with controllers can be made.
/// It is hardly ever its own: one with processes in it gives no controllers to those below.
pub(crate) fn delegated(root: &Path) -> Result<PathBuf, NoCgroup> {
    let (own, top) = (own(root)?, root.join(ROOT));
    let within = own.ancestors().take_while(|group| group.starts_with(&top));
    within.into_iter().find(|group| gives(group)).map(Path::to_owned).ok_or(NoCgroup::NotDelegated)
}

/// The group of this process.
fn own(root: &Path) -> Result<PathBuf, NoCgroup> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let top = root.join(ROOT);
    let own = own.filter(|_| top.join("cgroup.controllers").exists());
    Ok(top.join(own.ok_or(NoCgroup::NotMounted)?))
}

fn gives(group: &Path) -> bool {
    let given = fs::read_to_string(group.join("cgroup.subtree_control")).unwrap_or_default();
    let has = |name: &&str| given.split_whitespace().any(|given| given == *name);
    let is_ours = |path: &Path| rustix::fs::access(path, Access::WRITE_OK).is_ok();
    // Processes are moved by whoever may write to the list of a group above both.
    CONTROLLERS.iter().all(has) && is_ours(group) && is_ours(&group.join("cgroup.procs"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;

    /// A machine with the groups of a desktop session.
    fn machine(own: &str) -> tempfile::TempDir {
        let machine = tempfile::tempdir().unwrap();
        let group = |path: &str, controllers: &str| {
            let group = machine.path().join(ROOT).join(path);
            fs::create_dir_all(&group).unwrap();
            fs::write(group.join("cgroup.subtree_control"), controllers).unwrap();
            fs::write(group.join("cgroup.procs"), "").unwrap();
        };
        group("user.slice", "cpu\n");
        group("user.slice/app.slice", "cpu memory pids\n");
        group("user.slice/app.slice/terminal.scope", "\n");
        fs::write(machine.path().join(ROOT).join("cgroup.controllers"), "memory pids").unwrap();
        fs::create_dir_all(machine.path().join("proc/self")).unwrap();
        fs::write(machine.path().join("proc/self/cgroup"), own).unwrap();
        machine
    }

    #[test]
    fn the_group_above_gives_controllers_to_ours() {
        let machine = machine("0::/user.slice/app.slice/terminal.scope\n");
        let found = delegated(machine.path()).unwrap();
        assert_eq!(found, machine.path().join(ROOT).join("user.slice/app.slice"));
    }

    #[test]
    fn without_controllers_there_is_none() {
        let not_delegated = machine("0::/user.slice\n");
        assert_eq!(delegated(not_delegated.path()), Err(NoCgroup::NotDelegated));
        let old = machine("4:memory:/\n0::/\n");
        fs::remove_file(old.path().join(ROOT).join("cgroup.controllers")).unwrap();
        assert_eq!(delegated(old.path()), Err(NoCgroup::NotMounted));
    }

    #[test]
    fn the_own_group_is_found_beside_those_of_version_1() {
        let machine = machine("4:memory:/job\n1:name=systemd:/\n0::/user.slice/app.slice\n");
        let top = machine.path().join(ROOT);
        assert_eq!(own(machine.path()), Ok(top.join("user.slice/app.slice")));
        fs::write(machine.path().join("proc/self/cgroup"), "0::/\n").unwrap();
        assert_eq!(own(machine.path()).unwrap().components().count(), top.components().count());
        fs::write(machine.path().join("proc/self/cgroup"), "4:memory:/job\n").unwrap();
        assert_eq!(own(machine.path()), Err(NoCgroup::NotMounted));
        fs::remove_file(machine.path().join("proc/self/cgroup")).unwrap();
        assert_eq!(own(machine.path()), Err(NoCgroup::NotMounted));
    }

    #[test]
    fn who_is_released_comes_to_where_this_process_is() {
        let machine = machine("0::/user.slice/app.slice/terminal.scope\n");
        release(machine.path(), 4711).unwrap();
        let members = |group: &str| {
            let members = machine.path().join(ROOT).join(group).join("cgroup.procs");
            fs::read_to_string(members).unwrap()
        };
        assert_eq!(members("user.slice/app.slice/terminal.scope"), "4711");
        assert_eq!(members("user.slice/app.slice"), "");
        fs::remove_file(machine.path().join(ROOT).join("cgroup.controllers")).unwrap();
        assert!(release(machine.path(), 4711).is_err());
    }

    #[test]
    fn groups_of_the_dead_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let (dead, living) = (format!("{PREFIX}4194305-1"), format!("{PREFIX}1-1"));
        for name in [&dead, &living, &"other".to_owned()] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        remove_orphans(parent.path());
        assert!(!parent.path().join(dead).exists());
        assert!(parent.path().join(living).exists() && parent.path().join("other").exists());
    }
}
