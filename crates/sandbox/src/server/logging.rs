//! What a server does, for whoever looks for a mistake: JSON lines on stderr.
//!
//! `RUST_LOG` says how much, in the words of `tracing-subscriber`; `info` if it says nothing.

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// To be called once, before the first line is to be logged.
pub fn start() {
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_target(false)
        .with_current_span(false)
        .with_span_list(false)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .finish();
    // Another one is there already: then that one gets the lines.
    let _ = tracing::subscriber::set_global_default(subscriber);
}
