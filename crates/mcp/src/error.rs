use std::io;
use std::path::PathBuf;

/// Why a client could not be served.
#[derive(Debug, thiserror::Error)]
pub enum McpError {
    #[error("the client did not begin as MCP clients do: {0}")]
    Handshake(String),
    #[error("another process listens at {}", .0.display())]
    InUse(PathBuf),
    #[error("cannot listen at {}: {source}", .path.display())]
    Listen { path: PathBuf, source: io::Error },
    #[error("the system gives no random numbers: {0}")]
    Random(getrandom::Error),
    #[error("cannot start: {0}")]
    Runtime(#[source] io::Error),
}
