//! Between a client and rmcp: bounds what a client can have open at once, and notices when it does
//! not listen any more.
//!
//! rmcp reads on whatever waits to be written, and takes no notice of what cannot be.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use rmcp::model::{ClientNotification, JsonRpcMessage, RequestId};
use rmcp::service::{RoleServer, RxJsonRpcMessage, TxJsonRpcMessage};
use rmcp::transport::Transport;
use tokio::sync::Notify;

/// So many requests of a client are unanswered, or answered and unread; further ones wait until it
/// reads.
const MAX_OPEN: usize = 128;

/// And so many bytes, of the requests and of the answers; the one request more that is read when
/// there is still room has a limit of its own.
const MAX_OPEN_BYTES: usize = 32 << 20;

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
    /// With their sizes.
    unanswered: HashMap<RequestId, usize>,
    unread: usize,
    /// Of both.
    bytes: usize,
    /// Nothing can be written any more.
    broken: bool,
}

impl State {
    fn has_room(&self) -> bool {
        self.unanswered.len() + self.unread < MAX_OPEN && self.bytes < MAX_OPEN_BYTES
    }

    fn opened(&mut self, id: RequestId, bytes: usize) {
        self.bytes += bytes;
        // Two of one name are one.
        let known = self.unanswered.insert(id, bytes);
        self.bytes -= known.unwrap_or(0);
    }

    fn answered(&mut self, id: &RequestId) {
        self.bytes -= self.unanswered.remove(id).unwrap_or(0);
    }
}

impl Open {
    /// Waits for room; whether the client is still there.
    async fn room(&self) -> bool {
        self.wait(State::has_room).await
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
                self.state.lock().opened(request.id.clone(), size(message));
            }
            // It will not be answered.
            JsonRpcMessage::Notification(told) => {
                if let ClientNotification::CancelledNotification(cancelled) = &told.notification {
                    let id = cancelled.params.request_id.as_ref();
                    id.inspect(|id| self.state.lock().answered(id));
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
struct Unread {
    open: Arc<Open>,
    bytes: usize,
}

impl Unread {
    fn new(open: &Arc<Open>, message: &TxJsonRpcMessage<RoleServer>) -> Self {
        let answered = match message {
            JsonRpcMessage::Response(response) => Some(&response.id),
            JsonRpcMessage::Error(error) => error.id.as_ref(),
            _ => None,
        };
        let bytes = size(message);
        let mut state = open.state.lock();
        answered.inspect(|id| state.answered(id));
        state.unread += 1;
        state.bytes += bytes;
        Self { open: Arc::clone(open), bytes }
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        {
            let mut state = self.open.state.lock();
            state.unread -= 1;
            state.bytes -= self.bytes;
        }
        self.open.changed.notify_waiters();
    }
}

/// How long a message is as a line.
fn size(message: &impl serde::Serialize) -> usize {
    struct Count(usize);
    impl io::Write for Count {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut count = Count(0);
    // What cannot be written has no size, and is not sent either.
    let _ = serde_json::to_writer(&mut count, message);
    count.0
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
                unread.open.broke();
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

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use serde_json::json;
    use tokio::sync::oneshot;

    use super::*;

    /// A client that has always one request more, of four megabytes, and reads answers when it
    /// wants to.
    struct Eager {
        asked: u64,
        reads: Option<oneshot::Receiver<()>>,
    }

    const REQUEST_BYTES: usize = 4 << 20;

    impl Transport<RoleServer> for Eager {
        type Error = Infallible;

        fn send(
            &mut self,
            _: TxJsonRpcMessage<RoleServer>,
        ) -> impl Future<Output = Result<(), Infallible>> + Send + 'static {
            let reads = self.reads.take();
            async move {
                if let Some(reads) = reads {
                    let _ = reads.await;
                }
                Ok(())
            }
        }

        async fn receive(&mut self) -> Option<RxJsonRpcMessage<RoleServer>> {
            self.asked += 1;
            let arguments = json!({ "content": "x".repeat(REQUEST_BYTES) });
            let params = json!({ "name": "write_file", "arguments": arguments });
            let request = json!({ "jsonrpc": "2.0", "id": self.asked, "method": "tools/call",
                "params": params });
            serde_json::from_value(request).ok()
        }

        async fn close(&mut self) -> Result<(), Infallible> {
            Ok(())
        }
    }

    fn answer(id: u64, bytes: usize) -> TxJsonRpcMessage<RoleServer> {
        let content = json!([{ "type": "text", "text": "x".repeat(bytes) }]);
        let answer = json!({ "jsonrpc": "2.0", "id": id, "result": { "content": content } });
        serde_json::from_value(answer).unwrap()
    }

    /// Reads until there is no room; how much.
    async fn fill(bounded: &mut Bounded<Eager>) -> usize {
        let mut count = 0;
        // What is ready at once need not wait.
        while tokio::time::timeout(std::time::Duration::ZERO, bounded.receive()).await.is_ok() {
            count += 1;
            assert!(count < MAX_OPEN, "there is no bound");
        }
        count
    }

    #[tokio::test]
    async fn large_requests_and_large_answers_wait_for_room() {
        let (read, reads) = oneshot::channel();
        let inner = Eager { asked: 0, reads: Some(reads) };
        let mut bounded = Bounded::new(inner, || {});
        assert_eq!(fill(&mut bounded).await, MAX_OPEN_BYTES / REQUEST_BYTES);

        // An answer that is not read takes the place of its request.
        let unread = tokio::spawn(bounded.send(answer(1, REQUEST_BYTES)));
        assert_eq!(fill(&mut bounded).await, 0);
        read.send(()).unwrap();
        unread.await.unwrap().unwrap();
        assert_eq!(fill(&mut bounded).await, 1);

        bounded.send(answer(2, 1)).await.unwrap();
        assert_eq!(fill(&mut bounded).await, 1);
        assert_eq!(fill(&mut bounded).await, 0);
    }
}
