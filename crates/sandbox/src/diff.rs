//! What a step did to the contents of files.

use codeagent_common::{Change, ChangeKind, EntryKind, ErrorCode, RelPathBuf, StepId};
use codeagent_interceptor::{EntryContent, HistoryEntry};
use codeagent_worker::{Client, Request, WorkerError};
use serde::Serialize;
use similar::TextDiff;

use crate::error::Result;

/// Larger files are named, and not compared.
const MOST_BYTES: u64 = 1 << 20;
/// So many files are compared; the rest are named.
const MOST_FILES: usize = 1000;

/// One path of a step.
#[derive(Debug, Clone, Serialize)]
pub struct FileDiff {
    #[serde(flatten)]
    pub change: Change,
    #[serde(flatten)]
    pub body: Body,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "diff", rename_all = "snake_case")]
pub enum Body {
    /// A unified diff, without a header.
    Text {
        text: String,
        added_lines: usize,
        removed_lines: usize,
    },
    Binary {
        size_before: Option<u64>,
        size_after: Option<u64>,
    },
    /// The content is the same; mode, owner, times or attributes are not.
    Attributes {
        mode_before: Option<u32>,
        mode_after: Option<u32>,
    },
    /// A directory, or something else that has no content.
    NoContent,
    /// It cannot be told, for this reason.
    Unknown {
        reason: String,
    },
}

/// What a step did, path by path.
pub fn of_step(client: &Client, step: StepId) -> Result<Vec<FileDiff>> {
    let changes = client.changes(step)?;
    let next = step_after(client, step)?;
    let mut diffs = Vec::new();
    for (nth, change) in changes.into_iter().enumerate() {
        let body = match nth < MOST_FILES {
            true => compare(client, step, next, &change)?,
            false => Body::Unknown { reason: format!("only {MOST_FILES} files are compared") },
        };
        diffs.push(FileDiff { change, body });
    }
    Ok(diffs)
}

fn step_after(client: &Client, step: StepId) -> Result<Option<StepId>> {
    let steps: Vec<StepId> = client
        .history()?
        .into_iter()
        .filter_map(|entry| match entry {
            HistoryEntry::Step(info) => Some(info.id),
            HistoryEntry::Barrier(_) => None,
        })
        .collect();
    let at = steps.iter().position(|id| *id == step);
    Ok(at.and_then(|at| steps.get(at + 1).copied()))
}

fn compare(client: &Client, step: StepId, next: Option<StepId>, change: &Change) -> Result<Body> {
    let has_content = matches!(change.entry, Some(EntryKind::File | EntryKind::Symlink));
    if !has_content || change.whole_directory {
        return Ok(Body::NoContent);
    }
    let former_name = change.from.as_ref().unwrap_or(&change.path);
    let before = match change.kind {
        ChangeKind::Added => Ok(EntryContent::Nothing),
        _ => content(client, Some(step), former_name),
    };
    let after = match (change.kind, next) {
        (ChangeKind::Deleted, _) => Ok(EntryContent::Nothing),
        (_, None) => content(client, None, &change.path),
        (_, Some(next)) => match content(client, Some(next), &change.path) {
            // No later step had anything to do with it: it is as it was.
            Err(WorkerError::Failed(failure)) if failure.code == ErrorCode::PathNotInStep => {
                content(client, None, &change.path)
            }
            content => content,
        },
    };
    match (before, after) {
        (Ok(before), Ok(after)) => Ok(body(&before, &after)),
        (Err(WorkerError::Failed(failure)), _) | (_, Err(WorkerError::Failed(failure))) => {
            Ok(Body::Unknown { reason: failure.message })
        }
        (Err(error), _) | (_, Err(error)) => Err(error.into()),
    }
}

fn content(
    client: &Client,
    before: Option<StepId>,
    path: &RelPathBuf,
) -> std::result::Result<EntryContent, WorkerError> {
    client.call(Request::Content { before, path: path.clone(), most_bytes: MOST_BYTES })
}

fn body(before: &EntryContent, after: &EntryContent) -> Body {
    let size = |content: &EntryContent| match content {
        EntryContent::File { size, .. } => Some(*size),
        _ => None,
    };
    let mode = |content: &EntryContent| match content {
        EntryContent::File { mode, .. } => Some(*mode),
        _ => None,
    };
    let (Some(old), Some(new)) = (text(before), text(after)) else {
        return Body::Binary { size_before: size(before), size_after: size(after) };
    };
    if old == new && mode(before).is_some() && mode(after).is_some() {
        return Body::Attributes { mode_before: mode(before), mode_after: mode(after) };
    }
    let diff = TextDiff::from_lines(&old, &new);
    let unified = diff.unified_diff().context_radius(3).to_string();
    let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count();
    Body::Text {
        text: unified,
        added_lines: count(similar::ChangeTag::Insert),
        removed_lines: count(similar::ChangeTag::Delete),
    }
}

/// What can be shown line by line; `None` for what cannot.
fn text(content: &EntryContent) -> Option<String> {
    match content {
        EntryContent::Nothing => Some(String::new()),
        EntryContent::Symlink { target } => {
            Some(format!("symlink to {}\n", String::from_utf8_lossy(target)))
        }
        EntryContent::File { content: Some(content), .. } if !content.contains(&0) => {
            String::from_utf8(content.to_vec()).ok()
        }
        _ => None,
    }
}
