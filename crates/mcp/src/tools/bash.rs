use std::sync::Arc;
use std::time::{Duration, Instant};

use codeagent_common::{CancelToken, ErrorCode};
use codeagent_stdio::Failure;
use rmcp::model::{JsonObject, ProgressNotificationParam};
use rmcp::service::{RequestContext, RoleServer};
use schemars::JsonSchema;
use serde::Deserialize;

use super::shared::{has_several_directories, push_paths, push_steps};
use super::{Answer, Definition, Hints, Run, lost, parameters};
use crate::ask::Question;
use crate::backend::{BashEnd, BashRequest};
use crate::call::{Call, Interruption, Outcome};
use crate::client::{Client, Context};
use crate::commands::{Command, Ended};
use crate::schema;
use crate::seal::Brought;
use crate::server::CancelOnDrop;

pub(super) const DEFINITION: Definition = Definition {
    name: "Bash",
    title: "Run a command",
    description: "Runs a shell command in the sandbox. The working directory stays between calls, \
environment variables do not. Everything the command changes is one step, which the undo tool takes \
back, `rm -rf` included. Both output streams are shown together; of long output, the beginning and \
the end. A command that still runs after about 45 seconds goes on in the background, and the answer \
has a handle: call Bash with only that handle to wait for more, or with stop to end it.",
    input: schema::input::<Parameters>,
    output: None,
    hints: Hints::Destroys { lasting: false },
    run: Run::Bash,
};

const DEFAULT_TIMEOUT_MS: u64 = 120_000;
const MAX_TIMEOUT_MS: u64 = 600_000;

#[derive(Debug, Deserialize, JsonSchema)]
struct Parameters {
    /// The command line. Required, unless a handle is given.
    #[serde(default, alias = "cmd")]
    command: String,
    /// Milliseconds after which it is ended; 120000 if not given, at most 600000.
    #[serde(default)]
    timeout: Option<u64>,
    /// What it does, in five to ten words.
    #[serde(default)]
    #[expect(dead_code, reason = "for people who watch the client")]
    description: Option<String>,
    /// Do not wait for it: the answer has a handle.
    #[serde(default)]
    run_in_background: bool,
    /// Of a command that still runs: wait for its output and its end.
    #[serde(default)]
    handle: Option<String>,
    /// With a handle: end that command and everything it started.
    #[serde(default)]
    stop: bool,
}

pub(super) async fn run(
    arguments: JsonObject,
    context: Context,
    request: &RequestContext<RoleServer>,
) -> Outcome<Answer> {
    let parameters: Parameters = parameters(arguments)?;
    let (client, asker) = (Arc::clone(&context.client), Arc::clone(&context.call.asker));
    let mut not_needed = None;
    let command = match (asker.brought(), &parameters.handle) {
        (Brought::Resumed(paused, answer), _) => {
            let command = client.commands.find(&paused.handle)?;
            not_needed = command.questions.answer(paused.number, *answer).err();
            command
        }
        (Brought::Refused, _) => return Err(belongs_to_nothing(&client)),
        (_, Some(handle)) => client.commands.find(handle)?,
        (_, None) => start(&parameters, context)?,
    };
    if parameters.stop {
        command.cancel.cancel();
    }
    let patience = if parameters.run_in_background { Duration::ZERO } else { client.patience };
    // If the client takes this call back, the command ends.
    let guard = CancelOnDrop::new(&command.cancel);
    let asks = asker.asks_by_retry() && !parameters.stop;
    let waited = wait(&command, patience, client.progress_interval, asks, request).await;
    guard.disarm();
    let told = match waited {
        Waited::Question(question) => return Err(Interruption::Ask(Box::new(question))),
        Waited::Long => Ok(still_running(&command)),
        Waited::End(end) => {
            client.commands.forget(&command);
            end.map(|ended| tell(&command, &ended))
        }
    };
    match not_needed {
        None => told,
        Some(closed) => noted(told, closed.explain()),
    }
}

/// The command of such a call may be running: it must not begin again.
fn belongs_to_nothing(client: &Client) -> Interruption {
    let message = "the answer belongs to no open question of this call: its state is wrong, too old \
                   or has been used; nothing was started";
    let failure = Failure::new(ErrorCode::InvalidField, message);
    let handles = client.commands.handles();
    if handles.is_empty() {
        return failure.into();
    }
    failure.hinted(format!("Bash with a handle waits for a command: {}", handles.join(", "))).into()
}

/// With something that has to be said first.
fn noted(told: Outcome<Answer>, note: &str) -> Outcome<Answer> {
    match told {
        Ok(answer) => Ok(Answer { text: format!("[{note}]\n{}", answer.text), ..answer }),
        Err(Interruption::Failed(mut failure)) => {
            failure.message = format!("{note}; {}", failure.message);
            Err(Interruption::Failed(failure))
        }
        Err(ask) => Err(ask),
    }
}

