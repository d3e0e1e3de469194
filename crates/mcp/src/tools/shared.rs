//! What several tools need.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use codeagent_common::{Change, ChangeKind, RelPathBuf};
use codeagent_stdio::{Conflict, DirectoryRef, StepSummary};
use codeagent_tools::{Folder, WritePlan};

use super::Answer;
use crate::backend::Undone;
use crate::call::{Interruption, Outcome};
use crate::client::Context;

/// So many paths are listed.
const MAX_LISTED: usize = 200;

/// A path in one of the working directories.
pub(super) struct Place {
    pub(super) directory: Option<DirectoryRef>,
    pub(super) folder: Arc<Folder>,
    pub(super) path: RelPathBuf,
}

/// Where a path of a client leads: absolute ones into the directory they begin with, others into
/// the first.
pub(super) fn locate(context: &Context, path: &str) -> Outcome<Place> {
    let directory = if Path::new(path).is_absolute() {
        let directories = context.backend.surroundings().directories;
        let index = directories.iter().position(|directory| Path::new(path).starts_with(directory));
        index.and_then(|index| u32::try_from(index).ok()).map(DirectoryRef::Index)
    } else {
        None
    };
    let folder = context.backend.folder(directory.as_ref())?;
    let path = folder.resolve(path)?;
    Ok(Place { directory, folder, path })
}

/// An index, a label or a path, as models write them.
pub(super) fn directory(name: Option<String>) -> Option<DirectoryRef> {
    name.map(|name| match name.parse() {
        Ok(index) => DirectoryRef::Index(index),
        Err(_) => DirectoryRef::Name(name),
    })
}

/// Writes what was planned, and tells of it.
pub(super) fn write(context: &Context, place: &Place, plan: &WritePlan) -> Outcome<Answer> {
    if plan.before.as_ref() == Some(&plan.after) {
        return Ok(Answer::text(format!("{} is like that already.", plan.path)));
    }
    let written = context.backend.write(place.directory.as_ref(), plan, &context.call);
    if let (Err(_), Some(question)) = (&written, context.call.unanswered.lock().take()) {
        return Err(Interruption::Ask(question));
    }
    let step = written?;
    let verb = if plan.before.is_some() { "Changed" } else { "Created" };
    let mut text = format!("{verb} {}", plan.path);
    if plan.replacements > 1 {
        let _ = write!(text, ", {} replacements", plan.replacements);
    }
    let _ = writeln!(text, ".\n{}", plan.diff().trim_end());
    let several = step.is_some() && has_several_directories(context);
    push_steps(&mut text, step.as_slice(), several);
    Ok(Answer::text(text))
}

pub(super) fn has_several_directories(context: &Context) -> bool {
    context.backend.surroundings().directories.len() > 1
}

/// Steps, oldest first, and how to take them back. With several working directories, undo has to
/// be told which is meant.
pub(super) fn push_steps(text: &mut String, steps: &[StepSummary], several_directories: bool) {
    for (nth, step) in steps.iter().enumerate() {
        let _ = write!(text, "[step {}", step.step_id);
        if several_directories {
            let _ = write!(text, " in {}", step.directory);
        }
        let _ = write!(text, ": {}", counts(step));
        let is_of_same = |other: &&StepSummary| other.directory == step.directory;
        let is_newest = !steps[nth + 1..].iter().any(|other| is_of_same(&other));
        let directory = several_directories.then_some(step.directory.as_str());
        match &step.unprotected {
            Some(reason) => {
                let _ = write!(text, "; NOT undoable: {reason}");
            }
            None if is_newest => {
                let count = steps.iter().filter(is_of_same).count();
                let _ = write!(text, "; {}", how_to_undo(count, directory));
            }
            None => {}
        }
        text.push_str("]\n");
        push_paths(text, "Look at these before you use them", &step.flagged);
    }
}

fn counts(step: &StepSummary) -> String {
    let counts = [
        (step.added, "added"),
        (step.modified, "modified"),
        (step.deleted, "deleted"),
        (step.renamed, "renamed"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
    // What it made it removed itself, for instance; times of directories may still differ.
    if counts.is_empty() { "no net change".to_owned() } else { counts.join(", ") }
}

/// Of several, others may have come between.
fn how_to_undo(count: usize, directory: Option<&str>) -> String {
    let which = directory.map_or(String::new(), |name| format!(" with directory \"{name}\""));
    let takes = if count > 1 { "takes steps back, the newest first" } else { "takes it back" };
    format!("undo{which} {takes}")
}

pub(super) fn push_paths(text: &mut String, title: &str, paths: &[RelPathBuf]) {
    if paths.is_empty() {
        return;
    }
    let _ = writeln!(text, "{title}:");
    for path in paths.iter().take(MAX_LISTED) {
        let _ = writeln!(text, "  {path}");
    }
    if paths.len() > MAX_LISTED {
        let _ = writeln!(text, "  … and {} more", paths.len() - MAX_LISTED);
    }
}

pub(super) fn push_changes(text: &mut String, changes: &[Change], count: u64) {
    for change in changes.iter().take(MAX_LISTED) {
        let mark = match change.kind {
            ChangeKind::Added => 'A',
            ChangeKind::Modified => 'M',
            ChangeKind::Deleted => 'D',
            ChangeKind::Renamed => 'R',
        };
        let _ = write!(text, "  {mark} {}", change.path);
        if let Some(from) = &change.from {
            let _ = write!(text, " (from {from})");
        }
        if change.whole_directory {
            text.push_str("/ and everything in it");
        }
        text.push('\n');
    }
    let listed = changes.len().min(MAX_LISTED) as u64;
    if count > listed {
        let _ = writeln!(text, "  … and {} more", count - listed);
    }
}

pub(super) fn push_conflicts(text: &mut String, title: &str, conflicts: &[Conflict]) {
    let paths: Vec<RelPathBuf> = conflicts.iter().map(|conflict| conflict.path.clone()).collect();
    push_paths(text, title, &paths);
}

/// What an undo or redo did, with the files it changed and those it left alone.
pub(super) fn undone(verb: &str, undone: &Undone, forced: bool) -> Answer {
    let report = &undone.report;
    let steps: Vec<String> = report.step_ids.iter().map(ToString::to_string).collect();
    let mut text = format!("{verb} step {}.\n", steps.join(", "));
    push_changes(&mut text, &undone.changes, undone.changes.len() as u64);
    let title = if forced {
        "Overwritten, though others had changed them"
    } else {
        "Left alone, because others had changed them"
    };
    push_conflicts(&mut text, title, &report.conflicts);
    push_paths(&mut text, "Not as before, because something was in the way", &report.left);
    if let Some(warning) = &report.warning {
        let _ = writeln!(text, "Warning: {warning}");
    }
    Answer::text(text)
}
