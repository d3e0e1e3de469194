//! The protocol's side: rmcp asks, tools answer.

use std::sync::Arc;
use std::time::Duration;

use codeagent_common::{CancelToken, ErrorCode};
use codeagent_stdio::Failure;
use rmcp::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CustomRequest,
    CustomResult, ErrorCode as RpcCode, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer, serve_server};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::ask::Asker;
use crate::backend::Backend;
use crate::call::{Call, Interruption, Outcome};
use crate::client::{Client, Context, EndWithClient};
use crate::error::McpError;
use crate::instructions::instructions;
use crate::lines::Lines;
use crate::tools::{self, Answer, Definition};
use crate::transport::Bounded;

/// What an owner of the server may choose.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// A command that runs longer goes on behind its call, which returns a handle. Some clients give
    /// a call up after a minute.
    pub patience: Duration,
    /// How often a client hears that its command still runs.
    pub progress_interval: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self { patience: Duration::from_secs(45), progress_interval: Duration::from_secs(5) }
    }
}

/// Serves one client until it hangs up; what it has running then is cancelled.
pub async fn serve<R, W>(
    read: R,
    write: W,
    backend: Arc<dyn Backend>,
    settings: Settings,
) -> Result<(), McpError>
where
    R: AsyncRead + Send + Unpin + 'static,
    W: AsyncWrite + Send + Unpin + 'static,
{
    let client = Client::new(&settings)?;
    let _ends = EndWithClient(Arc::clone(&client));
    let of_client = Arc::clone(&client);
    let transport = Lines::new(read, write);
    // What it has running need not come to its end then.
    let transport = Bounded::new(transport, move || of_client.commands.cancel_all());
    let server = Server { backend, client };
    let running = serve_server(server, transport)
        .await
        .map_err(|error| McpError::Handshake(error.to_string()))?;
    // However it ends, the client is gone.
    let _ = running.waiting().await;
    Ok(())
}

/// Serves the client on standard input and output; blocks until it hangs up.
pub fn serve_stdio(backend: Arc<dyn Backend>) -> Result<(), McpError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(McpError::Runtime)?;
    let served = runtime.block_on(serve(
        tokio::io::stdin(),
        tokio::io::stdout(),
        backend,
        Settings::default(),
    ));
    // A thread that still reads standard input would keep us.
    runtime.shutdown_background();
    served
}

struct Server {
    backend: Arc<dyn Backend>,
    client: Arc<Client>,
}

impl ServerHandler for Server {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().build();
        let mut info = ServerConfig::new(capabilities);
        info.server_info = Implementation::new("codeagent-sandbox", env!("CARGO_PKG_VERSION"));
        info.instructions = Some(instructions(&self.backend.surroundings()));
        info
    }

    async fn list_tools(
        &self,
        _: Option<PaginatedRequestParams>,
        _: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(tools::definitions()))
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        tools::find(name).map(Definition::tool)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let Some(tool) = tools::find(&request.name) else {
            let message = format!("there is no tool `{}`; tools/list names those", request.name);
            return Err(ErrorData::invalid_params(message, None));
        };
        let asker =
            Arc::new(Asker::new(Arc::clone(&self.backend), &self.client.seal, &request, &context));
        let cancel = CancelToken::new();
        let call = Call {
            cancel: cancel.clone(),
            output: Arc::default(),
            asker: Arc::clone(&asker),
            command: None,
            unanswered: Arc::default(),
        };
        let tool_context =
            Context { backend: Arc::clone(&self.backend), client: Arc::clone(&self.client), call };
        // Cancels when the client does, and when this future is dropped.
        let cancels = CancelOnDrop::new(&cancel);
        let arguments = request.arguments.unwrap_or_default();
        let outcome = tokio::select! {
            outcome = tool.run(arguments, tool_context, &context) => {
                cancels.disarm();
                outcome
            }
            () = context.ct.cancelled() => {
                Err(Failure::new(ErrorCode::Cancelled, "the call was cancelled").into())
            }
        };
        respond(outcome, &asker)
    }

    /// What is not like any request that there is. If its method is, its parameters are not.
    async fn on_custom_request(
        &self,
        request: CustomRequest,
        _: RequestContext<RoleServer>,
    ) -> Result<CustomResult, ErrorData> {
        let method = request.method;
        Err(match method.as_str() {
            "tools/call" => ErrorData::invalid_params(
                "tools/call wants the name of a tool, and its arguments as an object",
                None,
            ),
            "initialize" | "ping" | "tools/list" => {
                ErrorData::invalid_params(format!("{method} takes other params"), None)
            }
            _ => {
                let message = format!("there is no method {method}; this server has tools");
                ErrorData::new(RpcCode::METHOD_NOT_FOUND, message, None)
            }
        })
    }
}

/// Cancels work when whoever waits for it has gone: the future that has this is dropped.
pub(crate) struct CancelOnDrop<'a>(Option<&'a CancelToken>);

impl<'a> CancelOnDrop<'a> {
    pub(crate) fn new(token: &'a CancelToken) -> Self {
        Self(Some(token))
    }

    /// The work is done, or goes on without anybody who waits.
    pub(crate) fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for CancelOnDrop<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.0 {
            token.cancel();
        }
    }
}

fn respond(outcome: Outcome<Answer>, asker: &Asker) -> Result<CallToolResponse, ErrorData> {
    let result = match outcome {
        Ok(answer) => success(answer),
        Err(Interruption::Failed(failure)) => {
            CallToolResult::error(vec![ContentBlock::text(explain(&failure))])
        }
        Err(Interruption::Ask(question)) => {
            let required = asker.input_required(&question);
            let required =
                required.map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
            return Ok(required.into());
        }
    };
    Ok(result.into())
}

fn success(answer: Answer) -> CallToolResult {
    let mut result = CallToolResult::success(vec![ContentBlock::text(answer.text)]);
    result.structured_content = answer.structured;
    result.is_error = Some(answer.is_error);
    result
}

/// For the model: what is wrong, and what to do about it.
fn explain(failure: &Failure) -> String {
    let mut text = format!("{} ({})", failure.message, failure.code);
    if let Some(hint) = &failure.hint {
        text.push_str(&format!("\nHint: {hint}"));
    }
    if let Some(data) = &failure.data {
        text.push_str(&format!("\n{data}"));
    }
    text
}
