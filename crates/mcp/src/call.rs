//! What a backend knows of the tool call it answers.

use std::sync::Arc;

use codeagent_common::CancelToken;
use codeagent_stdio::Failure;
use codeagent_tools::ToolError;
use parking_lot::Mutex;

use crate::ask::{Asker, OpenQuestion, Question};
use crate::commands::Command;
use crate::output::OutputBuffer;

/// What a tool comes to.
pub type Outcome<T> = Result<T, Interruption>;

/// Why a tool did not come to its end.
#[derive(Debug, Clone)]
pub enum Interruption {
    Failed(Box<Failure>),
    /// The client has to ask its user, and will call again. Made by [`Call::ask_user`] only, and when
    /// a call waits for a command that has a question.
    Ask(Box<Question>),
}

impl From<Failure> for Interruption {
    fn from(failure: Failure) -> Self {
        Self::Failed(Box::new(failure))
    }
}

impl From<ToolError> for Interruption {
    fn from(error: ToolError) -> Self {
        Failure::new(error.code(), error.to_string()).hinted(error.hint()).into()
    }
}

/// One tool call on its way through a backend.
#[derive(Debug, Clone)]
pub struct Call {
    /// The client took the call back, or has gone.
    pub cancel: CancelToken,
    pub(crate) output: Arc<Mutex<OutputBuffer>>,
    pub(crate) asker: Arc<Asker>,
    /// What the call runs, if that may outlive it.
    pub(crate) command: Option<Arc<Command>>,
    /// What was denied only because the client has to call again with its user's answer.
    pub(crate) unanswered: Arc<Mutex<Option<Box<Question>>>>,
}

impl Call {
    /// What a command wrote, on either stream.
    pub fn output(&self, bytes: &[u8]) {
        self.output.lock().push(bytes);
    }

    /// Whether the user allows it. An error has to be handed on at once (`?`): it may mean that the
    /// client asks its user and calls again, so nothing may have been done yet. For questions in the
    /// middle of something there is [`Call::ask_meanwhile`].
    pub fn ask_user(&self, question: &Question) -> Outcome<bool> {
        self.asker.ask(question)
    }

    /// Whether the user allows what is about to happen; `None` if nobody waits for the answer any
    /// more. A client that calls again with answers gets the question of a command when it waits for
    /// that. Anything else is denied, which takes it back, and done when the client calls again.
    pub fn ask_meanwhile(&self, question: &OpenQuestion) -> Option<bool> {
        if !self.asker.asks_by_retry() {
            return self.asker.ask_meanwhile(question, &self.cancel);
        }
        if let Some(command) = &self.command {
            return command.questions.ask(question, &self.cancel);
        }
        match self.asker.ask(&Question::before(question.message.clone())) {
            Ok(answer) => Some(answer),
            Err(Interruption::Ask(question)) => {
                *self.unanswered.lock() = Some(question);
                Some(false)
            }
            Err(Interruption::Failed(_)) => Some(false),
        }
    }

    /// The client of this call can ask its user.
    pub fn can_ask_user(&self) -> bool {
        self.asker.can_ask()
    }
}
