use std::io;

/// Why serving a client ended before the client was done.
#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    #[error("cannot read requests: {0}")]
    Read(#[source] io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(#[source] io::Error),
}
