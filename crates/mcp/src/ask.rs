//! One way to ask the user, whatever the client speaks.
//!
//! 2026-07-28: the call is answered with a question, and the client calls again with the answer and
//! a state that we sealed. Before: the server asks while the call waits. A client that can do
//! neither: the backend may know another way. Otherwise: no.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use codeagent_common::CancelToken;
use rmcp::model::{
    CallToolRequestParams, ClientResult, ElicitRequest, ElicitRequestParams, ElicitResult,
    ElicitationAction, ElicitationSchema, InputRequest, InputRequests, InputRequiredResult,
    ProtocolVersion, ServerRequest,
};
use rmcp::service::{Peer, PeerRequestOptions, RequestContext, RoleServer};
use serde::{Deserialize, Serialize};

use crate::backend::Backend;
use crate::call::{Interruption, Outcome};
use crate::error::McpError;
use crate::seal::{Brought, PATIENCE, Seal};

/// The name of the question in the protocol, and of the field of its answer.
pub(crate) const KEY: &str = "confirm";

/// A question that can be answered with yes or no, before anything happens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub message: String,
    /// What waits for the answer, if something has begun already.
    pub(crate) paused: Option<Paused>,
}

/// A command that waits for the answer to its question of that number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Paused {
    pub(crate) handle: String,
    pub(crate) number: u64,
}

impl Question {
    pub fn before(message: impl Into<String>) -> Self {
        Self { message: message.into(), paused: None }
    }
}

/// A question that comes up in the middle of something, which waits for the answer.
#[derive(Debug, Clone)]
pub struct OpenQuestion {
    pub message: String,
    /// Nobody waits for the answer after that.
    pub until: Instant,
    /// Cancelled when somebody else has answered.
    pub settled: CancelToken,
    /// Cancelled when it has been denied, because no answer came in time.
    pub over: CancelToken,
}

impl OpenQuestion {
    pub fn new(message: impl Into<String>, until: Instant) -> Self {
        let (settled, over) = (CancelToken::new(), CancelToken::new());
        Self { message: message.into(), until, settled, over }
    }
}

/// Asks on behalf of one tool call.
pub(crate) struct Asker {
    backend: Arc<dyn Backend>,
    peer: Peer<RoleServer>,
    runtime: tokio::runtime::Handle,
    seal: Seal,
    context: Vec<u8>,
    brought: Brought,
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
            brought: seal.open(request),
            can_ask,
            by_retry,
        }
    }

    pub(crate) fn can_ask(&self) -> bool {
        self.can_ask
    }

    pub(crate) fn asks_by_retry(&self) -> bool {
        self.can_ask && self.by_retry
    }

    /// What the request brings of earlier ones.
    pub(crate) fn brought(&self) -> &Brought {
        &self.brought
    }

    /// Blocks; not for async code.
    pub(crate) fn ask(&self, question: &Question) -> Outcome<bool> {
        if let Brought::Answers(answers) = &self.brought
            && let Some(answer) = answers.get(&question.message)
        {
            return Ok(*answer);
        }
        if self.asks_by_retry() {
            return Err(Interruption::Ask(Box::new(question.clone())));
        }
        if self.can_ask {
            let form = form(&question.message);
            let asking = self.peer.create_elicitation_with_timeout(form, Some(PATIENCE));
            if let Ok(answer) = self.runtime.block_on(asking) {
                return Ok(is_yes(&answer));
            }
        }
        Ok(self.backend.ask_elsewhere(question).unwrap_or(false))
    }

    /// Asks while something waits; `None` if nobody waits for the answer any more. Blocks; not for
    /// async code.
    pub(crate) fn ask_meanwhile(
        &self,
        question: &OpenQuestion,
        cancel: &CancelToken,
    ) -> Option<bool> {
        if self.can_ask
            && !self.by_retry
            && let Some(asked) = self.runtime.block_on(self.elicit(question, cancel))
        {
            return asked;
        }
        let elsewhere = self.backend.ask_elsewhere(&Question::before(question.message.clone()));
        Some(elsewhere.unwrap_or(false))
    }

    /// `None` if the client could not be asked.
    async fn elicit(&self, question: &OpenQuestion, cancel: &CancelToken) -> Option<Option<bool>> {
        let closed = Arc::new(tokio::sync::Notify::new());
        for token in [&question.settled, &question.over, cancel] {
            let closed = Arc::clone(&closed);
            token.on_cancel(move || closed.notify_one());
        }
        let request = ServerRequest::ElicitRequest(ElicitRequest::new(form(&question.message)));
        let options = PeerRequestOptions::no_options();
        let mut asking = self.peer.send_cancellable_request(request, options).await.ok()?;
        tokio::select! {
            answer = &mut asking.rx => return match answer {
                Ok(Ok(ClientResult::ElicitResult(answer))) => Some(Some(is_yes(&answer))),
                _ => None,
            },
            () = closed.notified() => {}
            () = tokio::time::sleep_until(question.until.into()) => {}
        }
        // A client that has gone need not be told.
        let _ = asking.cancel(Some("nobody waits for the answer any more".to_owned())).await;
        Some(None)
    }

    /// The answer to a call that needs one from the user first.
    pub(crate) fn input_required(
        &self,
        question: &Question,
    ) -> Result<InputRequiredResult, McpError> {
        let answers = match &self.brought {
            Brought::Answers(answers) => answers.clone(),
            _ => BTreeMap::new(),
        };
        let sealed = self.seal.close(question, answers, &self.context)?;
        let mut requests = InputRequests::new();
        let request = InputRequest::Elicitation(ElicitRequest::new(form(&question.message)));
        requests.insert(KEY.to_owned(), request);
        Ok(InputRequiredResult::new(Some(requests), Some(sealed)))
    }
}

fn form(message: &str) -> ElicitRequestParams {
    let schema = ElicitationSchema::builder().required_bool(KEY).build_unchecked();
    ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: message.to_owned(),
        requested_schema: schema,
    }
}

/// Accepting the form is not enough: its answer has to be yes.
pub(crate) fn is_yes(answer: &ElicitResult) -> bool {
    answer.action == ElicitationAction::Accept
        && answer.content.as_ref().is_some_and(|content| content[KEY] == true)
}
