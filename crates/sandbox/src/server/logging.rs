//! What a server does, for whoever looks for a mistake: JSON lines on stderr.
//!
//! `RUST_LOG` says how much, in the words of `tracing-subscriber`.

use tracing_subscriber::EnvFilter;

/// Of the library below MCP, what is wrong; of ours, what happens.
const USUAL: &str = "info,rmcp=warn";

/// To be called once, before the first line is to be logged.
pub fn start() {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(USUAL));
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_current_span(false)
        .with_span_list(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .finish();
    // Another one is there already: then that one gets the lines.
    let _ = tracing::subscriber::set_global_default(subscriber);
}
