//! A worker process, and everybody who talks to it.
#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use codeagent_common::{ErrorCode, RelPathBuf, SafeguardConfig, SafeguardDecision};
use codeagent_interceptor::{
    ClosedStep, EngineConfig, EngineEvent, OnConflict, SOCKET, StepRequest, UndoEngine, UndoError,
};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use codeagent_worker::{
    Client, Event, FileChange, Request, Settings, Unreachable, WorkerError, WorkerProcess,
    WorkerSpec,
};

fn workspace() -> TempWorkspace {
    TempWorkspace::with_fixture(|root| {
        fs::create_dir_all(root.join("dir/deep")).unwrap();
        for name in ["one", "dir/two", "dir/deep/three"] {
            fs::write(root.join(name), name).unwrap();
        }
        std::os::unix::fs::symlink("/etc", root.join("away")).unwrap();
    })
}

fn start_with(
    workspace: &TempWorkspace,
    change: impl FnOnce(&mut Settings),
) -> (WorkerProcess, Receiver<Event>) {
    let mut settings = Settings::new(workspace.working(), workspace.undo());
    change(&mut settings);
    let mut spec = WorkerSpec::new(settings).unwrap();
    spec.program = PathBuf::from(env!("CARGO_BIN_EXE_worker-probe"));
    let (sender, events) = channel();
    let worker = WorkerProcess::start(&spec, move |event| {
        let _ = sender.send(event); // the test has ended
    });
    (worker.unwrap().unwrap(), events)
}

fn start(workspace: &TempWorkspace) -> WorkerProcess {
    start_with(workspace, |_| {}).0
}

fn path(text: &[u8]) -> RelPathBuf {
    RelPathBuf::new(text.to_vec()).unwrap()
}

fn write(name: &str, content: &str) -> FileChange {
    FileChange::Write { path: path(name.as_bytes()), content: content.as_bytes().to_vec().into() }
}

fn code(error: WorkerError) -> ErrorCode {
    match error {
        WorkerError::Failed(failure) => failure.code,
        other => panic!("{other}"),
    }
}

#[test]
fn a_worker_reaches_nothing_but_its_two_directories() {
    let workspace = workspace();
    let worker = start(&workspace);
    let confinement = worker.ready().confinement;
    assert!(confinement.is_complete(), "{confinement:?}");
    let outside = tempfile::NamedTempFile::new().unwrap();
    let before = outside.as_file().metadata().unwrap();
    let new = outside.path().with_extension("new");
    let options = format!("{}\n{}\n{}", outside.path().display(), "one", new.display());
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    worker.client().attach(OwnedFd::from(theirs), None, options.into_bytes()).unwrap();
    let mut report = String::new();
    ours.read_to_string(&mut report).unwrap();
    let mut lines = report.lines();
    assert_eq!(lines.next(), Some("read inside: done"));
    let mut refused = 0;
    for line in lines {
        // An ordinary user may do that with what is his, and the worker can name it.
        if !line.ends_with("outside: done") || confinement.enclosed {
            assert!(line.ends_with(": PermissionDenied") || line.ends_with(": NotFound"), "{line}");
        }
        refused += 1;
    }
    assert_eq!(refused, 37);
    let after = outside.as_file().metadata().unwrap();
    if confinement.enclosed {
        assert_eq!((after.mode(), after.uid()), (before.mode(), before.uid()));
    }
    assert!(!new.exists());

    let status = fs::read_to_string(format!("/proc/{}/status", worker.id())).unwrap();
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().to_owned()
    };
    assert_eq!(field("NoNewPrivs:"), "1");
    assert_eq!(field("Seccomp:"), "2");
    let capabilities = u64::from_str_radix(&field("CapEff:"), 16).unwrap();
    let sys_admin = 1 << 21;
    let sys_ptrace = 1 << 19;
    assert_eq!(capabilities & (sys_admin | sys_ptrace), 0);
    assert_eq!(field("CapPrm:"), field("CapEff:"));
    worker.end(Duration::ZERO).unwrap();
}

