//! `codeagent-mount`: see `--help`.

#[cfg(target_os = "linux")]
mod cli;

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    cli::main()
}

#[cfg(not(target_os = "linux"))]
#[expect(clippy::print_stderr, reason = "it is for people")]
fn main() -> std::process::ExitCode {
    eprintln!("codeagent-mount: mounting is not available on this system yet");
    std::process::ExitCode::FAILURE
}
