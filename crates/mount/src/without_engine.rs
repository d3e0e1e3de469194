//! Where there is no undo engine, nothing is mounted: protection is never silently absent.

use std::process::ExitCode;

use clap::Parser;

use crate::arguments::Arguments;

#[expect(clippy::print_stderr, reason = "it is for people")]
pub(crate) fn main() -> ExitCode {
    let arguments = Arguments::parse();
    eprintln!(
        "codeagent-mount: {} was not mounted: the undo engine does not run on this system yet, \
         and without it nothing could be undone",
        arguments.source_dir.display()
    );
    eprintln!("hint: {HINT}");
    ExitCode::FAILURE
}

#[cfg(windows)]
const HINT: &str = "run it on Linux; WSL 2 will do, for a folder inside it";
#[cfg(not(windows))]
const HINT: &str = "run it on Linux; a virtual machine will do, for a folder inside it";
