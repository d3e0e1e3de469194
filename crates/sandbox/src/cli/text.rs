//! What people get to read.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use codeagent_common::{
    Change, ChangeKind, Protection, Refusal, RelPathBuf, SafeguardKind, StepId, StepInfo, Timestamp,
};
use codeagent_interceptor::{
    ClosedStep, Conflict, HistoryEntry, Preview, RestoreReport, RollbackReport,
};

use crate::session::Directory;

/// How many paths are listed before "and N more".
const LISTED: usize = 20;

pub(crate) fn closed(closed: &ClosedStep) -> String {
    match closed {
        ClosedStep::Recorded { step, evicted, denied, .. } => {
            let mut text = format!("step {} ended: {}", step.id, counts(step));
            if let Protection::Unprotected(reason) = &step.protection {
                text.push_str(&format!("\nit CANNOT be undone: {reason}"));
            }
            if !evicted.is_empty() {
                text.push_str(&format!(
                    "\n{} old steps were dropped to stay within the limits",
                    evicted.len()
                ));
            }
            with_denied(text, denied)
        }
        ClosedStep::Empty { step, denied } => {
            with_denied(format!("step {step} ended: nothing changed"), denied)
        }
        ClosedStep::Denied { step, .. } => {
            format!("step {step} was denied, and everything it did has been taken back")
        }
        ClosedStep::Joined { step, denied } => with_denied(format!("step {step} goes on"), denied),
    }
}

fn with_denied(mut text: String, denied: &[Refusal]) -> String {
    for refusal in denied {
        text.push('\n');
        text.push_str(&refused(refusal));
    }
    text
}

/// What somebody said no to, in a step of which the rest is kept.
fn refused(refusal: &Refusal) -> String {
    let what = match (refusal.kind, refusal.count) {
        (SafeguardKind::DeleteCount, 1) => "1 deletion was".to_owned(),
        (SafeguardKind::DeleteCount, count) => format!("{count} deletions were"),
        (SafeguardKind::OverwriteLarge, 1) => "1 overwrite was".to_owned(),
        (SafeguardKind::OverwriteLarge, count) => format!("{count} overwrites were"),
        (SafeguardKind::RenameOver, 1) => "1 rename was".to_owned(),
        (SafeguardKind::RenameOver, count) => format!("{count} renames were"),
    };
    format!(
        "{what} refused, of this command or one in the background, because this was denied: {}; not \
         done: {}",
        refusal.asked,
        paths(refusal.sample_paths.iter().map(ToString::to_string))
    )
}

pub(crate) fn history(
    history: &[HistoryEntry],
    redoable: &[StepInfo],
    open: Option<StepId>,
) -> String {
    let now = Timestamp::from(SystemTime::now());
    let mut lines = Vec::new();
    if let Some(step) = open {
        lines.push(format!("{:>6}  is open", step.to_string()));
    }
    for step in redoable {
        lines.push(format!("{}  (undone)", line(step, now)));
    }
    for entry in history.iter().rev() {
        lines.push(match entry {
            HistoryEntry::Step(step) => line(step, now),
            HistoryEntry::Barrier(barrier) => format!(
                "{:>6}  {:>8}  changed outside the sandbox: {}",
                "--",
                ago(barrier.at, now),
                paths(barrier.paths.iter().map(|path| printable(&path.to_string())))
            ),
        });
    }
    if lines.is_empty() { "nothing has been recorded yet".into() } else { lines.join("\n") }
}

fn line(step: &StepInfo, now: Timestamp) -> String {
    let what = match step.command.as_str() {
        "" if step.id.is_ambient() => "(changes while no step was open)".to_owned(),
        "" => "(no label)".to_owned(),
        command => printable(command.lines().next().unwrap_or_default()),
    };
    let mut text = format!(
        "{:>6}  {:>8}  {}  [{}]",
        step.id.to_string(),
        ago(step.finished_at, now),
        what,
        counts(step)
    );
    if !step.protection.is_protected() {
        text.push_str("  CANNOT be undone");
    }
    if step.pinned {
        text.push_str("  pinned");
    }
    text
}

