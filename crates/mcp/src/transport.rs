//! Between a client and rmcp: bounds what a client can have open at once, and notices when it does
//! not listen any more.
//!
//! rmcp reads on whatever waits to be written, and takes no notice of what cannot be.

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::model::{ClientNotification, JsonRpcMessage, RequestId};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::Notify;

/// So many requests of a client are unanswered, or answered and unread; further ones wait until it
/// reads.
const MAX_OPEN: usize = 128;

pub(crate) struct Bounded<T> {
    inner: T,
    open: Arc<Open>,
}

impl<T> Bounded<T> {
    /// `gone` is called when the client cannot be told anything any more.
    pub(crate) fn new(inner: T, gone: impl Fn() + Send + Sync + 'static) -> Self {
        let open = Open { state: Mutex::default(), changed: Notify::new(), gone: Box::new(gone) };
        Self { inner, open: Arc::new(open) }
    }
}

struct Open {
    state: Mutex<State>,
    /// There is less that is open, or the client has gone.
    changed: Notify,
    gone: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct State {
    unanswered: HashSet<RequestId>,
    unread: usize,
    /// Nothing can be written any more.
    broken: bool,
}

impl Open {
    /// Waits for room; whether the client is still there.
    async fn room(&self) -> bool {
        self.wait(|state| state.unanswered.len() + state.unread < MAX_OPEN).await
    }

    /// Waits until the client has gone.
    async fn broken(&self) {
        self.wait(|_| false).await;
    }

    async fn wait(&self, is_enough: impl Fn(&State) -> bool) -> bool {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // Whatever changes from here on is noticed.
            changed.as_mut().enable();
            {
                let state = self.state.lock();
                if state.broken || is_enough(&state) {
                    return !state.broken;
                }
            }
            changed.await;
        }
    }

    fn heard(&self, message: &RxJsonRpcMessage<RoleServer>) {
        match message {
            JsonRpcMessage::Request(request) => {
                self.state.lock().unanswered.insert(request.id.clone());
            }
            // It will not be answered.
            JsonRpcMessage::Notification(told) => {
                if let ClientNotification::CancelledNotification(cancelled) = &told.notification {
                    let id = cancelled.params.request_id.as_ref();
                    id.map(|id| self.state.lock().unanswered.remove(id));
                    self.changed.notify_waiters();
                }
            }
            JsonRpcMessage::Response(_) | JsonRpcMessage::Error(_) => {}
        }
    }

    fn broke(&self) {
        self.state.lock().broken = true;
        self.changed.notify_waiters();
        (self.gone)();
    }
}

/// A message that has not been written, until this is dropped.
struct Unread(Arc<Open>);

impl Unread {
    fn new(open: &Arc<Open>, message: &TxJsonRpcMessage<RoleServer>) -> Self {
        let answered = match message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        let mut state = open.state.lock();
        answered.map(|id| state.unanswered.remove(id));
        state.unread += 1;
        Self(Arc::clone(open))
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        self.0.state.lock().unread -= 1;
        self.0.changed.notify_waiters();
    }
}

impl<T: Transport<RoleServer>> Transport<RoleServer> for Bounded<T> {
    type Error = T::Error;

    fn send(
        &mut self,
        item: TxJsonRpcMessage<RoleServer>,
    ) -> impl Future<Output = Result<(), T::Error>> + Send + 'static {
        let unread = Unread::new(&self.open, &item);
        let sending = self.inner.send(item);
        async move {
            let sent = sending.await;
            if sent.is_err() {
                unread.0.broke();
            }
            drop(unread);
            sent
        }
    }

    async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
        if !self.open.room().await {
            return None;
        }
        let message = tokio::select! {
            message = self.inner.receive() => message?,
            () = self.open.broken() => return None,
        };
        self.open.heard(&message);
        Some(message)
    }

    async fn close(&mut self) -> Result<(), T::Error> {
        self.inner.close().await
    }
}