#[test]
fn changes_of_file_tools_are_steps_like_any_other() {
    let workspace = workspace();
    let worker = start(&workspace);
    let client = worker.client();
    let before = workspace.snapshot();
    client.open_step(StepRequest::api("tools")).unwrap();
    let strange = b"not \xff text";
    for change in [
        write("one", "rewritten, and longer than it was"),
        write("new", ""),
        FileChange::Append { path: path(b"dir/two"), content: b" more".to_vec().into() },
        FileChange::MakeDir { path: path(b"made/of/many") },
        FileChange::MakeDir { path: path(b"made/of") },
        FileChange::Write { path: path(strange), content: vec![0; 3 << 20].into() },
        FileChange::SetMode { path: path(b"new"), mode: 0o600 },
        FileChange::Rename { from: path(b"new"), to: path(b"made/of/new") },
        FileChange::Remove { path: path(b"dir/deep"), recursive: true },
    ] {
        client.change(change).unwrap();
    }
    assert_eq!(fs::read_to_string(workspace.path("dir/two")).unwrap(), "dir/two more");
    assert!(!workspace.path("dir/deep").exists());
    let ClosedStep::Recorded { step, .. } = client.close_step(None).unwrap() else { panic!() };
    let changes = client.changes(step.id).unwrap();
    assert!(changes.iter().any(|change| change.path.as_path().as_bytes() == strange));
    let after = workspace.snapshot();
    client.undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
    client.redo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&after, &workspace.snapshot());
    // Names that are not text arrive as they are.
    client.restore(step.id, vec![path(strange)]).unwrap();
    assert_eq!(client.history().unwrap().len(), 2);
    worker.end(Duration::ZERO).unwrap();
}

#[test]
fn file_tools_follow_no_symlink_and_leave_no_trace_of_what_is_refused() {
    let workspace = workspace();
    let worker = start(&workspace);
    let client = worker.client();
    let before = workspace.snapshot();
    for refused in [
        write("away/passwd", "x"),
        write("away", "x"),
        FileChange::MakeDir { path: path(b"away/dir") },
        FileChange::MakeDir { path: path(b"one/dir") },
        FileChange::Remove { path: path(b"away/passwd"), recursive: true },
        FileChange::Remove { path: path(b"dir"), recursive: false },
        FileChange::Remove { path: path(b""), recursive: true },
        FileChange::Rename { from: path(b"missing"), to: path(b"x") },
        FileChange::SetMode { path: path(b"missing"), mode: 0o777 },
    ] {
        client.change(refused.clone()).expect_err(&format!("{refused:?}"));
    }
    assert_tree_eq(&before, &workspace.snapshot());
    worker.end(Duration::ZERO).unwrap();
}

#[test]
fn a_deep_tree_is_removed_in_one_call() {
    let workspace = workspace();
    let worker = start(&workspace);
    let depth = 100;
    let deep: PathBuf = std::iter::repeat_n("d", depth).collect();
    fs::create_dir_all(workspace.path("dir").join(deep)).unwrap();
    let before = workspace.snapshot();
    worker.client().change(FileChange::Remove { path: path(b"dir"), recursive: true }).unwrap();
    assert!(!workspace.path("dir").exists());
    worker.client().end_ambient_step().unwrap();
    worker.client().undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
    worker.end(Duration::ZERO).unwrap();
}

#[test]
fn a_safeguards_question_is_answered_over_the_connection_that_waits() {
    let workspace = workspace();
    let (worker, events) = start_with(&workspace, |settings| {
        settings.safeguards = SafeguardConfig { delete_threshold: Some(1), ..Default::default() };
    });
    let client = worker.client();
    client.subscribe().unwrap();
    let before = workspace.snapshot();
    client.open_step(StepRequest::command("rm")).unwrap();
    std::thread::scope(|scope| {
        let remove = scope
            .spawn(|| client.change(FileChange::Remove { path: path(b"dir"), recursive: true }));
        let Event::Engine(EngineEvent::SafeguardTriggered(request)) = events.recv().unwrap() else {
            panic!("another event");
        };
        // Questions about the past are answered meanwhile.
        assert_eq!(client.history().unwrap().len(), 0);
        let decision = SafeguardDecision::Deny;
        client.call::<()>(Request::Answer { question: request.id, decision }).unwrap();
        remove.join().unwrap().unwrap_err();
    });
    assert!(matches!(client.close_step(None).unwrap(), ClosedStep::Denied { .. }));
    assert_tree_eq(&before, &workspace.snapshot());
    worker.end(Duration::ZERO).unwrap();
}

