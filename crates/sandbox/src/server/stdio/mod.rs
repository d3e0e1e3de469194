//! The STDIO API: a frontend on a pair of streams.

mod events;
mod operations;

use std::io::{Read, Write};
use std::sync::Arc;

use codeagent_stdio::{Events, Handler, StdioError};
use parking_lot::Mutex;

use super::desk::Desk;
use super::hub::{Hub, Listening, Role};

/// Serves a frontend until it says no more. The session ends with it.
pub fn serve(
    hub: &Arc<Hub>,
    reader: impl Read + Send + 'static,
    writer: impl Write + Send + 'static,
) -> Result<(), StdioError> {
    let frontend = Arc::new(Frontend { desk: Desk::new(hub), listening: Mutex::default() });
    let served = codeagent_stdio::serve(reader, writer, frontend);
    // Without a session there is nothing to end, and its other troubles nobody hears any more.
    let _ = hub.stop();
    served
}

/// One frontend.
pub(crate) struct Frontend {
    desk: Desk,
    /// For as long as it is connected.
    listening: Mutex<Option<Listening>>,
}

impl Handler for Frontend {
    fn connected(&self, events: &Events) {
        let events = events.clone();
        let listening = self.desk.hub.listen(Role::Frontend, move |heard| {
            events::translate(heard).iter().for_each(|event| events.emit(event));
        });
        *self.listening.lock() = Some(listening);
    }

    /// What it left running is of no use to anybody, and would keep its sandbox alive.
    fn input_ended(&self) {
        self.desk.cancel_all();
    }
}
