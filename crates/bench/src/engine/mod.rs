//! The undo engine's figures, one file for each group of rows.

mod create;
mod directories;
mod edit;
mod large_file;
mod remove;
mod repeat_write;
mod unlink;

use crate::groups::Group;

pub(crate) fn groups() -> Vec<Group<'static>> {
    vec![
        Group::new("unlink", unlink::measure),
        Group::new("create", create::measure),
        Group::new("repeated writes", repeat_write::measure),
        Group::new("1 GiB file", large_file::measure),
        Group::new("whole directories", directories::measure),
        Group::new("rm -rf", remove::measure),
        Group::new("edit", edit::measure),
    ]
}
