//! A worker that serves guests and mounts.

use std::process::ExitCode;

#[cfg(target_os = "linux")]
fn main() -> ExitCode {
    let front_end = codeagent_virtiofs::GuestFrontEnd(codeagent_mount::MountFrontEnd);
    codeagent_worker::run(Box::new(front_end))
}

#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    ExitCode::FAILURE
}
