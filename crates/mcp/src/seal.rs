//! What a client carries for us from a question to the call that brings the answer.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use rmcp::model::{CallToolRequestParams, ElicitResult, RequestStateCodec, SealOptions};
use serde::{Deserialize, Serialize};

use crate::ask::{KEY, Paused, Question, is_yes};
use crate::error::McpError;

/// How long a person may think.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// Seals what clients carry for us, and opens it once.
#[derive(Clone)]
pub(crate) struct Seal {
    codec: RequestStateCodec,
    /// States that have been used, and when; remembered as long as they would be valid.
    used: Arc<Mutex<HashMap<String, Instant>>>,
}

impl std::fmt::Debug for Seal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Seal")
    }
}

/// What the user has answered so far, by the questions' texts.
#[derive(Debug, Default, Serialize, Deserialize)]
struct State {
    nonce: String,
    answers: BTreeMap<String, bool>,
    /// The question that the answer in the request belongs to.
    asked: String,
    /// What waits for that answer.
    #[serde(default)]
    paused: Option<Paused>,
}

/// What a request brings of earlier ones.
#[derive(Debug, Default)]
pub(crate) enum Brought {
    #[default]
    Nothing,
    /// By the questions' texts.
    Answers(BTreeMap<String, bool>),
    /// The answer to a question that came up in the middle of something.
    Resumed(Paused, bool),
    /// An answer whose state is not ours, too old, of another call, or has been here before.
    Refused,
}

impl Seal {
    pub(crate) fn new() -> Result<Self, McpError> {
        let key = random::<32>()?;
        Ok(Self { codec: RequestStateCodec::new_unchecked(key.to_vec()), used: Arc::default() })
    }

    /// What a state is bound to: the same tool with the same arguments.
    pub(crate) fn context(request: &CallToolRequestParams) -> Vec<u8> {
        serde_json::to_vec(&(&request.name, &request.arguments)).unwrap_or_default()
    }

    pub(crate) fn close(
        &self,
        question: &Question,
        answers: BTreeMap<String, bool>,
        context: &[u8],
    ) -> Result<String, McpError> {
        let state = State {
            nonce: URL_SAFE_NO_PAD.encode(random::<16>()?),
            answers,
            asked: question.message.clone(),
            paused: question.paused.clone(),
        };
        let payload = serde_json::to_vec(&state).unwrap_or_default();
        let options = SealOptions::new().associated_data(context).ttl(PATIENCE);
        Ok(self.codec.seal_with(&payload, &options))
    }

    pub(crate) fn open(&self, request: &CallToolRequestParams) -> Brought {
        let Some(sealed) = request.request_state.as_deref() else {
            let has_answers = request.input_responses.as_ref().is_some_and(|all| !all.is_empty());
            return if has_answers { Brought::Refused } else { Brought::Nothing };
        };
        let opened = self.codec.open_json_with::<State>(sealed, &Self::context(request));
        let Ok(mut state) = opened else { return Brought::Refused };
        let mut used = self.used.lock();
        used.retain(|_, at| at.elapsed() < PATIENCE);
        if used.insert(state.nonce, Instant::now()).is_some() {
            return Brought::Refused;
        }
        let response = request.input_responses.as_ref().and_then(|responses| responses.get(KEY));
        let answer = response.and_then(|answer| ElicitResult::deserialize(answer).ok());
        let answer = answer.is_some_and(|answer| is_yes(&answer));
        if let Some(paused) = state.paused {
            return Brought::Resumed(paused, answer);
        }
        state.answers.insert(state.asked, answer);
        Brought::Answers(state.answers)
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], McpError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(McpError::Random)?;
    Ok(bytes)
}
