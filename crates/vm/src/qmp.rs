//! The monitor of QEMU: a handful of commands and the events that matter. The crate `qapi` has all
//! of them, made from QEMU's schema, and takes longer to build than everything here together.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{Result, VmError};

/// QEMU answers at once, or something is wrong with it. Much longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(10);
/// A line of QEMU is short; it is not the guest's to write.
const MAX_LINE_BYTES: usize = 1 << 20;

/// One line from QEMU.
#[derive(Debug, Deserialize)]
struct Line {
    #[serde(rename = "QMP")]
    greeting: Option<Value>,
    #[serde(rename = "return")]
    result: Option<Value>,
    error: Option<Refusal>,
    event: Option<String>,
    #[serde(default)]
    data: Value,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    desc: String,
}

/// What became of the machine, as far as QEMU told.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    /// The reason of the end, such as `guest-shutdown` or `guest-reset`.
    pub(crate) shutdown: Option<String>,
}

/// A connection on which commands can be given.
#[derive(Debug)]
pub(crate) struct Qmp {
    /// One command at a time: its answer is the next one.
    conversation: Mutex<Conversation>,
    seen: Arc<Mutex<Seen>>,
}

#[derive(Debug, Clone)]
pub(crate) struct Watch(Arc<Mutex<Seen>>);

impl Watch {
    pub(crate) fn seen(&self) -> Seen {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

#[derive(Debug)]
struct Conversation {
    to_qemu: UnixStream,
    answers: Receiver<Result<Value, String>>,
}

impl Qmp {
    /// Waits for QEMU's greeting, which it sends when the machine is built. The thread ends with QEMU,
    /// and has seen everything by then.
    pub(crate) fn connect(
        socket: UnixStream,
        patience: Duration,
    ) -> Result<(Self, JoinHandle<()>)> {
        let (answer, answers) = mpsc::channel();
        let seen = Arc::<Mutex<Seen>>::default();
        let reader = BufReader::new(socket.try_clone().map_err(VmError::Silent)?);
        let listen = {
            let seen = seen.clone();
            move || listen(reader, &answer, &seen)
        };
        let thread = thread::Builder::new().name("qmp".into()).spawn(listen);
        let thread = thread.map_err(VmError::Silent)?;
        let qmp =
            Self { conversation: Mutex::new(Conversation { to_qemu: socket, answers }), seen };
        qmp.conversation().answer("greeting", patience)?;
        qmp.execute("qmp_capabilities")?;
        Ok((qmp, thread))
    }

    /// A command without arguments.
    pub(crate) fn execute(&self, command: &str) -> Result<Value> {
        let mut conversation = self.conversation();
        let line = format!("{}\n", json!({ "execute": command }));
        conversation.to_qemu.write_all(line.as_bytes()).map_err(VmError::Silent)?;
        conversation.answer(command, PATIENCE)
    }

    /// What can be asked from another thread, also when this is gone.
    pub(crate) fn watch(&self) -> Watch {
        Watch(self.seen.clone())
    }

    fn conversation(&self) -> MutexGuard<'_, Conversation> {
        self.conversation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Conversation {
    fn answer(&mut self, command: &str, patience: Duration) -> Result<Value> {
        match self.answers.recv_timeout(patience) {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(reason)) => Err(VmError::Refused { command: command.to_owned(), reason }),
            Err(RecvTimeoutError::Timeout) => {
                // A late answer must not be taken for that of the next command.
                let _ = self.to_qemu.shutdown(std::net::Shutdown::Both);
                Err(VmError::Silent(io::ErrorKind::TimedOut.into()))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(VmError::Silent(io::ErrorKind::UnexpectedEof.into()))
            }
        }
    }
}

fn listen(mut reader: impl BufRead, answers: &Sender<Result<Value, String>>, seen: &Mutex<Seen>) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match io::Read::take(&mut reader, MAX_LINE_BYTES as u64).read_until(b'\n', &mut line) {
            Ok(count) if count > 0 => {}
            _ => return,
        }
        // What makes no sense to us is not for us.
        let Ok(line) = serde_json::from_slice::<Line>(&line) else { continue };
        if let Some(event) = &line.event {
            note(event, &line.data, &mut seen.lock().unwrap_or_else(PoisonError::into_inner));
            continue;
        }
        let answer = match (line.error, line.result.or(line.greeting)) {
            (Some(refusal), _) => Err(refusal.desc),
            (None, Some(value)) => Ok(value),
            (None, None) => continue,
        };
        if answers.send(answer).is_err() {
            return;
        }
    }
}

fn note(event: &str, data: &Value, seen: &mut Seen) {
    if event == "SHUTDOWN" {
        seen.shutdown = data["reason"].as_str().map(str::to_owned);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A QEMU that answers these lines, one to each line it gets; the first is its greeting.
    fn connect(lines: &[&'static str]) -> Result<Qmp> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let lines = lines.to_vec();
        thread::spawn(move || {
            let mut commands = BufReader::new(theirs.try_clone().unwrap()).lines();
            for line in lines {
                (&theirs).write_all(line.as_bytes()).unwrap();
                (&theirs).write_all(b"\n").unwrap();
                if !line.contains("event") && commands.next().is_none() {
                    return;
                }
            }
        });
        Qmp::connect(ours, PATIENCE).map(|(qmp, _)| qmp)
    }

    const GREETING: &str = r#"{"QMP": {"version": {}, "capabilities": ["oob"]}}"#;
    const OK: &str = r#"{"return": {}}"#;

    #[test]
    fn an_event_is_not_taken_for_an_answer() {
        let stopped = r#"{"timestamp": {}, "event": "STOP"}"#;
        let reason = r#"{"event": "SHUTDOWN", "data": {"guest": true, "reason": "guest-reset"}}"#;
        let answer = r#"{"return": {"status": "paused"}}"#;
        let qmp = connect(&[GREETING, OK, stopped, reason, answer]).unwrap();
        assert_eq!(qmp.execute("query-status").unwrap()["status"], "paused");
        assert_eq!(qmp.watch().seen().shutdown.as_deref(), Some("guest-reset"));
    }

    #[test]
    fn a_refusal_says_what_qemu_said() {
        let refusal = r#"{"error": {"class": "GenericError", "desc": "not now"}}"#;
        let qmp = connect(&[GREETING, OK, refusal]).unwrap();
        let error = qmp.execute("cont").unwrap_err().to_string();
        assert_eq!(error, "QEMU refused `cont`: not now");
    }

    #[test]
    fn a_qemu_that_has_gone_is_noticed() {
        let qmp = connect(&[GREETING, OK]).unwrap();
        let error = qmp.execute("stop").unwrap_err();
        assert!(matches!(error, VmError::Silent(_)), "{error}");
    }
}
