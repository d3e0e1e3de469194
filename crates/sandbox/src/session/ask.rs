//! Questions of safeguards, and whoever answers them.

use codeagent_common::{SafeguardDecision, SafeguardRequest};

/// What a safeguard wants to know.
#[derive(Debug, Clone)]
pub struct Question {
    /// The label of the working directory.
    pub directory: String,
    pub request: SafeguardRequest,
    /// The commands of this session, by number, that it may be of. None: of none of them.
    pub commands: Vec<u64>,
    /// Without an answer by then, it is denied.
    pub timeout: std::time::Duration,
    /// It may be of a command of another process, whose user is asked, too.
    pub asks_others: bool,
}

impl Question {
    /// The answer if nobody is there who could give one. If others are asked, it is theirs.
    pub fn without_anybody(&self) -> Option<SafeguardDecision> {
        (!self.asks_others).then_some(SafeguardDecision::Deny)
    }
}

/// Asks whoever is there. Called on a thread of its own for each question.
pub trait Asker: Send + Sync {
    /// `None`: somebody else may answer, through [`Session::answer`](super::Session::answer) or in
    /// another process.
    fn ask(&self, question: &Question) -> Option<SafeguardDecision>;
}

/// Nobody is there to be asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct DenyAll;

impl Asker for DenyAll {
    fn ask(&self, question: &Question) -> Option<SafeguardDecision> {
        question.without_anybody()
    }
}

/// Questions are answered through [`Session::answer`](super::Session::answer) alone.
#[derive(Debug, Clone, Copy, Default)]
pub struct AnsweredElsewhere;

impl Asker for AnsweredElsewhere {
    fn ask(&self, _: &Question) -> Option<SafeguardDecision> {
        None
    }
}
