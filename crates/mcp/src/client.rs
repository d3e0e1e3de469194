//! What the server remembers of one client.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::backend::Backend;
use crate::commands::Commands;
use crate::error::McpError;
use crate::seal::Seal;
use crate::server::Settings;

#[derive(Debug)]
pub(crate) struct Client {
    /// Where its last command ended.
    pub(crate) cwd: Mutex<Option<String>>,
    /// Those that go on after their call. They end with the client.
    pub(crate) commands: Commands,
    pub(crate) seal: Seal,
    pub(crate) patience: Duration,
    pub(crate) progress_interval: Duration,
}

impl Client {
    pub(crate) fn new(settings: &Settings) -> Result<Arc<Self>, McpError> {
        Ok(Arc::new(Self {
            cwd: Mutex::default(),
            commands: Commands::default(),
            seal: Seal::new()?,
            patience: settings.patience,
            progress_interval: settings.progress_interval,
        }))
    }
}

/// The client has gone, or nobody serves it any more: what it has running ends.
pub(crate) struct EndWithClient(pub(crate) Arc<Client>);

impl Drop for EndWithClient {
    fn drop(&mut self) {
        self.0.commands.cancel_all();
    }
}

/// Everything a tool works with.
pub(crate) struct Context {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) client: Arc<Client>,
    pub(crate) call: crate::call::Call,
}
