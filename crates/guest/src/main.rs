//! Process 1 of the guest; with `--supervise`, the supervisor of one of its commands.

#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    if arguments.next().as_deref() == Some("--supervise") {
        return supervise(arguments.next().as_deref());
    }
    if !rustix::process::getpid().is_init() {
        say("codeagent-guest: this is process 1 of a guest, and nothing else");
        return ExitCode::from(2);
    }
    if let Err(error) = codeagent_guest::live() {
        // The host reads the console, and finds this as the last thing the guest said.
        say(&format!("codeagent-guest: {error}"));
    }
    rustix::fs::sync();
    let _ = rustix::system::reboot(rustix::system::RebootCommand::PowerOff);
    ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
fn supervise(socket: Option<&str>) -> ExitCode {
    let socket = socket.and_then(|number| number.parse().ok());
    let Some(Ok(socket)) = socket.map(codeagent_shim::inherited_fd) else {
        return ExitCode::FAILURE;
    };
    match codeagent_shim::supervise(socket.into()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

#[cfg(target_os = "linux")]
#[expect(clippy::print_stderr, reason = "the console is all there is")]
fn say(line: &str) {
    eprintln!("{line}");
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
