//! What a backend knows of the tool call it answers.

use std::sync::Arc;

use codeagent_common::CancelToken;
use codeagent_stdio::Failure;
use codeagent_tools::ToolError;
use parking_lot::Mutex;

use crate::ask::{Asker, Question};
use crate::output::OutputBuffer;

/// What a tool comes to.
pub type Outcome<T> = Result<T, Interruption>;

/// Why a tool did not come to its end.
#[derive(Debug, Clone)]
pub enum Interruption {
    Failed(Box<Failure>),
    /// The client has to ask its user first, and will call again. Made by [`Call::ask_user`] only.
    Ask(Box<Question>),
}

impl From<Failure> for Interruption {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}

impl From<ToolError> for Interruption {
    fn from(error: ToolError) -> Self {
        Failure::new(error.code(), error.to_string()).into()
    }
}

/// One tool call on its way through a backend.
#[derive(Debug, Clone)]
pub struct Call {
    /// The client took the call back, or has gone.
    pub cancel: CancelToken,
    pub(crate) output: Arc<Mutex<OutputBuffer>>,
    pub(crate) asker: Arc<Asker>,
}

impl Call {
    /// What a command wrote, on either stream.
    pub fn output(&self, bytes: &[u8]) {
        self.output.lock().push(bytes);
    }

    /// Whether the user allows it. An error has to be handed on at once (`?`): it may mean that the
    /// client asks its user and calls again, so nothing may have been done yet. A question in the
    /// middle of something ([`Question::in_the_middle`]) is asked in another way.
    pub fn ask_user(&self, question: &Question) -> Outcome<bool> {
        self.asker.ask(question)
    }
}