fn start(parameters: &Parameters, context: Context) -> Outcome<Arc<Command>> {
    let wrong = |message: String| Failure::new(ErrorCode::InvalidField, message);
    if parameters.command.trim().is_empty() {
        return Err(wrong("`command` is empty".to_owned()).into());
    }
    let timeout_ms = parameters.timeout.unwrap_or(DEFAULT_TIMEOUT_MS);
    if timeout_ms == 0 || timeout_ms > MAX_TIMEOUT_MS {
        return Err(wrong(format!("`timeout` has to be 1 to {MAX_TIMEOUT_MS} milliseconds")).into());
    }
    let background = parameters.run_in_background;
    let request = BashRequest {
        command: parameters.command.clone(),
        cwd: context.client.cwd.lock().clone(),
        timeout_ms: (!background).then_some(timeout_ms),
        background,
    };
    let command = context.client.commands.begin(CancelToken::new())?;
    let running = Arc::clone(&command);
    tokio::task::spawn_blocking(move || perform(&request, &context, &running));
    Ok(command)
}

fn perform(request: &BashRequest, context: &Context, command: &Arc<Command>) {
    let call = Call {
        cancel: command.cancel.clone(),
        output: Arc::clone(&command.output),
        asker: Arc::clone(&context.call.asker),
        command: Some(Arc::clone(command)),
        unanswered: Arc::default(),
    };
    let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        context.backend.bash(request, &call)
    }));
    let outcome = ran.unwrap_or_else(|_| Err(lost()));
    if let (false, Ok(BashEnd { cwd: Some(cwd), .. })) = (request.background, &outcome) {
        remember(&context.client, cwd);
    }
    command.ended(outcome.map(|end| {
        let several_directories = !end.steps.is_empty() && has_several_directories(context);
        Ended { end, several_directories }
    }));
}

fn remember(client: &Client, cwd: &str) {
    *client.cwd.lock() = Some(cwd.to_owned());
}

/// What came first.
enum Waited {
    End(Outcome<Ended>),
    Question(Question),
    /// Nothing did, and it took long.
    Long,
}

/// Its end, unless it has a question or takes too long. Meanwhile the client hears that it lives.
async fn wait(
    command: &Command,
    patience: Duration,
    interval: Duration,
    asks: bool,
    request: &RequestContext<RoleServer>,
) -> Waited {
    let started = Instant::now();
    let token = request.meta.get_progress_token();
    let (end, question) = (command.wait(), command.questions.next());
    let deadline = tokio::time::sleep(patience);
    let mut ticks = tokio::time::interval(interval);
    ticks.tick().await;
    tokio::pin!(end, question, deadline);
    loop {
        tokio::select! {
            biased;
            end = &mut end => return Waited::End(end),
            question = &mut question, if asks => return Waited::Question(question),
            () = &mut deadline => return Waited::Long,
            _ = ticks.tick() => {
                let Some(token) = token.clone() else { continue };
                let seconds = started.elapsed().as_secs_f64();
                let mut progress = ProgressNotificationParam::new(token, seconds);
                progress.message = command.output.lock().last_line();
                // A client that does not listen is noticed elsewhere.
                let _ = request.peer.notify_progress(progress).await;
            }
        }
    }
}

fn still_running(command: &Command) -> Answer {
    let mut text = command.take_output();
    end_line(&mut text);
    let handle = &command.handle;
    text.push_str(&format!(
        "[still running: call Bash with handle \"{handle}\" to wait for more, and with stop to end it]"
    ));
    Answer::short(text)
}

fn tell(command: &Command, ended: &Ended) -> Answer {
    let end = &ended.end;
    let mut text = command.take_output();
    if text.trim().is_empty() {
        text = "(no output)".to_owned();
    }
    end_line(&mut text);
    let broke_off = end.timed_out || end.cancelled;
    if end.timed_out {
        text.push_str("[ended: its time was over]\n");
    } else if end.cancelled {
        text.push_str("[ended: it was stopped]\n");
    } else if let Some(signal) = end.signal {
        text.push_str(&format!("[killed by signal {signal}]\n"));
    } else if let Some(code) = end.exit_code.filter(|code| *code != 0) {
        text.push_str(&format!("[exit code {code}]\n"));
    }
    push_steps(&mut text, &end.steps, ended.several_directories);
    if let Some(hint) = &end.hint {
        text.push_str(&format!("[{hint}]\n"));
    }
    if let Some(reason) = &end.not_undoable {
        text.push_str(&format!("[NOT undoable: {reason}]\n"));
    }
    push_paths(&mut text, "Protected, and so not changed", &end.refused_paths);
    let title = "Somebody else changed these meanwhile; undo brings their version back";
    push_paths(&mut text, title, &end.changed_meanwhile);
    for denied in &end.denied {
        let count = match denied.count {
            1 => "one operation was".to_owned(),
            more => format!("{more} operations were"),
        };
        let title = format!(
            "Denied, and so refused, of this command or one in the background ({}): {count} not done; \
             everything else is kept",
            denied.question
        );
        push_paths(&mut text, &title, &denied.paths);
    }
    Answer { is_error: broke_off, ..Answer::short(text.trim_end()) }
}

fn end_line(text: &mut String) {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
}
