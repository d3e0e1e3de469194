//! What a server does, for whoever looks for a mistake: JSON lines on stderr.
//!
//! `RUST_LOG` says how much, in the words of `tracing-subscriber`.

use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::EnvFilter;

/// Of the library below MCP, what is wrong; of ours, what happens.
const USUAL: &str = "info,rmcp=warn";

/// So many lines wait for whoever reads them. Of further ones it learns nothing: that a client does
/// not read its server's log must not hold up the server.
const MAX_UNREAD_LINES: usize = 4_096;

/// Lines are written until this is dropped, which waits for them, but not for long.
#[derive(Debug)]
pub struct Log {
    _writer: WorkerGuard,
}

/// To be called once, before the first line is to be logged.
pub fn start() -> Log {
    let (writer, guard) = NonBlockingBuilder::default()
        .lossy(true)
        .buffered_lines_limit(MAX_UNREAD_LINES)
        .thread_name("log")
        .finish(std::io::stderr());
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(USUAL));
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_env_filter(filter)
        .with_writer(writer)
        .finish();
    // Another one is there already: then that one gets the lines.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Log { _writer: guard }
}
