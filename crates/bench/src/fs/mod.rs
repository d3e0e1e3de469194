//! The mount's figures: ours, the same FUSE mount without interception, and the bare filesystem.

mod build;
mod data;
mod git;
mod install;
mod metadata;
mod passthrough;
mod programs;
mod remove;
pub(crate) mod serve;
mod settings;
mod side;
mod times;

use anyhow::Result;

use crate::groups::Group;
use crate::place::Place;
use crate::table::Row;

pub(crate) use settings::Settings;

/// What other benchmarks work on, too.
pub(crate) mod samples {
    pub(crate) use super::build::make_crate;
    pub(crate) use super::git::make_repository;
    pub(crate) use super::install::pack_dependency;
    pub(crate) use super::programs::require;
}

/// What every group of rows needs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Bench<'a> {
    place: &'a Place,
    settings: &'a Settings,
    repetitions: u32,
}

type Measure = fn(&Bench<'_>) -> Result<Vec<Row>>;

const GROUPS: &[(&str, Measure)] = &[
    ("metadata", metadata::measure),
    ("content", data::measure),
    ("passthrough", passthrough::measure),
    ("git", git::measure),
    ("cargo", build::measure),
    ("npm", install::measure),
    ("rm -rf", remove::measure),
];

pub(crate) fn groups(settings: &Settings) -> Vec<Group<'_>> {
    GROUPS
        .iter()
        .map(|&(name, measure)| {
            Group::new(name, move |place: &Place, repetitions| {
                measure(&Bench { place, settings, repetitions })
            })
        })
        .collect()
}
