//! The monitor of QEMU: a handful of commands and the events that matter. The crate `qapi` has all
//! of them, made from QEMU's schema, and takes longer to build than everything here together.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use codeagent_common::CancelToken;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::error::{Result, VmError};

/// QEMU answers at once, or something is wrong with it. Much longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(10);
/// How soon a cancel is noticed.
const LOOK_EVERY: Duration = Duration::from_millis(20);
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
    /// The machine stands still, and nobody had asked for it: QEMU could not go on.
    pub(crate) stalled: bool,
    /// It was asked to stand still.
    pub(crate) pausing: bool,
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
    /// and has seen everything by then. A cancel ends the wait.
    pub(crate) fn connect(
        socket: UnixStream,
        patience: Duration,
        cancel: &CancelToken,
    ) -> Result<(Self, JoinHandle<()>)> {
        let (answer, answers) = mpsc::channel();
        let seen = Arc::<Mutex<Seen>>::default();
        let theirs = socket.try_clone().map_err(VmError::Silent)?;
        let listen = {
            let seen = seen.clone();
            move || listen(&theirs, &answer, &seen)
        };
        let thread = thread::Builder::new().name("qmp".into()).spawn(listen);
        let thread = thread.map_err(VmError::Silent)?;
        let qmp =
            Self { conversation: Mutex::new(Conversation { to_qemu: socket, answers }), seen };
        qmp.conversation().answer_unless("greeting", patience, cancel)?;
        let negotiate = "qmp_capabilities";
        qmp.conversation().tell(negotiate)?;
        qmp.conversation().answer_unless(negotiate, PATIENCE, cancel)?;
        Ok((qmp, thread))
    }

    /// A command without arguments.
    pub(crate) fn execute(&self, command: &str) -> Result<Value> {
        let mut conversation = self.conversation();
        conversation.tell(command)?;
        conversation.answer(command, PATIENCE)
    }

    /// No process of the guest runs from here on.
    pub(crate) fn pause(&self) -> Result<()> {
        self.note_pausing(true);
        let paused = self.execute("stop");
        if paused.is_err() {
            self.note_pausing(false);
        }
        paused.map(drop)
    }

    pub(crate) fn resume(&self) -> Result<()> {
        self.execute("cont")?;
        self.note_pausing(false);
        Ok(())
    }

    fn note_pausing(&self, pausing: bool) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).pausing = pausing;
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
    fn tell(&mut self, command: &str) -> Result<()> {
        let line = format!("{}\n", json!({ "execute": command }));
        self.to_qemu.write_all(line.as_bytes()).map_err(VmError::Silent)
    }

    /// Nobody goes on with a connection whose wait was cancelled.
    fn answer_unless(
        &mut self,
        command: &str,
        patience: Duration,
        cancel: &CancelToken,
    ) -> Result<Value> {
        let give_up_at = Instant::now() + patience;
        loop {
            if cancel.is_cancelled() {
                return Err(VmError::Cancelled);
            }
            let left = give_up_at.saturating_duration_since(Instant::now());
            if left <= LOOK_EVERY {
                return self.answer(command, left);
            }
            match self.answers.recv_timeout(LOOK_EVERY) {
                Ok(answer) => return understood(command, answer),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.answer(command, left),
            }
        }
    }

    fn answer(&mut self, command: &str, patience: Duration) -> Result<Value> {
        match self.answers.recv_timeout(patience) {
            Ok(answer) => understood(command, answer),
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

fn understood(command: &str, answer: Result<Value, String>) -> Result<Value> {
    answer.map_err(|reason| VmError::Refused { command: command.to_owned(), reason })
}

fn listen(qemu: &UnixStream, answers: &Sender<Result<Value, String>>, seen: &Mutex<Seen>) {
    let mut reader = BufReader::new(qemu);
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
            let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
            note(event, &line.data, &mut seen);
            if seen.stalled {
                // Whoever is in the machine would wait for ever.
                let quit = format!("{}\n", json!({ "execute": "quit" }));
                let mut qemu = qemu;
                let _ = qemu.write_all(quit.as_bytes()); // or it has ended already
            }
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
    match event {
        "SHUTDOWN" => seen.shutdown = data["reason"].as_str().map(str::to_owned),
        "STOP" => seen.stalled |= !seen.pausing && seen.shutdown.is_none(),
        _ => {}
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
        Qmp::connect(ours, PATIENCE, &CancelToken::new()).map(|(qmp, _)| qmp)
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
    fn a_cancel_ends_the_wait_for_a_greeting_or_an_answer() {
        for said in [&[][..], &[GREETING]] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            for line in said {
                writeln!(&theirs, "{line}").unwrap();
            }
            let cancel = CancelToken::new();
            let canceller = {
                let cancel = cancel.clone();
                thread::spawn(move || {
                    thread::sleep(Duration::from_millis(50));
                    cancel.cancel();
                    Instant::now()
                })
            };
            let error = Qmp::connect(ours, Duration::from_secs(60), &cancel).unwrap_err();
            let noticed = canceller.join().unwrap().elapsed();
            assert!(matches!(error, VmError::Cancelled), "{error}");
            assert!(noticed < Duration::from_secs(1), "{noticed:?}");
            drop(theirs);
        }
    }

    #[test]
    fn a_machine_that_stops_unasked_is_ended() {
        let stopped = r#"{"timestamp": {}, "event": "STOP"}"#;
        for is_asked in [true, false] {
            let (ours, theirs) = UnixStream::pair().unwrap();
            let mut commands = BufReader::new(theirs.try_clone().unwrap()).lines();
            let qemu = thread::spawn(move || {
                let mut said = Vec::new();
                writeln!(&theirs, "{GREETING}").unwrap();
                while let Some(Ok(command)) = commands.next() {
                    said.push(command.clone());
                    if command.contains("stop") {
                        writeln!(&theirs, "{stopped}").unwrap();
                    }
                    // Nobody waits for the answer to `quit`, and ours may be gone by then.
                    let _ = writeln!(&theirs, "{OK}");
                    if !is_asked && command.contains("qmp_capabilities") {
                        writeln!(&theirs, "{stopped}").unwrap();
                    }
                }
                said.join("")
            });
            let (qmp, listener) = Qmp::connect(ours, PATIENCE, &CancelToken::new()).unwrap();
            if is_asked {
                qmp.pause().unwrap();
                qmp.resume().unwrap();
            } else {
                let deadline = Instant::now() + PATIENCE;
                while !qmp.watch().seen().stalled {
                    assert!(Instant::now() < deadline, "it is not noticed");
                    thread::yield_now();
                }
                // What is written is written before this is.
                qmp.execute("query-status").unwrap();
            }
            assert_eq!(qmp.watch().seen().stalled, !is_asked);
            qmp.conversation().to_qemu.shutdown(std::net::Shutdown::Both).unwrap();
            listener.join().unwrap();
            assert_eq!(qemu.join().unwrap().contains("quit"), !is_asked);
        }
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
