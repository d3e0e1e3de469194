//! An MCP server for a plain directory, without a sandbox: for trying clients, and for tests.
//!
//!     cargo run -p codeagent-mcp --example plain_directory -- DIRECTORY

mod backend;

use std::process::ExitCode;
use std::sync::Arc;

#[expect(clippy::print_stderr, reason = "standard output belongs to the protocol")]
fn main() -> ExitCode {
    let Some(directory) = std::env::args_os().nth(1) else {
        eprintln!("usage: plain_directory DIRECTORY");
        return ExitCode::FAILURE;
    };
    let served = backend::PlainDirectory::open(directory.as_ref())
        .map_err(|error| error.to_string())
        .and_then(|backend| {
            codeagent_mcp::serve_stdio(Arc::new(backend)).map_err(|error| error.to_string())
        });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::FAILURE
        }
    }
}
