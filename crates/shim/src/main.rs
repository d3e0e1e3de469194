//! The binary; `codeagent-shim --help` says what it takes.

#![forbid(unsafe_code)]

#[cfg(unix)]
mod channel;

#[cfg(unix)]
#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a binary talks to people")]
fn main() -> std::process::ExitCode {
    use std::process::ExitCode;

    use codeagent_shim::Options;

    let options = match Options::parse(std::env::args_os().skip(1)) {
        Ok(options) => options,
        Err(error) => {
            eprintln!("codeagent-shim: {error}");
            return ExitCode::from(2);
        }
    };
    let done = match options {
        Options::Help => {
            print!("{}", Options::HELP);
            Ok(())
        }
        Options::Version => {
            let protocol = codeagent_control::PROTOCOL_VERSION;
            println!("codeagent-shim {} (protocol {protocol})", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
        Options::Supervise { socket } => channel::supervise(socket),
        Options::Run { channel, sync_dirs, rollback_file, drop_caches } => {
            let supervisor = channel::own_binary();
            supervisor.and_then(|supervisor| {
                let config = codeagent_shim::ShimConfig {
                    supervisor,
                    sync_dirs,
                    rollback_file,
                    drop_caches,
                    sets_clock: false,
                    defaults: codeagent_shim::Defaults::default(),
                };
                channel::serve(channel, &config)
            })
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("codeagent-shim: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(not(unix))]
#[expect(clippy::print_stderr, reason = "a binary talks to people")]
fn main() -> std::process::ExitCode {
    eprintln!("codeagent-shim: runs on Unix systems only");
    std::process::ExitCode::FAILURE
}