#[test]
fn an_ending_worker_finishes_its_calls_and_refuses_others() {
    let workspace = workspace();
    let (worker, events) = start_with(&workspace, |settings| {
        settings.safeguards = SafeguardConfig { delete_threshold: Some(1), ..Default::default() };
    });
    let client = worker.client();
    client.subscribe().unwrap();
    client.open_step(StepRequest::command("rm")).unwrap();
    std::thread::scope(|scope| {
        let remove = scope
            .spawn(|| client.change(FileChange::Remove { path: path(b"dir"), recursive: true }));
        let Event::Engine(EngineEvent::SafeguardTriggered(request)) = events.recv().unwrap() else {
            panic!("another event");
        };
        client.shut_down(Duration::ZERO).unwrap();
        let refused = loop {
            match client.history() {
                Ok(_) => {} // it has not got round to it
                Err(refused) => break refused,
            }
        };
        assert_eq!(code(refused), ErrorCode::WorkerEnding);
        let decision = SafeguardDecision::Allow;
        client.call::<()>(Request::Answer { question: request.id, decision }).unwrap();
        remove.join().unwrap().unwrap();
    });
    assert!(!workspace.path("dir").exists());
    worker.end(Duration::ZERO).unwrap();
    assert_eq!(start(&workspace).client().history().unwrap().len(), 1);
}

/// Whatever the moment: what was done is said, and what is refused is not done.
#[test]
fn an_undo_that_was_done_is_never_a_lost_reply() {
    for round in 0..20 {
        let workspace = workspace();
        let worker = start(&workspace);
        let before = workspace.snapshot();
        worker.client().open_step(StepRequest::command("x")).unwrap();
        for name in 0..50 {
            worker.client().change(write(&format!("new{name}"), "x")).unwrap();
        }
        worker.client().close_step(Some(0)).unwrap();
        let after = workspace.snapshot();
        let client = Client::connect(workspace.undo()).unwrap();
        client.hello().unwrap();
        let undone = std::thread::scope(|scope| {
            let undo = scope.spawn(|| client.undo(1, OnConflict::Refuse));
            std::thread::sleep(Duration::from_micros(200 * round));
            worker.end(Duration::ZERO).unwrap();
            undo.join().unwrap()
        });
        let expected = if undone.is_ok() { before } else { after };
        assert_tree_eq(&expected, &workspace.snapshot());
    }
}

#[test]
fn another_process_talks_to_the_worker_through_the_undo_directory() {
    let workspace = workspace();
    assert!(matches!(Client::connect(workspace.undo()), Err(Unreachable::Nobody)));
    let worker = start(&workspace);
    assert_eq!(worker.ready().unreachable, None);
    let client = Client::connect(workspace.undo()).unwrap();
    let state = client.hello().unwrap();
    assert_eq!(state.pid, worker.id());
    assert_eq!(state.working_dir, workspace.working().canonicalize().unwrap());
    client.open_step(StepRequest::command("x")).unwrap();
    client.change(write("one", "x")).unwrap();
    client.close_step(Some(0)).unwrap();
    assert_eq!(client.history().unwrap(), worker.client().history().unwrap());

    let engine = UndoEngine::open(EngineConfig::new(workspace.working(), workspace.undo()));
    assert!(matches!(engine, Err(UndoError::Locked { .. })), "one process writes the log");
    // What only its owner may ask for.
    let refused = client.shut_down(Duration::ZERO).unwrap_err();
    assert_eq!(code(refused), ErrorCode::BadRequest);
    let refused = client.call::<()>(Request::Hello { version: 99 }).unwrap_err();
    assert_eq!(code(refused), ErrorCode::WorkerVersion);
    worker.end(Duration::ZERO).unwrap();
    assert!(matches!(client.status(), Err(WorkerError::Gone)));
    assert!(matches!(Client::connect(workspace.undo()), Err(Unreachable::Nobody)));
    assert!(!workspace.undo().join(SOCKET).exists());
}

#[test]
fn an_undo_directory_with_a_long_path_can_be_reached() {
    let workspace = workspace();
    let mut undo = workspace.undo().to_path_buf();
    fs::create_dir(&undo).unwrap();
    for _ in 0..5 {
        undo = undo.join("a-directory-with-a-rather-long-name-to-be-sure");
        fs::create_dir(&undo).unwrap();
    }
    let (worker, _events) = start_with(&workspace, |settings| settings.undo_dir = undo.clone());
    assert_eq!(worker.ready().unreachable, None);
    Client::connect(&undo).unwrap().hello().unwrap();
    worker.end(Duration::ZERO).unwrap();
}

#[test]
fn nonsense_on_the_socket_ends_that_connection_and_nothing_else() {
    let workspace = workspace();
    let worker = start(&workspace);
    for nonsense in [&b"hello\n"[..], &[0; 64], &[0xff; 64], b"\x05\0\0\0\x93\x01\x02\x03\x04"] {
        let mut socket = UnixStream::connect(workspace.undo().join(SOCKET)).unwrap();
        socket.write_all(nonsense).unwrap();
        socket.shutdown(std::net::Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer); // it may be cut off while we still write
        assert!(answer.is_empty());
    }
    // Somebody who asks and never reads.
    let _deaf: Vec<UnixStream> =
        (0..20).map(|_| UnixStream::connect(workspace.undo().join(SOCKET)).unwrap()).collect();
    worker.client().hello().unwrap();
    worker.end(Duration::ZERO).unwrap();
}

