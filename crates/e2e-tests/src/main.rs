//! The program as people have it.

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    codeagent_sandbox::run_if_asked().unwrap_or_else(codeagent_sandbox::cli::main)
}

#[cfg(not(target_os = "linux"))]
fn main() {}
