//! A client, and a handler that knows a few commands of its own.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    missing_debug_implementations
)]

use std::io::{BufRead, BufReader, PipeReader, PipeWriter, Write};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use codeagent_common::{
    ByteString, ErrorCode, Protection, SafeguardKind, StepId, StepInfo, StepKind, Timestamp,
};
use codeagent_stdio::operations::*;
use codeagent_stdio::{
    Call, Event, Events, Failure, Handler, Limits, Outcome, OutputStream, SafeguardTriggered,
    StepCompleted, StepSummary, TerminalOutput, serve_with,
};
use serde_json::{Value, json};

pub const PATIENCE: Duration = Duration::from_secs(60);
pub const ROOT: &str = "/home/me/project";

/// The session of the tests. It has no files; its commands are `echo TEXT`, `flood BYTES`, `wait`
/// (until it is cancelled), `ask` (until the safeguard is confirmed) and `panic`.
#[derive(Debug, Default)]
pub struct Toy {
    events: Mutex<Option<Events>>,
    confirmed: Mutex<Option<std::sync::mpsc::Sender<SafeguardConfirm>>>,
    pub calls: Mutex<Vec<String>>,
}

impl Toy {
    /// Something that no request caused.
    pub fn emit(&self, event: &Event) {
        self.events.lock().unwrap().as_ref().unwrap().emit(event);
    }

    fn note(&self, call: impl std::fmt::Debug) {
        self.calls.lock().unwrap().push(format!("{call:?}"));
    }

    fn ask(&self, call: &Call) -> Outcome<Executed> {
        let (sender, answers) = channel();
        *self.confirmed.lock().unwrap() = Some(sender);
        call.events.emit(&Event::SafeguardTriggered(SafeguardTriggered {
            safeguard_id: "sg_001".into(),
            kind: SafeguardKind::DeleteCount,
            step_id: StepId(12),
            directory: "project".into(),
            delete_count: Some(87),
            size_bytes: None,
            sample_paths: vec![],
            message: "step 12 is about to delete 87 files".into(),
            timeout_seconds: 30,
        }));
        match answers.recv_timeout(PATIENCE) {
            Ok(_) => Ok(executed(0)),
            Err(_) => Err(Failure::new(ErrorCode::SafeguardDenied, "nobody answered")),
        }
    }
}

pub fn output(call: &Call, text: &str) -> Event {
    Event::TerminalOutput(TerminalOutput {
        request_id: Some(call.request_id.clone()),
        stream: OutputStream::Stdout,
        data: ByteString::from(text),
    })
}

fn executed(exit_code: i32) -> Executed {
    Executed {
        exit_code: Some(exit_code),
        signal: None,
        timed_out: false,
        cancelled: false,
        duration_ms: 0,
        steps: vec![],
        hint: None,
        not_undoable: None,
        refused_paths: vec![],
        changed_meanwhile: vec![],
        denied: vec![],
    }
}

pub fn step(command: &str) -> StepSummary {
    let info = StepInfo {
        id: StepId(7),
        sequence: 7,
        kind: StepKind::Command,
        command: command.into(),
        started_at: Timestamp(1000),
        finished_at: Timestamp(2000),
        exit_code: Some(0),
        added: 1,
        modified: 0,
        deleted: 0,
        renamed: 0,
        stored_bytes: 0,
        held_bytes: 0,
        protection: Protection::Protected,
        pinned: false,
        flagged: vec![],
    };
    StepSummary::new("project", info, vec![codeagent_common::RelPathBuf::new("a.txt").unwrap()])
}

fn status(state: SessionState) -> SessionStatus {
    SessionStatus {
        state,
        isolation: Some(Isolation::Namespace),
        view: Some(View::Transactional),
        network_policy: Some(NetworkPolicy::Disabled),
        vm_mode: None,
        warnings: vec![],
        directories: vec![],
        commands: vec![],
        safeguards: vec![],
        mcp_socket: None,
    }
}

impl Handler for Toy {
    fn connected(&self, events: &Events) {
        *self.events.lock().unwrap() = Some(events.clone());
    }
}

impl SessionOperations for Toy {
    fn start(&self, request: SessionStart, _: &Call) -> Outcome<SessionStatus> {
        self.note(request);
        Ok(status(SessionState::Running))
    }
    fn stop(&self, request: SessionStop, _: &Call) -> Outcome<()> {
        self.note(request);
        Ok(())
    }
    fn reset(&self, request: SessionReset, _: &Call) -> Outcome<SessionStatus> {
        self.note(request);
        Ok(status(SessionState::Running))
    }
    fn status(&self, request: SessionStatusQuery, _: &Call) -> Outcome<SessionStatus> {
        self.note(request);
        Ok(status(SessionState::Idle))
    }
}

