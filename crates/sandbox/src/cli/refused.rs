//! What a command could not reach, told when it has ended.

use std::sync::Arc;

use parking_lot::Mutex;

use super::output::notice;
use crate::session::{Event, Session};

/// So many are named.
const MAX_LINES: usize = 8;

/// Hears what is refused from now on.
#[derive(Debug, Clone, Default)]
pub(crate) struct Refused(Arc<Mutex<Vec<(String, String)>>>);

impl Refused {
    pub(crate) fn listen_to(session: &Session) -> Self {
        let refused = Self::default();
        let heard = refused.clone();
        session.listen(move |event| {
            if let Event::NetworkRefused { destination, message } = event {
                heard.0.lock().push((destination.clone(), message.clone()));
            }
        });
        refused
    }

    pub(crate) fn sum_up(&self) {
        let refused = self.0.lock();
        for (_, message) in refused.iter().take(MAX_LINES) {
            notice(&format!("blocked: {message}"));
        }
        if let more @ 1.. = refused.len().saturating_sub(MAX_LINES) {
            notice(&format!("blocked: {more} more; --json names all of them"));
        }
    }

    pub(crate) fn destinations(&self) -> Vec<String> {
        self.0.lock().iter().map(|(destination, _)| destination.clone()).collect()
    }
}
