//! Why a request could not be met, as the client learns it.

use codeagent_common::{ErrorCode, InvalidPath};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What an operation comes to.
pub type Outcome<T> = Result<T, Failure>;

/// A stable code for programs, a sentence for people.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    pub code: ErrorCode,
    pub message: String,
    /// What to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// The field of the request that is at fault, such as `payload.working_directories[0].path`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// More, depending on the code: the conflicts of `rollback_blocked`, the versions of
    /// `unsupported_version`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<Value>,
}

impl Failure {
    pub fn new(code: ErrorCode, message: impl Into<String>) -> Self {
        let hint = Some(code.hint().to_owned());
        Self { code, message: message.into(), hint, field: None, data: None }
    }

    #[must_use]
    pub fn hinted(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    #[must_use]
    pub fn at(self, field: impl Into<String>) -> Self {
        Self { field: Some(field.into()), ..self }
    }

    /// What cannot be serialized is left out: the rest of the failure counts more.
    #[must_use]
    pub fn with_data(self, data: &impl Serialize) -> Self {
        Self { data: serde_json::to_value(data).ok(), ..self }
    }
}

impl From<InvalidPath> for Failure {
    fn from(error: InvalidPath) -> Self {
        let code = match error {
            InvalidPath::Absolute | InvalidPath::Outside => ErrorCode::PathOutsideRoot,
            InvalidPath::Component | InvalidPath::Nul => ErrorCode::InvalidPath,
        };
        Self::new(code, error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_failure_has_a_hint() {
        let unknown = Failure::new(ErrorCode::StepNotFound, "there is no step 3");
        assert_eq!(unknown.hint.as_deref(), Some("the history lists the steps there are"));
        assert_eq!(unknown.hinted("look again").hint.as_deref(), Some("look again"));
    }
}