/// Each would take what the other one undoes for somebody's edits.
#[test]
fn a_second_history_of_a_folder_is_refused_until_the_first_one_has_ended() {
    let workspace = workspace();
    let other_undo = tempfile::tempdir_in(workspace.undo().parent().unwrap()).unwrap();
    let elsewhere = |read_only| {
        let mut settings = Settings::new(workspace.working(), other_undo.path().join("undo"));
        settings.read_only = read_only;
        let mut spec = WorkerSpec::new(settings).unwrap();
        spec.program = PathBuf::from(env!("CARGO_BIN_EXE_worker-probe"));
        WorkerProcess::start(&spec, |_| {}).unwrap()
    };
    let first = start(&workspace);
    let refused = elsewhere(false).unwrap_err();
    assert_eq!(refused.code, ErrorCode::FolderInUse);
    assert!(refused.to_string().contains(&format!("process {}", first.id())), "{refused}");
    elsewhere(true).unwrap().end(Duration::ZERO).unwrap();
    let killed = rustix::process::Pid::from_raw(i32::try_from(first.id()).unwrap()).unwrap();
    rustix::process::kill_process(killed, rustix::process::Signal::KILL).unwrap();
    let second = elsewhere(false).unwrap();
    second.client().change(write("one", "changed")).unwrap();
    assert_eq!(fs::read(workspace.path("one")).unwrap(), b"changed");
}

#[test]
fn a_worker_that_cannot_start_says_why() {
    let workspace = workspace();
    let _engine =
        UndoEngine::open(EngineConfig::new(workspace.working(), workspace.undo())).unwrap();
    let settings = Settings::new(workspace.working(), workspace.undo());
    let mut spec = WorkerSpec::new(settings).unwrap();
    spec.program = PathBuf::from(env!("CARGO_BIN_EXE_worker-probe"));
    let failure = WorkerProcess::start(&spec, |_| {}).unwrap().unwrap_err();
    assert_eq!(failure.code, ErrorCode::UndoLocked);
    assert!(failure.hint.is_some());
    spec.program = PathBuf::from("/bin/true");
    WorkerProcess::start(&spec, |_| {}).unwrap_err();
}

/// Before, whoever had asked waited for ever.
#[test]
fn a_mistake_of_the_worker_is_an_error_and_not_silence() {
    let workspace = workspace();
    let worker = start(&workspace);
    let (_ours, theirs) = UnixStream::pair().unwrap();
    let failed =
        worker.client().attach(OwnedFd::from(theirs), None, b"panic".to_vec()).unwrap_err();
    assert_eq!(code(failed), ErrorCode::Io);
    worker.client().status().unwrap();
    worker.end(Duration::ZERO).unwrap();
}

#[test]
fn a_worker_that_syncs_can_make_its_undo_directory() {
    let workspace = workspace();
    let (worker, _events) = start_with(&workspace, |settings| settings.durable = true);
    worker.client().open_step(StepRequest::command("x")).unwrap();
    worker.client().change(write("one", "x")).unwrap();
    worker.client().close_step(Some(0)).unwrap();
    worker.client().undo(1, OnConflict::Refuse).unwrap();
    worker.end(Duration::ZERO).unwrap();
}

