//! Questions of safeguards, and whoever answers them.

use codeagent_common::{SafeguardDecision, SafeguardRequest};

/// What a safeguard wants to know.
#[derive(Debug, Clone)]
pub struct Question {
    /// The label of the working directory.
    pub directory: String,
    pub request: SafeguardRequest,
    /// Without an answer by then, it is denied.
    pub timeout: std::time::Duration,
}

/// Asks whoever is there. Called on a thread of its own for each question.
pub trait Asker: Send + Sync {
    /// `None`: somebody else may answer, through
    /// [`Session::answer`](super::Session::answer).
    fn ask(&self, question: &Question) -> Option<SafeguardDecision>;
}

/// Nobody is there to be asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct DenyAll;

impl Asker for DenyAll {
    fn ask(&self, _: &Question) -> Option<SafeguardDecision> {
        Some(SafeguardDecision::Deny)
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
