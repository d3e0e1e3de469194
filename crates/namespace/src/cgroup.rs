//! Limits for all commands of a sandbox together, where the system lets us have a cgroup.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::spec::Limits;

const ROOT: &str = "/sys/fs/cgroup";

/// A cgroup of version 2, removed with this value; nothing may be left in it by then.
#[derive(Debug)]
pub(crate) struct Cgroup(PathBuf);

impl Cgroup {
    /// Puts a process, and what it starts from now on, under these limits. `None`: not here.
    pub(crate) fn around(process: u32, limits: &Limits) -> Option<Self> {
        if limits.memory_bytes.is_none() && limits.processes.is_none() {
            return None;
        }
        let parent = own_group().ok()?;
        let group = Self(parent.join(format!("codeagent-{}-{process}", std::process::id())));
        fs::create_dir(&group.0).ok()?;
        group.limit(limits).and_then(|()| group.write("cgroup.procs", process)).ok()?;
        Some(group)
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

/// The cgroup of this process, if groups can be made below it and have controllers.
pub(crate) fn own_group() -> io::Result<PathBuf> {
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let own = groups
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .ok_or_else(|| io::Error::other("cgroups of version 2 are not mounted"))?;
    let group = Path::new(ROOT).join(own.trim_start_matches('/'));
    let controllers = fs::read_to_string(group.join("cgroup.subtree_control"))?;
    let has = |name| controllers.split_whitespace().any(|controller| controller == name);
    if has("memory") && has("pids") {
        return Ok(group);
    }
    Err(io::Error::other("the controllers `memory` and `pids` are not delegated"))
}
