//! A session with one folder, for tests that kill it: runs one command and says what became of it.

#![allow(clippy::print_stdout, reason = "this is how it talks to the test")]

use std::error::Error;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::channel;

use codeagent_control::{CommandLine, Exec};
use codeagent_namespace::{Executor, Keep, Policy, Surroundings, View, ViewChoice, WorkFolder};
use codeagent_worker::{Settings, WorkerProcess, WorkerSpec};

/// `session VIEW WORKING UNDO STATE SCRIPT`
pub(crate) fn run_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != "session" {
        return None;
    }
    let arguments: [OsString; 5] = arguments.collect::<Vec<_>>().try_into().ok()?;
    Some(match run(arguments) {
        Ok(said) => {
            println!("{said}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("failed: {error}");
            ExitCode::FAILURE
        }
    })
}

fn run([view, working, undo, state, script]: [OsString; 5]) -> Result<String, Box<dyn Error>> {
    let view = if view == "live" { View::Live } else { View::Transactional };
    let (working, undo) = (PathBuf::from(working), PathBuf::from(undo));
    let script = script.into_string().map_err(|_| "the script is not text")?;
    let worker = WorkerProcess::start(&WorkerSpec::new(Settings::new(&working, &undo))?, |_| {})??;
    let mut policy = Policy::new(state);
    policy.keep = Keep::Ephemeral;
    // So that there is a cgroup around commands, where there can be one.
    policy.limits.processes = Some(2000);
    policy.limits.memory_bytes = Some(4 << 30);
    let executor = Executor::new(Surroundings::new(policy)?)?
        .with_live_options(codeagent_mount::live_options(2));
    let folder = WorkFolder { path: &working, worker: Some(worker.client()) };
    let (_orders, taken) = channel();
    let exec = Exec::new(CommandLine::Shell(script.into()));
    let finished = executor.run(&[folder], exec, ViewChoice::Only(view), taken, |_, _| {})?;
    let where_it_ran = if finished.limits_are_shared { "in a cgroup" } else { "in no cgroup" };
    Ok(format!("{:?}, {where_it_ran}", finished.outcome))
}
