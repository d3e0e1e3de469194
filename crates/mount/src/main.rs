//! `codeagent-mount`: see `--help`.

mod arguments;
#[cfg(target_os = "linux")]
mod cli;
#[cfg(not(target_os = "linux"))]
mod without_engine;

fn main() -> std::process::ExitCode {
    #[cfg(target_os = "linux")]
    return cli::main();
    #[cfg(not(target_os = "linux"))]
    return without_engine::main();
}