impl UndoOperations for Toy {
    fn rollback(&self, request: UndoRollback, _: &Call) -> Outcome<RollbackReport> {
        self.note(&request);
        if !request.force {
            let message = "a.txt was changed by somebody else";
            return Err(Failure::new(ErrorCode::RollbackBlocked, message)
                .hinted("force it, or skip conflicts")
                .with_data(&json!({ "conflicts": [{ "path": "a.txt" }] })));
        }
        Ok(RollbackReport {
            step_ids: vec![StepId(7)],
            paths_restored: 1,
            paths_removed: 0,
            conflicts: vec![],
            left: vec![],
            crossed_barriers: vec![],
            kept: None,
            warning: Some("edits of others were overwritten".into()),
        })
    }
    fn redo(&self, request: UndoRedo, _: &Call) -> Outcome<RollbackReport> {
        self.note(request);
        Err(Failure::new(ErrorCode::NothingToRedo, "nothing was undone"))
    }
    fn preview(&self, request: UndoPreview, _: &Call) -> Outcome<UndoPreviewed> {
        self.note(request);
        Ok(UndoPreviewed {
            step_ids: vec![StepId(7)],
            changes: vec![],
            change_count: 0,
            conflicts: vec![],
        })
    }
    fn restore(&self, request: UndoRestore, _: &Call) -> Outcome<RestoreReport> {
        self.note(request);
        Ok(RestoreReport { step: Some(step("restore")), restored: vec![], removed: vec![] })
    }
    fn history(&self, request: UndoHistory, _: &Call) -> Outcome<UndoHistoryReply> {
        self.note(request);
        let barrier = codeagent_common::BarrierInfo {
            id: codeagent_common::BarrierId(3),
            after_step: StepId(7),
            after_sequence: 7,
            at: Timestamp(3000),
            paths: vec![codeagent_common::RelPathBuf::new("a.txt").unwrap()],
        };
        let entries = vec![
            codeagent_stdio::HistoryEntry::Barrier(barrier.into()),
            codeagent_stdio::HistoryEntry::Step(Box::new(step("npm install"))),
        ];
        Ok(UndoHistoryReply { entries, entry_count: 2, redoable: vec![] })
    }
    fn diff(&self, request: UndoDiff, _: &Call) -> Outcome<StepDiff> {
        self.note(&request);
        Ok(StepDiff { step_id: request.step_id, files: vec![], file_count: 0 })
    }
    fn pin(&self, request: UndoPin, _: &Call) -> Outcome<()> {
        self.note(request);
        Ok(())
    }
    fn configure(&self, request: UndoConfigure, _: &Call) -> Outcome<UndoLimits> {
        self.note(&request);
        Ok(UndoLimits { max_step_count: request.max_step_count, ..UndoLimits::default() })
    }
    fn discard(&self, request: UndoDiscard, _: &Call) -> Outcome<()> {
        self.note(request);
        Ok(())
    }
}

impl StepOperations for Toy {
    fn begin(&self, request: StepBegin, _: &Call) -> Outcome<StepBegun> {
        self.note(request);
        Ok(StepBegun { step_id: StepId(8) })
    }
    fn commit(&self, request: StepCommit, _: &Call) -> Outcome<StepCommitted> {
        self.note(request);
        Ok(StepCommitted { step: Some(step("refactoring")) })
    }
    fn rollback(&self, request: StepRollback, _: &Call) -> Outcome<StepBegun> {
        self.note(request);
        Ok(StepBegun { step_id: StepId(8) })
    }
}

impl AgentOperations for Toy {
    fn execute(&self, request: AgentExecute, call: &Call) -> Outcome<Executed> {
        self.note(&request);
        match request.command.split_once(' ').unwrap_or((&request.command, "")) {
            ("echo", text) => {
                call.events.emit(&output(call, text));
                let step = step(&request.command);
                let request_id = Some(call.request_id.clone());
                call.events
                    .emit(&Event::StepCompleted(StepCompleted { request_id, step: step.clone() }));
                Ok(Executed { steps: vec![step], ..executed(0) })
            }
            ("flood", bytes) => {
                let chunk = "x".repeat(4096);
                for _ in 0..bytes.parse::<usize>().unwrap() / chunk.len() {
                    call.events.emit(&output(call, &chunk));
                }
                self.note("flooded");
                Ok(executed(0))
            }
            ("wait", _) => {
                assert!(call.cancel.wait(PATIENCE), "nobody cancelled it");
                Ok(Executed { exit_code: None, cancelled: true, ..executed(0) })
            }
            ("ask", _) => self.ask(call),
            ("panic", _) => panic!("as ordered"),
            _ => Ok(executed(127)),
        }
    }
    fn prompt(&self, request: AgentPrompt, _: &Call) -> Outcome<Prompted> {
        self.note(request);
        Err(Failure::new(ErrorCode::NotConfigured, "no agent is configured")
            .hinted("set agent.command in codeagent.toml"))
    }
}

