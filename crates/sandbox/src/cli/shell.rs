use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStringExt;
use std::sync::mpsc::{Sender, channel};

use clap::Args;
use codeagent_control::{Order, PtySize};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGTERM, SIGWINCH};
use signal_hook::iterator::Signals;

use super::input::pass_input_on;
use super::output::Outcome;
use super::refused::Refused;
use super::run::{sum_up, tell};
use super::session_arguments::SessionArguments;
use super::signals::heeded;
use crate::error::{Result, SandboxError};
use crate::session::CommandRequest;

const END_OF_INPUT: Order = Order::Input { data: Vec::new(), eof: true };

/// Work in a sandbox by hand; everything until the end is one step
///
/// A terminal of its own, with job control. Without a program, the user's shell.
#[derive(Debug, Args)]
pub(crate) struct Shell {
    #[command(flatten)]
    session: SessionArguments,
    /// A program to run in the terminal in place of the shell
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
}

impl Shell {
    pub(crate) fn execute(self) -> Result<Outcome> {
        if !io::stdin().is_terminal() {
            let hint = "in scripts, use: sandbox run -- COMMAND";
            return Err(SandboxError::usage("a shell wants a terminal", hint));
        }
        let session = self.session.session()?;
        session.listen(tell);
        let refused = Refused::listen_to(&session);
        session.start()?;
        let names = self.session.names_in(&session)?;
        self.session.tell_of_view(&session)?;
        let words = match self.command.is_empty() {
            true => vec![user_shell()],
            false => self.command,
        };
        let mut request = CommandRequest::argv(words.into_iter().map(OsStringExt::into_vec));
        request.cwd = session.current_dir();
        request.pty = Some(size());
        request.takes_input = true;
        let (orders, taken) = channel();
        pass_signals_on(orders.clone())?;
        let raw = RawTerminal::enter()?;
        pass_input_on(orders)?;
        let report = session.exec_with_orders(&request, taken, |_, data| {
            let mut stdout = io::stdout().lock();
            let _ = stdout.write_all(data).and_then(|()| stdout.flush()); // the terminal is gone
        });
        drop(raw);
        let stopped = session.stop();
        let report = report?;
        stopped?;
        sum_up(&report, &names);
        refused.sum_up();
        let exit_code = u8::try_from(report.exit_code).unwrap_or(u8::MAX);
        Ok(Outcome { json: json!({ "report": report }), text: String::new(), exit_code })
    }
}

/// What is installed for everybody; others are not there inside.
fn user_shell() -> OsString {
    let usual = std::env::var_os("SHELL");
    let is_there = |shell: &OsString| {
        let path = std::path::Path::new(shell);
        path.is_file() && ["/bin", "/usr"].iter().any(|dir| path.starts_with(dir))
    };
    usual.filter(is_there).unwrap_or_else(|| "/bin/sh".into())
}

fn size() -> PtySize {
    match tcgetwinsize(rustix::stdio::stdin()) {
        Ok(size) => PtySize { rows: size.ws_row, columns: size.ws_col },
        Err(_) => PtySize { rows: 24, columns: 80 },
    }
}

/// Every key is for the program; our terminal only shows. As it was when this is dropped.
struct RawTerminal(Termios);

impl RawTerminal {
    fn enter() -> Result<Self> {
        let stdin = rustix::stdio::stdin();
        let former = tcgetattr(stdin).map_err(io::Error::from)?;
        let mut raw = former.clone();
        raw.make_raw();
        tcsetattr(stdin, OptionalActions::Now, &raw).map_err(io::Error::from)?;
        Ok(Self(former))
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        let _ = tcsetattr(rustix::stdio::stdin(), OptionalActions::Drain, &self.0); // or it is gone
    }
}

fn pass_signals_on(orders: Sender<Order>) -> Result<()> {
    let mut signals = Signals::new(heeded(&[SIGWINCH, SIGTERM, SIGHUP]))?;
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        for signal in signals.forever() {
            let sent = match signal {
                SIGWINCH => orders.send(Order::Resize(size())),
                // Shells at a terminal do not heed SIGTERM, but end when their input does.
                _ => orders.send(END_OF_INPUT).and_then(|()| orders.send(Order::Cancel)),
            };
            if sent.is_err() {
                return;
            }
        }
    })?;
    Ok(())
}
