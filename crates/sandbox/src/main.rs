//! `sandbox`: see `--help`.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    codeagent_sandbox::run_if_asked().unwrap_or_else(codeagent_sandbox::cli::main)
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::print_stderr, reason = "it is for people")]
fn main() -> std::process::ExitCode {
    eprintln!("sandbox: the undo engine does not run on this system yet, so nothing was done");
    eprintln!("hint: run it on Linux");
    std::process::ExitCode::FAILURE
}