impl FsOperations for Toy {
    fn list(&self, request: FsList, _: &Call) -> Outcome<Listing> {
        self.note(request.path.within(ROOT.as_bytes())?);
        Ok(Listing { entries: vec![], entry_count: 0 })
    }
    fn read(&self, request: FsRead, _: &Call) -> Outcome<FileContent> {
        self.note(request.path.within(ROOT.as_bytes())?);
        let content = ByteString::from("x".repeat(request.limit_bytes as usize));
        Ok(FileContent { size_bytes: content.len() as u64, content, at_end: true })
    }
    fn status(&self, request: FsStatusQuery, _: &Call) -> Outcome<FsStatus> {
        self.note(request);
        Ok(FsStatus { backend: "overlay".into(), warnings: vec![] })
    }
}

impl SafeguardOperations for Toy {
    fn configure(&self, request: SafeguardConfigure, _: &Call) -> Outcome<SafeguardSettings> {
        self.note(&request);
        Ok(request.0)
    }
    fn confirm(&self, request: SafeguardConfirm, _: &Call) -> Outcome<()> {
        self.note(&request);
        match self.confirmed.lock().unwrap().take() {
            Some(sender) => {
                sender.send(request).unwrap();
                Ok(())
            }
            None => Err(Failure::new(ErrorCode::SafeguardUnknown, "nothing waits for that")),
        }
    }
}

/// A client on pipes. What the server writes is read by a thread, unless it is told not to.
pub struct Client {
    pub toy: Arc<Toy>,
    to_server: Option<PipeWriter>,
    from_server: Option<Receiver<Value>>,
    unread: Option<PipeReader>,
    server: Option<JoinHandle<()>>,
    /// Everything that was said, for transcripts.
    pub transcript: Vec<String>,
    /// Messages that somebody waited past.
    passed: Vec<Value>,
}

impl Client {
    pub fn start() -> Self {
        Self::start_with(Limits::default())
    }

    pub fn start_with(limits: Limits) -> Self {
        let mut client = Self::start_unread(limits);
        client.read();
        client
    }

    /// One that does not read until [`Self::read`].
    pub fn start_unread(limits: Limits) -> Self {
        let (server_reads, to_server) = std::io::pipe().unwrap();
        let (unread, server_writes) = std::io::pipe().unwrap();
        let toy = Arc::new(Toy::default());
        let handler: Arc<dyn Handler> = Arc::clone(&toy) as _;
        let server = std::thread::spawn(move || {
            serve_with(server_reads, server_writes, handler, limits).unwrap();
        });
        Self {
            toy,
            to_server: Some(to_server),
            from_server: None,
            unread: Some(unread),
            server: Some(server),
            transcript: vec![],
            passed: vec![],
        }
    }

    pub fn read(&mut self) {
        let (sender, receiver) = channel();
        let unread = self.unread.take().unwrap();
        std::thread::spawn(move || {
            for line in BufReader::new(unread).lines() {
                let value = serde_json::from_str(&line.unwrap()).unwrap();
                if sender.send(value).is_err() {
                    return;
                }
            }
        });
        self.from_server = Some(receiver);
    }

    /// The client's end of what the server writes is gone.
    pub fn stop_listening(&mut self) {
        self.unread = None;
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) {
        self.to_server.as_mut().unwrap().write_all(bytes).unwrap();
    }

    pub fn send(&mut self, message: &Value) {
        self.transcript.push(format!("→ {message}"));
        self.send_bytes(format!("{message}\n").as_bytes());
    }

    pub fn request(&mut self, name: &str, id: &str, payload: Value) {
        self.send(&json!({ "type": name, "request_id": id, "payload": payload }));
    }

    pub fn receive(&mut self) -> Value {
        if !self.passed.is_empty() {
            return self.passed.remove(0);
        }
        let receiver = self.from_server.as_ref().unwrap();
        let message = receiver.recv_timeout(PATIENCE).expect("nothing came");
        self.transcript.push(format!("← {message}"));
        message
    }

    /// Every message up to the end of the stream.
    pub fn receive_all(&mut self) -> Vec<Value> {
        let mut all = std::mem::take(&mut self.passed);
        all.extend(self.from_server.as_ref().unwrap().iter());
        all
    }

    /// The response to that request; other messages wait.
    pub fn response(&mut self, id: &str) -> Value {
        self.wait_for(|message| message["type"] == "response" && message["request_id"] == id)
    }

    pub fn wait_for(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.passed.iter().position(&wanted) {
            return self.passed.remove(at);
        }
        let earlier = std::mem::take(&mut self.passed);
        let mut passed = earlier;
        loop {
            let message = self.receive();
            if wanted(&message) {
                self.passed = passed;
                return message;
            }
            passed.push(message);
        }
    }

    /// Asks and waits for the answer.
    pub fn ask(&mut self, name: &str, id: &str, payload: Value) -> Value {
        self.request(name, id, payload);
        self.response(id)
    }

    /// No more requests. The server ends when all have their answer.
    pub fn hang_up(&mut self) {
        self.to_server = None;
    }

    pub fn join(&mut self) {
        self.server.take().unwrap().join().unwrap();
    }
}
