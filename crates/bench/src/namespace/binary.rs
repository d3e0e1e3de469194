//! What `sandbox run` costs a command that does nothing, from the shell's point of view.

use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};

use crate::place::Place;
use crate::sample::Samples;
use crate::table::{Bar, Row, Value};

/// This program is `sandbox` then: the same code, without a second binary to build.
const ARGUMENT: &str = "--as-sandbox";

/// More than others: one takes milliseconds.
const TIMES: u32 = 10;

pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next()?;
    if arguments.next()? != ARGUMENT {
        return None;
    }
    Some(codeagent_sandbox::cli::main_with(std::iter::once(name).chain(arguments)))
}

/// `sandbox` with arguments.
pub(crate) fn sandbox<const N: usize>(arguments: [&str; N]) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg(ARGUMENT).args(arguments);
    Ok(command)
}

pub(super) fn measure(place: &Place, repetitions: u32) -> Result<Vec<Row>> {
    let scratch = place.scratch(64 << 20)?;
    let (folder, home) = (scratch.work(), scratch.path("home"));
    std::fs::create_dir(&home)?;
    let (mut native, mut ours) = (Samples::default(), Samples::default());
    for round in 0..repetitions * TIMES {
        let alone = time(Command::new("true"), &folder, &home)?;
        // With a step, as commands have it that are not known to only read.
        let contained = sandbox(["run", "--view", "transactional", "--", "true"])?;
        let contained = time(contained, &folder, &home)?;
        // The first ones find nothing in the caches, and look at what the machine offers.
        if round > 1 {
            native.push(alone);
            ours.push(contained);
        }
    }
    let over = ours.median().saturating_sub(native.median());
    let bar = Bar::AtMost(Value::Time(Duration::from_millis(60)));
    Ok(vec![Row::time("sandbox run -- true, over true", over, bar)])
}

fn time(mut command: Command, folder: &Path, home: &Path) -> Result<Duration> {
    command.current_dir(folder).env("HOME", home).env_remove("CODEAGENT_HOME");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let started = Instant::now();
    let status = command.status()?;
    ensure!(status.success(), "it ended with {status}");
    Ok(started.elapsed())
}