/// What a command wanted and did not get, and what else is worth knowing.
pub(crate) fn left_out(directory: &Directory, folder: &Path) -> Vec<String> {
    let mut lines = Vec::new();
    for (path, rule) in directory.protected.iter().take(LISTED) {
        lines.push(format!("{path} is protected, and what was done there was left out: {rule}; allow it with --allow-path '{path}'"));
    }
    if directory.protected.len() > LISTED {
        lines.push(format!("and {} more protected paths", directory.protected.len() - LISTED));
    }
    let names = |paths: &[RelPathBuf]| self::paths(paths.iter().map(ToString::to_string));
    if !directory.refused.is_empty() {
        lines.push(format!("devices are not made: {}", names(&directory.refused)));
    }
    if !directory.changed_meanwhile.is_empty() {
        let names = names(&directory.changed_meanwhile);
        lines.push(format!("changed by others meanwhile, too; undo brings theirs back: {names}"));
    }
    lines.extend(directory.denied.iter().map(refused));
    if let Some(step) = &directory.info
        && !step.flagged.is_empty()
    {
        let (privileged, others): (Vec<_>, Vec<_>) =
            step.flagged.iter().cloned().partition(|path| is_privileged(folder, path));
        if !others.is_empty() {
            lines.push(format!("look at what other programs will run: {}", names(&others)));
        }
        if !privileged.is_empty() {
            lines.push(format!(
                "set-user-id or set-group-id, so whoever runs them has the rights of their owner: {}",
                names(&privileged)
            ));
        }
    }
    lines
}

/// Of what was flagged, whether it is because of its mode.
fn is_privileged(folder: &Path, path: &RelPathBuf) -> bool {
    let path = folder.join(std::ffi::OsStr::from_bytes(path.as_path().as_bytes()));
    let found = std::fs::symlink_metadata(path);
    found.is_ok_and(|found| found.is_file() && found.mode() & 0o6000 != 0)
}

/// `2 added, 1 modified`.
pub(crate) fn counts(step: &StepInfo) -> String {
    counted([
        (step.added, "added"),
        (step.modified, "modified"),
        (step.deleted, "deleted"),
        (step.renamed, "renamed"),
    ])
}

fn counted(parts: [(u64, &str); 4]) -> String {
    let parts: Vec<String> = parts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    if parts.is_empty() { "no net change".into() } else { parts.join(", ") }
}

pub(crate) fn preview(preview: &Preview) -> String {
    let steps: Vec<String> = preview.steps.iter().map(StepId::to_string).collect();
    let mut lines = vec![format!("undoing {} would change:", named("step", &steps))];
    lines.extend(preview.changes.iter().take(LISTED).map(change));
    if preview.changes.len() > LISTED {
        lines.push(format!("  and {} more", preview.changes.len() - LISTED));
    }
    if preview.changes.is_empty() {
        lines.push("  nothing".into());
    }
    if !preview.conflicts.is_empty() {
        lines.push(format!("it would be refused: {}", others(&preview.conflicts)));
    }
    lines.join("\n")
}

pub(crate) fn change(change: &Change) -> String {
    let sign = match change.kind {
        ChangeKind::Added => '+',
        ChangeKind::Modified => '~',
        ChangeKind::Deleted => '-',
        ChangeKind::Renamed => '>',
    };
    let path = printable(&change.path.to_string());
    let below = if change.whole_directory { "/ and everything in it" } else { "" };
    match &change.from {
        Some(from) => format!("  {sign} {} → {path}{below}", printable(&from.to_string())),
        None => format!("  {sign} {path}{below}"),
    }
}

