use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::sync::mpsc::Sender;
use std::time::Duration;

use clap::Args;
use codeagent_control::{Cause, Order, Stream};
use codeagent_namespace::View;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM};
use signal_hook::iterator::Signals;

use super::input::pass_input_on;
use super::kept::Kept;
use super::output::{Outcome, notice};
use super::refused::Refused;
use super::session_arguments::{Names, SessionArguments};
use super::signals::heeded;
use super::text;
use crate::error::Result;
use crate::executor::Isolation;
use crate::session::{CommandReport, CommandRequest, Event, Session};

/// As `env` and container tools have it.
pub(crate) const FAILED: u8 = 125;

/// Run a command, as one step that can be undone
///
/// What it prints is passed on as it comes, and its exit code is that of this command. If it
/// cannot be run at all, the exit code is 125, or 127 if there is no such program. With --json, what
/// it prints comes at the end, as a part of the value: of each stream the first and the last MiB,
/// with the number of bytes that are left out between them.
#[derive(Debug, Args)]
pub(crate) struct Run {
    #[command(flatten)]
    session: SessionArguments,
    /// End the command, and everything it has started, after so many seconds
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    /// The program and its arguments
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl Run {
    pub(crate) fn execute(self, json: bool) -> Result<Outcome> {
        let session = self.session.session()?;
        session.listen(tell);
        let refused = Refused::listen_to(&session);
        session.start()?;
        let names = self.session.names_in(&session)?;
        let folders = session.folders()?;
        self.session.tell_of_view(&session)?;
        let mut request = CommandRequest::argv(self.command.into_iter().map(OsStringExt::into_vec));
        request.cwd = session.current_dir();
        request.timeout = self.timeout.map(Duration::from_secs);
        request.takes_input = has_input();
        let mut captured = Captured::default();
        let ran = run(&session, request, json.then_some(&mut captured));
        // A history that could not be closed properly is recovered by the next session.
        let stopped = session.stop();
        let (report, unheard) = ran?;
        stopped?;
        if !json {
            sum_up(&report, &names);
            refused.sum_up();
        }
        let mut exit_code = u8::try_from(report.exit_code).unwrap_or(u8::MAX);
        if let Some(error) = unheard {
            notice(&format!("not all that it printed could be passed on: {error}"));
            exit_code = if exit_code == 0 { FAILED } else { exit_code };
        }
        let json = json!({
            "report": report,
            "working_dirs": folders.iter().map(|folder| &folder.path).collect::<Vec<_>>(),
            "network_refused": refused.destinations(),
            "stdout_left_out_bytes": captured.stdout.left_out_bytes(),
            "stderr_left_out_bytes": captured.stderr.left_out_bytes(),
            "stdout": captured.stdout.into_text(),
            "stderr": captured.stderr.into_text(),
        });
        Ok(Outcome { json, text: String::new(), exit_code })
    }
}

/// What a command says, kept for programs.
#[derive(Debug, Default)]
struct Captured {
    stdout: Kept,
    stderr: Kept,
}

/// Runs the command with our own input, output and signals. Comes back with why not everything it
/// printed was heard, unless the reader went away and so did not want it.
fn run(
    session: &std::sync::Arc<Session>,
    request: CommandRequest,
    mut captured: Option<&mut Captured>,
) -> Result<(CommandReport, Option<io::Error>)> {
    let takes_input = request.takes_input;
    let (orders, taken) = std::sync::mpsc::channel();
    pass_signals_on(orders.clone())?;
    if takes_input {
        pass_input_on(orders.clone())?;
    }
    let mut unheard = None;
    let report = session.exec_with_orders(&request, taken, |stream, data| {
        let passed_on = match (&mut captured, stream) {
            (Some(captured), Stream::Stdout) => captured.stdout.write_all(data),
            (Some(captured), Stream::Stderr) => captured.stderr.write_all(data),
            (None, Stream::Stdout) => put(io::stdout().lock(), data),
            (None, Stream::Stderr) => put(io::stderr().lock(), data),
        };
        if let Err(error) = passed_on
            && unheard.is_none()
        {
            unheard = Some(error);
            // As if it had written to the closed pipe itself.
            let _ = orders.send(Order::Signal(SIGPIPE));
        }
    })?;
    Ok((report, unheard.filter(|error| error.kind() != io::ErrorKind::BrokenPipe)))
}

fn put(mut stream: impl Write, data: &[u8]) -> io::Result<()> {
    stream.write_all(data)?;
    stream.flush()
}

/// Whoever is in the background of a terminal and reads from it is stopped.
fn has_input() -> bool {
    let stdin = rustix::stdio::stdin();
    if !io::stdin().is_terminal() {
        return true;
    }
    rustix::termios::tcgetpgrp(stdin).is_ok_and(|group| group == rustix::process::getpgrp())
}

/// The first Ctrl-C is for the command, which may have something to put in order; the next one
/// ends it and everything it has started, as other signals that end programs do at once.
fn pass_signals_on(orders: Sender<Order>) -> Result<()> {
    let mut signals = Signals::new(heeded(&[SIGINT, SIGQUIT, SIGTERM, SIGHUP]))?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        let mut interrupted = false;
        for signal in signals.forever() {
            let order = match signal {
                SIGINT | SIGQUIT if !interrupted => {
                    interrupted = true;
                    Order::Signal(signal)
                }
                _ => Order::Cancel,
            };
            if orders.send(order).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

/// What people have to know while it runs.
pub(crate) fn tell(event: &Event) {
    match event {
        Event::Started { isolation: Isolation::Host, passed_over } => {
            let why: Vec<String> =
                passed_over.iter().map(|(what, why)| format!("; {what}: {why}")).collect();
            notice(&format!(
                "NO ISOLATION: this command runs on the machine itself, with everything you may do{}",
                why.concat()
            ));
        }
        Event::Recovery { .. } => notice("took back what an interrupted step had left unfinished"),
        Event::StepUnprotected { reason, .. } => {
            notice(&format!("this step CANNOT be undone any more: {reason}"));
        }
        Event::VersionMismatch { found, expected, .. } => notice(&format!(
            "NOTHING IS RECORDED: the history has format {found}, this program writes {expected}"
        )),
        Event::Warning { message, .. } => notice(message),
        _ => {}
    }
}

/// One line: the step, what changed, how to undo it; more only if something is not as expected.
pub(crate) fn sum_up(report: &CommandReport, names: &Names) {
    match report.cause {
        Cause::TimedOut => notice("its time was up, and it was ended"),
        Cause::Cancelled => notice("it was cancelled"),
        Cause::Exited => {}
    }
    // Where nothing was recorded at all, that was said before it began.
    if let Some(reason) = report.not_undoable.as_ref().filter(|_| !report.directories.is_empty()) {
        notice(&format!("what it did CANNOT be undone: {reason}"));
    }
    if let Some(hint) = &report.hint {
        notice(hint);
    }
    if report.view == Some(View::ReadOnly) {
        notice(&format!("nothing changed ({}, read-only view)", report.isolation));
    }
    let several = report.directories.len() > 1;
    for directory in &report.directories {
        let name = if several { format!("{}: ", directory.directory) } else { String::new() };
        for line in text::left_out(directory, names.folder(&directory.directory)) {
            notice(&format!("{name}{line}"));
        }
        match &directory.info {
            None => notice(&format!("{name}nothing changed ({})", report.isolation)),
            Some(step) => {
                let (id, counts, isolation) = (step.id, text::counts(step), report.isolation);
                let folder = names.of(&directory.directory);
                notice(&match step.protection.is_protected() {
                    true => format!(
                        "{name}step {id} ({isolation}): {counts}; undo it with: sandbox undo{folder}"
                    ),
                    false => {
                        format!("{name}step {id} ({isolation}): {counts}; it CANNOT be undone")
                    }
                });
            }
        }
    }
}
