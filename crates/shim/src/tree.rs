//! Processes below a process.

use std::collections::BTreeMap;

use rustix::process::{Pid, Signal, kill_process};

/// All living processes below `root`, without itself. One that forks meanwhile may be missing from
/// the list: who wants all of them gone asks again until there are none.
pub(crate) fn descendants(root: Pid) -> Vec<Pid> {
    let children = children_by_parent(|entry| entry.alive);
    let mut found = Vec::new();
    let mut parents = vec![root.as_raw_pid()];
    while let Some(parent) = parents.pop() {
        for child in children.get(&parent).into_iter().flatten() {
            parents.push(*child);
            found.extend(Pid::from_raw(*child));
        }
    }
    found
}

/// The direct children of `parent`, also those that have ended and wait to be reaped.
pub(crate) fn children(parent: Pid) -> Vec<Pid> {
    let mut children = children_by_parent(|_| true);
    let children = children.remove(&parent.as_raw_pid()).unwrap_or_default();
    children.into_iter().filter_map(Pid::from_raw).collect()
}

/// To every process below `root`; how many there were. Those that have gone meanwhile do not matter.
pub(crate) fn signal_descendants(root: Pid, signal: Signal) -> usize {
    let processes = descendants(root);
    for process in &processes {
        let _ = kill_process(*process, signal);
    }
    processes.len()
}

struct Entry {
    pid: i32,
    parent: i32,
    alive: bool,
}

fn children_by_parent(wanted: impl Fn(&Entry) -> bool) -> BTreeMap<i32, Vec<i32>> {
    let mut children: BTreeMap<i32, Vec<i32>> = BTreeMap::new();
    for entry in processes().filter(wanted) {
        children.entry(entry.parent).or_default().push(entry.pid);
    }
    children
}

/// Everything in `/proc`. Where there is none, as on macOS, no process is found, and a command's
/// process group is all that a cancel reaches.
fn processes() -> impl Iterator<Item = Entry> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        parse(pid, &std::fs::read(entry.path().join("stat")).ok()?)
    })
}

/// `pid (name) state parent …`; the name may hold anything, parentheses and newlines included.
fn parse(pid: i32, stat: &[u8]) -> Option<Entry> {
    let name_end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(&stat[name_end + 1..]).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let alive = !matches!(fields.next()?, "Z" | "X");
    Some(Entry { pid, parent: fields.next()?.parse().ok()?, alive })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_forge_its_parent() {
        let entry = parse(7, b"7 (evil) S 1 (\n) R 42 7 7").unwrap();
        assert_eq!((entry.parent, entry.alive), (42, true));
    }

    #[test]
    fn an_ended_process_is_not_alive() {
        assert!(!parse(7, b"7 (sh) Z 42 7 7").unwrap().alive);
    }
}
