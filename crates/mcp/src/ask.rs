//! One way to ask the user, whatever the client speaks.
//!
//! 2026-07-28: the call is answered with a question, and the client calls again with the answer and
//! a state that we sealed. Before: the server asks while the call waits. A client that can do
//! neither: the backend may know another way. Otherwise: no.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use rmcp::model::{
    CallToolRequestParams, ElicitRequest, ElicitRequestParams, ElicitResult, ElicitationAction,
    ElicitationSchema, InputRequest, InputRequests, InputRequiredResult, ProtocolVersion,
    RequestStateCodec, SealOptions,
};
use rmcp::service::{Peer, RequestContext, RoleServer};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::call::{Interruption, Outcome};
use crate::error::McpError;

/// How long a person may think.
const PATIENCE: Duration = Duration::from_secs(300);

/// The name of the question in the protocol, and of the field of its answer.
const KEY: &str = "confirm";

/// A question that can be answered with yes or no.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub message: String,
    /// Something has happened already, so the call cannot simply be made again.
    pub in_the_middle: bool,
}

impl Question {
    pub fn before(message: impl Into<String>) -> Self {
        Self { message: message.into(), in_the_middle: false }
    }

    pub fn in_the_middle(message: impl Into<String>) -> Self {
        Self { message: message.into(), in_the_middle: true }
    }
}

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
}

impl Seal {
    pub(crate) fn new() -> Result<Self, McpError> {
        let key = random::<32>()?;
        Ok(Self { codec: RequestStateCodec::new_unchecked(key.to_vec()), used: Arc::default() })
    }

    /// What a state is bound to: the same tool with the same arguments.
    fn context(request: &CallToolRequestParams) -> Vec<u8> {
        serde_json::to_vec(&(&request.name, &request.arguments)).unwrap_or_default()
    }

    fn close(&self, state: &State, context: &[u8]) -> String {
        let payload = serde_json::to_vec(state).unwrap_or_default();
        self.codec.seal_with(&payload, &SealOptions::new().associated_data(context).ttl(PATIENCE))
    }

    /// The answers that a request brings; none if its state is not ours, too old, of another call,
    /// or has been here before.
    fn open(&self, request: &CallToolRequestParams) -> BTreeMap<String, bool> {
        let Some(sealed) = request.request_state.as_deref() else { return BTreeMap::new() };
        let opened = self.codec.open_json_with::<State>(sealed, &Self::context(request));
        let Ok(mut state) = opened else { return BTreeMap::new() };
        let mut used = self.used.lock();
        used.retain(|_, at| at.elapsed() < PATIENCE);
        if used.insert(state.nonce, Instant::now()).is_some() {
            return BTreeMap::new();
        }
        let response = request.input_responses.as_ref().and_then(|responses| responses.get(KEY));
        let answer = response.and_then(|answer| ElicitResult::deserialize(answer).ok());
        state.answers.insert(state.asked, answer.is_some_and(|answer| is_yes(&answer)));
        state.answers
    }
}

pub(crate) fn random<const N: usize>() -> Result<[u8; N], McpError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(McpError::Random)?;
    Ok(bytes)
}

/// Asks on behalf of one tool call.
pub(crate) struct Asker {
    backend: Arc<dyn Backend>,
    peer: Peer<RoleServer>,
    runtime: tokio::runtime::Handle,
    seal: Seal,
    context: Vec<u8>,
    answers: BTreeMap<String, bool>,
    /// The client of this call can ask its user.
    can_ask: bool,
    /// By calling again.
    by_retry: bool,
}

impl std::fmt::Debug for Asker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Asker").field("by_retry", &self.by_retry).finish_non_exhaustive()
    }
}

impl Asker {
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        seal: &Seal,
        request: &CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Self {
        let capabilities = context.client_capabilities();
        let elicitation = capabilities.and_then(|all| all.elicitation);
        // Neither mode named means forms, as in the first revision that had elicitation.
        let can_ask = elicitation.is_some_and(|modes| modes.form.is_some() || modes.url.is_none());
        let version = context.protocol_version();
        let by_retry = version.is_some_and(|version| version >= ProtocolVersion::NO_INITIALIZE);
        Self {
            backend,
            peer: context.peer.clone(),
            runtime: tokio::runtime::Handle::current(),
            seal: seal.clone(),
            context: Seal::context(request),
            answers: seal.open(request),
            can_ask,
            by_retry,
        }
    }

    /// Blocks; not for async code.
    pub(crate) fn ask(&self, question: &Question) -> Outcome<bool> {
        if let Some(answer) = self.answers.get(&question.message) {
            return Ok(*answer);
        }
        if self.can_ask && self.by_retry && !question.in_the_middle {
            return Err(Interruption::Ask(Box::new(question.clone())));
        }
        if self.can_ask && !self.by_retry {
            let asking = self.peer.create_elicitation_with_timeout(form(question), Some(PATIENCE));
            if let Ok(answer) = self.runtime.block_on(asking) {
                return Ok(is_yes(&answer));
            }
        }
        Ok(self.backend.ask_elsewhere(question).unwrap_or(false))
    }

    /// The answer to a call that needs one from the user first.
    pub(crate) fn input_required(
        &self,
        question: &Question,
    ) -> Result<InputRequiredResult, McpError> {
        let state = State {
            nonce: URL_SAFE_NO_PAD.encode(random::<16>()?),
            answers: self.answers.clone(),
            asked: question.message.clone(),
        };
        let mut requests = InputRequests::new();
        let request = InputRequest::Elicitation(ElicitRequest::new(form(question)));
        requests.insert(KEY.to_owned(), request);
        Ok(InputRequiredResult::new(Some(requests), Some(self.seal.close(&state, &self.context))))
    }
}

fn form(question: &Question) -> ElicitRequestParams {
    let schema = ElicitationSchema::builder().required_bool(KEY).build_unchecked();
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: question.message.clone(),
        requested_schema: schema,
    }
}

/// Accepting the form is not enough: its answer has to be yes.
fn is_yes(answer: &ElicitResult) -> bool {
    answer.action == ElicitationAction::Accept
        && answer.content.as_ref().is_some_and(|content| content[KEY] == true)
}
