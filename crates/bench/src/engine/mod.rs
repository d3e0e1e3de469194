//! The undo engine's figures, one file for each group of rows.

mod create;
mod directories;
mod edit;
mod large_file;
mod remove;
mod repeat_write;
mod unlink;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::Options;
use crate::place::{NotMeasured, Place};
use crate::table::{Report, Row};

/// Rows that are measured together.
struct Group {
    name: &'static str,
    measure: fn(&Place, repetitions: u32) -> Result<Vec<Row>>,
}

const GROUPS: &[Group] = &[
    Group { name: "unlink", measure: unlink::measure },
    Group { name: "create", measure: create::measure },
    Group { name: "repeated writes", measure: repeat_write::measure },
    Group { name: "1 GiB file", measure: large_file::measure },
    Group { name: "whole directories", measure: directories::measure },
    Group { name: "rm -rf", measure: remove::measure },
    Group { name: "edit", measure: edit::measure },
];

pub(crate) fn measure(place: &Place, options: &Options) -> Report {
    let mut report = Report::new(place);
    let wanted = |group: &&Group| {
        options.only.as_ref().is_none_or(|text| group.name.contains(text.as_str()))
    };
    let groups: Vec<&Group> = GROUPS.iter().filter(wanted).collect();
    // Draws on stderr, and only if that is a terminal.
    let progress = ProgressBar::new(groups.len() as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:20} {pos}/{len} {msg}") {
        progress.set_style(style);
    }
    for group in groups {
        progress.set_message(format!("{}: {}", place.name, group.name));
        progress.tick();
        match (group.measure)(place, options.repetitions) {
            Ok(rows) => report.add(rows),
            Err(error) => {
                let failed = error.downcast_ref::<NotMeasured>().is_none();
                report.add_missing(group.name, format!("{error:#}"), failed);
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    report
}
