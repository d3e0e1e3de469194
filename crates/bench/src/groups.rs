//! Rows that are measured together.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use crate::Options;
use crate::place::{NotMeasured, Place};
use crate::table::{Report, Row};

type Measure<'a> = Box<dyn Fn(&Place, u32) -> Result<Vec<Row>> + 'a>;

/// One group, and how it is measured in a place, so many times.
pub(crate) struct Group<'a> {
    name: &'static str,
    measure: Measure<'a>,
}

impl<'a> Group<'a> {
    pub(crate) fn new(
        name: &'static str,
        measure: impl Fn(&Place, u32) -> Result<Vec<Row>> + 'a,
    ) -> Self {
        Self { name, measure: Box::new(measure) }
    }
}

impl std::fmt::Debug for Group<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Group").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Measures those groups that are asked for.
pub(crate) fn measure(place: &Place, groups: &[Group<'_>], options: &Options) -> Report {
    let mut report = Report::new(place);
    let wanted = |group: &&Group<'_>| {
        options.only.as_ref().is_none_or(|text| group.name.contains(text.as_str()))
    };
    let groups: Vec<&Group<'_>> = groups.iter().filter(wanted).collect();
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
