use std::fmt::Write as _;

use codeagent_common::EntryKind;
use rmcp::model::JsonObject;
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::locate;
use super::{Answer, Definition, Hints, Run, parameters};
use crate::call::Outcome;
use crate::client::Context;
use crate::schema;

pub(super) const DEFINITION: Definition = Definition {
    name: "list_directory",
    title: "List a directory",
    description: "Lists what is in a directory, sorted by name. Directories end with a slash, \
symlinks with an at sign; files have their size.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::ReadOnly,
    run: Run::Blocking(run),
};

const MAX_ENTRIES: usize = 1000;

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    /// Absolute, or relative to the working directory; the working directory if not given.
    #[serde(default, alias = "dir_path", alias = "directory_path", alias = "file_path")]
    path: String,
    /// Entries to pass over.
    #[serde(default)]
    offset: usize,
}

fn run(arguments: JsonObject, context: &Context) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let place = locate(context, &parameters.path)?;
    let listing =
        place.folder.list_directory(place.path.as_path(), parameters.offset, MAX_ENTRIES)?;
    if listing.count == 0 {
        return Ok(Answer::text(format!("{} is empty.", place.path)));
    }
    let mut text = String::new();
    for entry in &listing.entries {
        let name = String::from_utf8_lossy(&entry.name);
        let _ = match entry.kind {
            EntryKind::Directory => writeln!(text, "{name}/"),
            EntryKind::Symlink => writeln!(text, "{name}@"),
            EntryKind::File => writeln!(text, "{name} ({} bytes)", entry.size_bytes),
            EntryKind::Fifo => writeln!(text, "{name} (fifo)"),
            EntryKind::Socket => writeln!(text, "{name} (socket)"),
            EntryKind::Device => writeln!(text, "{name} (device)"),
        };
    }
    let seen = parameters.offset + listing.entries.len();
    if seen < listing.count {
        let _ = writeln!(text, "[{} of {}: go on with offset {seen}]", seen, listing.count);
    }
    Ok(Answer::text(text))
}