/// `known` are steps, those that were undone or redone among them.
pub(crate) fn gone_back(what: &str, report: &RollbackReport, known: &[StepInfo]) -> String {
    let names: Vec<String> = report.steps.iter().map(StepId::to_string).collect();
    let steps: Vec<&StepInfo> =
        known.iter().filter(|step| report.steps.contains(&step.id)).collect();
    let of = |count: fn(&StepInfo) -> u64| steps.iter().map(|step| count(step)).sum();
    let all = [
        (of(|step| step.added), "added"),
        (of(|step| step.modified), "modified"),
        (of(|step| step.deleted), "deleted"),
        (of(|step| step.renamed), "renamed"),
    ];
    let but = match report.left.len() {
        0 => String::new(),
        1 => ", but for 1 path".into(),
        left => format!(", but for {left} paths"),
    };
    let mut lines = vec![format!("{what}: {}{but} ({})", named("step", &names), counted(all))];
    if !report.conflicts.is_empty() {
        lines.push(others(&report.conflicts));
    }
    if !report.left.is_empty() {
        let left = report.left.iter().map(|path| printable(&path.to_string()));
        lines.push(format!("not as the step would have them: {}", paths(left)));
    }
    if let Some(kept) = &report.kept {
        lines.push(format!("what they were before is kept in {}", printable(&kept.to_text())));
    }
    lines.join("\n")
}

pub(crate) fn restored(report: &RestoreReport) -> String {
    let names =
        |paths: &[RelPathBuf]| self::paths(paths.iter().map(|path| printable(&path.to_string())));
    let Some(step) = &report.step else { return "nothing had to change".into() };
    let mut lines = Vec::new();
    if !report.restored.is_empty() {
        lines.push(format!("restored: {}", names(&report.restored)));
    }
    if !report.removed.is_empty() {
        lines.push(format!("removed: {}", names(&report.removed)));
    }
    lines.push(format!("this is step {}, and can be undone", step.id));
    lines.join("\n")
}

/// `1.5 MiB`.
pub(crate) fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut size = count as f64;
    let mut unit = 0;
    while size >= 1024.0 && unit + 1 < UNITS.len() {
        size /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{size:.1} {}", UNITS[unit]),
    }
}

fn others(conflicts: &[Conflict]) -> String {
    let names = conflicts.iter().map(|conflict| printable(&conflict.path.to_string()));
    format!("changed by others since: {}", paths(names))
}

fn named(what: &str, names: &[String]) -> String {
    let plural = if names.len() == 1 { "" } else { "s" };
    format!("{what}{plural} {}", names.join(", "))
}

fn paths(names: impl ExactSizeIterator<Item = String>) -> String {
    let count = names.len();
    let mut listed: Vec<String> = names.take(LISTED).collect();
    if count > LISTED {
        listed.push(format!("and {} more", count - LISTED));
    }
    listed.join(", ")
}

/// A path for a shell.
pub(crate) fn quoted(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%".contains(c);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Nobody has named the folder, and it is not the current one.
pub(crate) fn folder_above(folder: &Path) -> String {
    format!("the folder is {}, the nearest one upwards with a history", folder.display())
}

/// Names and commands may hold anything; what a terminal would obey is shown instead.
pub(crate) fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] })
        .collect()
}

fn ago(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.0.saturating_sub(then.0) / 1000;
    match seconds {
        0..60 => format!("{seconds} s ago"),
        60..3600 => format!("{} m ago", seconds / 60),
        3600..86_400 => format!("{} h ago", seconds / 3600),
        _ => format!("{} d ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_command_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n"), "a\\u{1b}[2Jb\\n");
    }

    #[test]
    fn times_are_told_roughly() {
        let at = |seconds: u64| ago(Timestamp(0), Timestamp(seconds * 1000));
        assert_eq!([at(0), at(59), at(60)], ["0 s ago", "59 s ago", "1 m ago"]);
        assert_eq!([at(7200), at(200_000)], ["2 h ago", "2 d ago"]);
    }
}