#[test]
fn the_death_of_a_worker_is_noticed_and_the_next_one_recovers() {
    let workspace = workspace();
    let before = workspace.snapshot();
    let (mut worker, events) = start_with(&workspace, |_| {});
    worker.client().open_step(StepRequest::command("x")).unwrap();
    worker.client().change(write("one", "unfinished")).unwrap();
    let pid = rustix::process::Pid::from_raw(worker.id().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    assert_eq!(events.recv().unwrap(), Event::Gone);
    assert!(!worker.wait().unwrap().success());
    assert!(matches!(worker.client().status(), Err(WorkerError::Gone)));
    let next = start(&workspace);
    assert!(next.ready().recovery.as_ref().is_some_and(|recovery| recovery.rolled_back));
    assert_tree_eq(&before, &workspace.snapshot());
    next.end(Duration::ZERO).unwrap();
}

#[test]
fn a_worker_without_its_owner_and_without_a_front_end_ends() {
    let workspace = workspace();
    let mut worker = start(&workspace);
    worker.client().change(write("one", "ambient")).unwrap();
    worker.client().hang_up();
    assert!(worker.wait().unwrap().success());
    let config = EngineConfig::new(workspace.working(), workspace.undo());
    let engine = UndoEngine::open(config).unwrap();
    assert!(engine.recovery().is_none());
    assert_eq!(engine.steps().len(), 1);
}

#[test]
fn a_worker_that_ends_ends_the_step_that_is_open() {
    let workspace = workspace();
    let worker = start(&workspace);
    worker.client().open_step(StepRequest::command("a long one")).unwrap();
    worker.client().change(write("one", "hours of work")).unwrap();
    worker.end(Duration::ZERO).unwrap();

    let next = start(&workspace);
    assert_eq!(next.ready().recovery, None);
    assert_eq!(fs::read_to_string(workspace.path("one")).unwrap(), "hours of work");
    assert_eq!(next.client().history().unwrap().len(), 1);
    next.client().undo(1, OnConflict::Refuse).unwrap();
    assert_eq!(fs::read_to_string(workspace.path("one")).unwrap(), "one");
    next.end(Duration::ZERO).unwrap();
}

/// As when a session ends, and everybody gets it.
#[test]
fn a_signal_does_not_interrupt_a_step() {
    use rustix::process::{Pid, Signal, kill_process};
    let workspace = workspace();
    let worker = start(&workspace);
    worker.client().open_step(StepRequest::command("a step")).unwrap();
    worker.client().change(write("one", "saved")).unwrap();
    let pid = Pid::from_raw(i32::try_from(worker.id()).unwrap()).unwrap();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        kill_process(pid, signal).unwrap();
    }
    std::thread::sleep(Duration::from_millis(100));
    worker.client().status().unwrap();
    worker.end(Duration::ZERO).unwrap();
    assert_eq!(start(&workspace).ready().recovery, None);
    assert_eq!(fs::read_to_string(workspace.path("one")).unwrap(), "saved");
}

#[test]
fn a_worker_without_descriptors_is_reached_again_later() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let workspace = workspace();
    let worker = start(&workspace);
    worker.client().status().unwrap();
    let pid = Pid::from_raw(i32::try_from(worker.id()).unwrap());
    let had = getrlimit(Resource::Nofile).maximum;
    let none = Rlimit { current: Some(4), maximum: had };
    prlimit(pid, Resource::Nofile, none).unwrap();
    let refused = Client::connect(workspace.undo()).unwrap();
    std::thread::sleep(Duration::from_millis(200));
    prlimit(pid, Resource::Nofile, Rlimit { current: had, maximum: had }).unwrap();
    drop(refused);
    let client = Client::connect(workspace.undo()).unwrap();
    client.hello().unwrap();
    worker.end(Duration::ZERO).unwrap();
}

/// Of what the owner has begun nobody else knows when it is complete.
#[test]
fn a_step_whose_owner_dies_is_taken_back_and_one_of_a_neighbour_is_ended() {
    let workspace = workspace();
    let before = workspace.snapshot();
    for is_owners in [true, false] {
        let mut worker = start(&workspace);
        let neighbour = Client::connect(workspace.undo()).unwrap();
        let who = if is_owners { worker.client() } else { &neighbour };
        who.open_step(StepRequest::command("work")).unwrap();
        who.change(write("one", "changed")).unwrap();
        worker.client().hang_up();
        assert!(worker.wait().unwrap().success());
        let now = fs::read_to_string(workspace.path("one")).unwrap();
        assert_eq!(now, if is_owners { "one" } else { "changed" });
        let steps = start(&workspace).client().status().unwrap().steps;
        assert_eq!(steps, usize::from(!is_owners));
    }
    start(&workspace).client().undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
}

/// The owner's own step had been ended by then.
#[test]
fn what_follows_the_owners_last_step_is_not_taken_back_with_it() {
    for ends_its_own in [true, false] {
        let workspace = workspace();
        let mut worker = start(&workspace);
        let neighbour = Client::connect(workspace.undo()).unwrap();
        worker.client().open_step(StepRequest::command("the owner's")).unwrap();
        worker.client().change(write("one", "by the owner")).unwrap();
        let who = if ends_its_own { worker.client() } else { &neighbour };
        who.close_step(Some(0)).unwrap();
        neighbour.open_step(StepRequest::command("the neighbour's")).unwrap();
        neighbour.change(write("two", "by the neighbour")).unwrap();
        worker.client().hang_up();
        assert!(worker.wait().unwrap().success());
        assert_eq!(fs::read_to_string(workspace.path("one")).unwrap(), "by the owner");
        assert_eq!(fs::read_to_string(workspace.path("two")).unwrap(), "by the neighbour");
        assert_eq!(start(&workspace).client().status().unwrap().steps, 2);
    }
}
