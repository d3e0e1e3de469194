//! Safeguards ask on the terminal, if there is one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::time::Instant;

use codeagent_common::SafeguardDecision;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::text::printable;
use crate::session::{Asker, Question};

/// Held by whoever reads from the terminal: an answer must not go to the command.
pub(crate) static TERMINAL: Mutex<()> = Mutex::new(());

/// Whether something can be read from standard input.
pub(crate) fn has_input() -> bool {
    let stdin = rustix::stdio::stdin();
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&at_once)).is_ok_and(|ready| ready > 0)
}

pub(crate) fn wait_for_input() {
    let stdin = rustix::stdio::stdin();
    // Interrupted or not possible: whoever reads then finds out.
    let _ = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], None);
}

/// Asks whoever sits at the terminal; denies if nobody does and nobody else is asked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct AskOnTerminal;

impl Asker for AskOnTerminal {
    fn ask(&self, question: &Question) -> Option<SafeguardDecision> {
        let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
        match terminal.and_then(|terminal| ask(terminal, question)) {
            Ok(true) => Some(SafeguardDecision::Allow),
            Ok(false) => Some(SafeguardDecision::Deny),
            Err(_) => question.without_anybody(),
        }
    }
}

fn ask(mut terminal: File, question: &Question) -> io::Result<bool> {
    let _terminal = TERMINAL.lock();
    let request = &question.request;
    let paths: Vec<String> =
        request.sample_paths.iter().take(5).map(|path| printable(&path.to_string())).collect();
    write!(
        terminal,
        "\r\nsandbox: {} in {}: {}\r\nsandbox: allow it? [y/N] ",
        printable(&request.message),
        printable(&question.directory),
        paths.join(", ")
    )?;
    let deadline = Instant::now() + question.timeout;
    let mut answer = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        if poll(&mut [PollFd::new(&terminal, PollFlags::IN)], Some(&left))? == 0 {
            write!(terminal, "\r\nsandbox: no answer, so it is denied\r\n")?;
            return Ok(false);
        }
        let mut byte = [0];
        if terminal.read(&mut byte)? == 0 || matches!(byte[0], b'\n' | b'\r') {
            break;
        }
        answer.push(byte[0]);
    }
    Ok(matches!(answer.trim_ascii(), b"y" | b"Y" | b"yes" | b"Yes"))
}
