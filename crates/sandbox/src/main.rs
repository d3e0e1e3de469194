//! `sandbox`: see `--help`.

#[cfg(target_os = "linux")]
mod arguments;
#[cfg(target_os = "linux")]
mod commands;
#[cfg(target_os = "linux")]
mod error;
#[cfg(target_os = "linux")]
mod hook;
#[cfg(target_os = "linux")]
mod text;
#[cfg(target_os = "linux")]
mod undo_log;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    if codeagent_worker::is_worker() {
        return codeagent_worker::run(Box::new(codeagent_mount::MountFrontEnd));
    }
    commands::main()
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::print_stderr, reason = "it is for people")]
fn main() -> std::process::ExitCode {
    eprintln!("sandbox: the undo engine does not run on this system yet, so nothing was done");
    eprintln!("hint: run it on Linux");
    std::process::ExitCode::FAILURE
}
