//! Commands in namespaces: ours in both views, without any sandbox, in bubblewrap, which has no
//! undo, and with the checkpoints that tools of today make.

mod binary;
mod edit;
mod programs;
mod session;
mod start;
mod whole_trees;

use anyhow::Result;

use crate::groups::Group;
use crate::place::Place;
use crate::table::Row;

pub(crate) use binary::{run_if_asked, sandbox};

type Measure = fn(&Place, u32) -> Result<Vec<Row>>;

const GROUPS: &[(&str, Measure)] = &[
    ("start", start::measure),
    ("sandbox run", binary::measure),
    ("git", programs::git),
    ("grep", programs::grep),
    ("cargo", programs::cargo),
    ("npm", programs::npm),
    ("rm -rf", whole_trees::remove),
    ("create", whole_trees::create),
    ("edit", edit::measure),
];

pub(crate) fn groups() -> Vec<Group<'static>> {
    GROUPS.iter().map(|&(name, measure)| Group::new(name, measure)).collect()
}
