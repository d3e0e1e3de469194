//! What a handler knows of the request it answers.

use std::sync::Arc;

use codeagent_common::CancelToken;

use crate::envelope::RequestId;
use crate::event::Event;
use crate::outbox::Outbox;

/// The way to tell the client something it did not ask for. Clones lead to the same client.
#[derive(Debug, Clone)]
pub struct Events(pub(crate) Arc<Outbox>);

impl Events {
    /// Never waits. If the client has left too much unread, the event is dropped, output of commands
    /// first, and the client learns how many are missing.
    pub fn emit(&self, event: &Event) {
        self.0.emit(event);
    }
}

/// One request on its way through a handler.
#[derive(Debug, Clone)]
pub struct Call {
    pub request_id: RequestId,
    /// The client took the request back, or has gone.
    pub cancel: CancelToken,
    pub events: Events,
}
