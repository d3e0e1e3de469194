//! The program that the tests run again: as a worker, as a sandbox, as a supervisor, as a session.

#[cfg(target_os = "linux")]
mod session;

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    codeagent_namespace::run_if_asked()
        .or_else(session::run_if_asked)
        .unwrap_or_else(|| codeagent_worker::run(Box::new(codeagent_mount::MountFrontEnd)))
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
