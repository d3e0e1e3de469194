//! Puts the questions of safeguards to the user of the agent whose command raised them.

use std::collections::HashMap;
use std::sync::Arc;

use codeagent_common::{SafeguardDecision, SafeguardId};
use codeagent_mcp::{Call, OpenQuestion};
use parking_lot::Mutex;

use crate::server::hub::{Heard, Hub, Listening, Pending, Role};
use crate::session::Event;

/// Questions that wait for an answer, by directory and number.
type Open = Arc<Mutex<HashMap<(String, SafeguardId), OpenQuestion>>>;

/// What questions are about.
#[derive(Debug)]
pub(super) struct Asks {
    /// The number of the command, or of the change.
    pub(super) command: u64,
    /// What it is called instead of by the number of its step: if it is tried again when the answer
    /// is there, that is another step.
    pub(super) name: Option<String>,
}

impl Asks {
    fn message(&self, question: &Pending) -> String {
        let message = &question.request.message;
        let by_step = format!("step {} ", question.request.step);
        match (&self.name, message.strip_prefix(&by_step)) {
            (Some(name), Some(what)) => format!("{name} {what}"),
            _ => message.clone(),
        }
    }
}

/// Questions are put for as long as this lives.
#[derive(Debug)]
pub(super) struct Asking {
    _listening: Listening,
    open: Open,
}

impl Asking {
    /// `None` if the agent cannot ask.
    pub(super) fn start(hub: &Arc<Hub>, call: &Call, asks: Asks) -> Option<Self> {
        if !call.can_ask_user() {
            return None;
        }
        let open = Open::default();
        let (of_hub, call, settles) = (Arc::downgrade(hub), call.clone(), Arc::clone(&open));
        let role = Role::Agent { command: asks.command };
        let listening = hub.listen(role, move |heard| match heard {
            Heard::Question(question) => {
                if let Some(hub) = of_hub.upgrade() {
                    put(hub, call.clone(), &asks, &settles, question);
                }
            }
            Heard::Session(Event::SafeguardAnswered { directory, question, .. }) => {
                let answered = settles.lock().remove(&(directory.clone(), *question));
                answered.inspect(|question| question.settled.cancel());
            }
            Heard::Session(_) => {}
        });
        Some(Self { _listening: listening, open })
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        // The command has ended without an answer.
        let open = std::mem::take(&mut *self.open.lock());
        open.values().for_each(|question| question.over.cancel());
    }
}

/// On a thread of its own: a user may take long, and there may be other questions meanwhile.
fn put(hub: Arc<Hub>, call: Call, asks: &Asks, open: &Open, question: &Pending) {
    let (question, command) = (question.clone(), asks.command);
    let wanted = OpenQuestion::new(asks.message(&question), question.expires);
    open.lock().insert((question.directory.clone(), question.request.id), wanted.clone());
    let asking = std::thread::Builder::new().name("question".to_owned()).spawn(move || {
        let decision = match call.ask_meanwhile(&wanted) {
            Some(true) => SafeguardDecision::Allow,
            Some(false) => SafeguardDecision::Deny,
            None if call.cancel.is_cancelled() && !hub.asks_others(&question, command) => {
                SafeguardDecision::Deny
            }
            // Somebody else has answered, or may; or its time is over, and then it was denied.
            None => return,
        };
        // The same is true of this.
        let _ = hub.answer(&question.name, decision);
    });
    drop(asking); // without a thread there is no answer, which means no
}
