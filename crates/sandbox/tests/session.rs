//! The session as servers use it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use codeagent_common::{ErrorCode, SafeguardDecision};
use codeagent_control::{Cause, Order};
use codeagent_interceptor::{ClosedStep, OnConflict};
use codeagent_namespace::View;
use codeagent_sandbox::SandboxError;
use codeagent_sandbox::classify::Class;
use codeagent_sandbox::executor::{Isolation, IsolationChoice};
use codeagent_sandbox::session::{
    Access, Asker, CommandReport, CommandRequest, Event, FileChange, FolderOptions, Question,
    Session, SessionOptions, State, ViewSetting,
};
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use codeagent_worker::{Settings, WorkerProcess, WorkerSpec};
use common::{PROGRAM, can_use_fuse, eventually, processes_that_name};

struct Office {
    session: Arc<Session>,
    events: Receiver<Event>,
    _state: tempfile::TempDir,
    workspace: TempWorkspace,
}

fn options(workspace: &TempWorkspace) -> SessionOptions {
    let mut folder = FolderOptions::new(workspace.working());
    folder.undo_dir = Some(workspace.undo().into());
    folder.label = Some("work".into());
    let mut options = SessionOptions::new(vec![folder]);
    options.program = Some(PROGRAM.into());
    options.isolation = IsolationChoice::Namespace;
    options.persistent = false;
    options
}

impl Office {
    fn new() -> Self {
        Self::with(TempWorkspace::with_fixture(fill), |_| {})
    }

    fn with(workspace: TempWorkspace, change: impl FnOnce(&mut SessionOptions)) -> Self {
        let mut options = options(&workspace);
        let state = tempfile::tempdir().unwrap();
        options.state_dir = Some(state.path().join("state"));
        change(&mut options);
        let session = Session::new(options).unwrap();
        let (sender, events) = channel();
        session.listen(move |event| drop(sender.send(event.clone())));
        session.start().unwrap();
        Self { session, events, _state: state, workspace }
    }

    fn run(&self, script: &str) -> CommandReport {
        self.session.exec(&CommandRequest::shell(script), |_, _| {}).unwrap()
    }

    fn event(&self, what: &str, is_it: impl Fn(&Event) -> bool) -> Event {
        loop {
            match self.events.recv_timeout(Duration::from_secs(20)) {
                Ok(event) if is_it(&event) => return event,
                Ok(_) => {}
                Err(_) => panic!("{what}: no such event"),
            }
        }
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        let _ = self.session.stop(); // some tests have done so already
    }
}

fn fill(root: &Path) {
    fs::write(root.join("a"), "a").unwrap();
    fs::create_dir(root.join("d")).unwrap();
    for nth in 0..20 {
        fs::write(root.join(format!("d/{nth}")), "x").unwrap();
    }
}

#[test]
fn a_session_starts_stops_and_says_how_it_is() {
    let office = Office::new();
    let started = office.event("started", |event| matches!(event, Event::Started { .. }));
    assert!(matches!(started, Event::Started { isolation: Isolation::Namespace, .. }));
    let status = office.session.status().unwrap();
    assert_eq!(status.state, State::Idle);
    assert_eq!(status.directories[0].label, "work");
    assert!(matches!(office.session.start(), Err(SandboxError::AlreadyRunning)));
    office.session.stop().unwrap();
    assert_eq!(office.session.status().unwrap().state, State::Stopped);
    assert!(matches!(
        office.session.undo(None, 1, OnConflict::Refuse),
        Err(SandboxError::NotRunning)
    ));
    office.session.start().unwrap();
    office.run("rm -rf d");
    office.session.undo(Some("work"), 1, OnConflict::Refuse).unwrap();
    let unknown = office.session.undo(Some("elsewhere"), 1, OnConflict::Refuse);
    assert!(matches!(unknown, Err(SandboxError::UnknownDirectory(_))));
}

#[test]
fn file_tools_are_steps_and_never_leave_the_folder() {
    let office = Office::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("victim"), "untouched").unwrap();
    std::os::unix::fs::symlink(outside.path(), office.workspace.path("out")).unwrap();
    let linked = office.workspace.snapshot();
    let write = |path: &str| FileChange::Write { path: path.into(), content: b"new".to_vec() };
    let closed = office
        .session
        .change_files("write_file new/deep/x", &[write("new/deep/x"), write("a")])
        .unwrap();
    assert!(matches!(closed, ClosedStep::Recorded { .. }));
    let rename = FileChange::Rename { from: "a".into(), to: "b".into() };
    office.session.change_files("rename", &[rename]).unwrap();
    let remove = FileChange::Remove { path: "d".into(), recursive: true };
    office.session.change_files("delete d", &[remove]).unwrap();
    assert!(!office.workspace.path("d").exists() && office.workspace.path("b").exists());
    for path in ["../victim", "/etc/passwd", "d/../../x"] {
        let outcome = office.session.change_files("evil", &[write(path)]);
        assert!(matches!(outcome, Err(SandboxError::OutsidePath(_))), "{path}");
    }
    for change in [
        write("out/victim"),
        FileChange::Remove { path: "out/victim".into(), recursive: true },
        FileChange::Rename { from: "b".into(), to: "out/victim".into() },
    ] {
        assert!(office.session.change_files("evil", &[change]).is_err());
    }
    assert_eq!(fs::read_to_string(outside.path().join("victim")).unwrap(), "untouched");
    office.session.undo(None, 3, OnConflict::Refuse).unwrap();
    assert_tree_eq(&linked, &office.workspace.snapshot());
}

#[test]
fn a_failed_change_leaves_nothing() {
    let office = Office::new();
    let before = office.workspace.snapshot();
    let write = FileChange::Write { path: "x".into(), content: vec![] };
    let impossible = FileChange::Rename { from: "missing".into(), to: "y".into() };
    assert!(office.session.change_files("both", &[write, impossible]).is_err());
    assert_tree_eq(&before, &office.workspace.snapshot());
    let protected = FileChange::Write { path: ".envrc".into(), content: b"evil".to_vec() };
    assert!(office.session.change_files("evil", &[protected]).is_err());
    assert_tree_eq(&before, &office.workspace.snapshot());
    assert!(office.session.history(None).unwrap().is_empty());
}

#[test]
fn a_transaction_is_one_step_or_none() {
    let office = Office::new();
    let before = office.workspace.snapshot();
    office.session.begin("both").unwrap();
    office.run("echo one > one");
    office.run("rm -rf d");
    let write = FileChange::Write { path: "two".into(), content: b"2".to_vec() };
    office.session.change_files("write two", &[write]).unwrap();
    assert!(office.session.status().unwrap().in_transaction);
    office.session.commit().unwrap();
    assert_eq!(office.session.history(None).unwrap().len(), 1);
    office.session.undo(None, 1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &office.workspace.snapshot());
    office.session.begin("none").unwrap();
    office.run("rm -rf d; echo x > a");
    office.session.rollback().unwrap();
    assert_tree_eq(&before, &office.workspace.snapshot());
    // What is open when the session ends is taken back.
    office.session.begin("left open").unwrap();
    office.run("rm -rf d");
    office.session.stop().unwrap();
    assert_tree_eq(&before, &office.workspace.snapshot());
}

/// Somebody else has ended it in the first folder.
#[test]
fn a_transaction_ends_in_all_folders_whatever_became_of_it_in_one() {
    let other = TempWorkspace::with_fixture(fill);
    let office = Office::with(TempWorkspace::with_fixture(fill), |options| {
        let mut folder = FolderOptions::new(other.working());
        folder.undo_dir = Some(other.undo().into());
        folder.label = Some("other".into());
        options.folders.push(folder);
    });
    let end_in_first = || {
        let worker = codeagent_worker::Client::connect(office.workspace.undo()).unwrap();
        worker.call::<ClosedStep>(codeagent_worker::Request::CommitTransaction).unwrap();
    };
    let script = format!("rm -rf d; cd '{}'; rm -rf d", other.working().display());
    let before = other.snapshot();
    office.session.begin("taken back").unwrap();
    office.run(&script);
    end_in_first();
    assert!(matches!(office.session.rollback().unwrap()[..], [None, Some(_)]));
    assert_tree_eq(&before, &other.snapshot());
    assert!(!office.session.status().unwrap().in_transaction);

    office.session.begin("kept").unwrap();
    office.run(&script);
    end_in_first();
    assert!(matches!(office.session.commit().unwrap()[..], [None, Some(_)]));
    assert!(!other.path("d").exists());
    assert!(!office.session.status().unwrap().in_transaction);
    for nothing in [office.session.commit().map(drop), office.session.rollback().map(drop)] {
        assert_eq!(nothing.unwrap_err().code(), ErrorCode::NoStepOpen);
    }
}

#[test]
fn a_cancelled_command_takes_its_tree_with_it_and_is_a_step() {
    let office = Office::new();
    let script = "echo x > x; setsid sleep 4323.25 & sleep 4323.25";
    let running = office.session.spawn(CommandRequest::shell(script), |_, _| {}).unwrap();
    eventually("it runs", || processes_that_name("4323.25").len() >= 2);
    assert_eq!(office.session.running(), [running.id]);
    office.session.cancel(running.id).unwrap();
    let report = running.wait().unwrap();
    assert_eq!(report.cause, Cause::Cancelled);
    assert!(processes_that_name("4323.25").is_empty());
    assert!(office.workspace.path("x").exists() && report.directories[0].step.is_some());
    assert!(matches!(office.session.cancel(99), Err(SandboxError::UnknownCommand(99))));
}

#[test]
fn background_commands_work_beside_others() {
    if !can_use_fuse() {
        return skip("background_commands_work_beside_others", "/dev/fuse cannot be used");
    }
    let office = Office::new();
    let before = office.workspace.snapshot();
    let mut request = CommandRequest::shell("echo up > up; sleep 4324.25");
    request.background = true;
    let running = office.session.spawn(request, |_, _| {}).unwrap();
    let is_up = || fs::read(office.workspace.path("up")).is_ok_and(|up| up == b"up\n");
    eventually("its change is seen", is_up);
    let report = office.run("cat up; echo beside > beside");
    assert_eq!(report.exit_code, 0);
    assert!(office.workspace.path("beside").exists());
    office.session.cancel(running.id).unwrap();
    running.wait().unwrap();
    let steps = office.session.history(None).unwrap().len();
    assert_eq!(steps, 2);
    office.session.undo(None, steps, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &office.workspace.snapshot());
}

#[test]
fn any_number_of_background_commands_run_at_once() {
    if !can_use_fuse() {
        return skip("any_number_of_background_commands_run_at_once", "/dev/fuse cannot be used");
    }
    let office = Office::new();
    let before = office.workspace.snapshot();
    let begin = |name: &str| {
        let script = format!("mkdir {name}; cd {name}; echo up > up; cat; echo down > down");
        let mut request = CommandRequest::shell(script);
        (request.background, request.takes_input) = (true, true);
        office.session.spawn(request, |_, _| {}).unwrap()
    };
    let running = ["one", "two", "three"].map(begin);
    for name in ["one", "two", "three"] {
        let up = format!("{name}/up");
        eventually("its change is seen", || office.workspace.path(&up).exists());
    }
    // They work on in directories that others have renamed meanwhile, in every way there is.
    let rename = |from: &str, to: &str| FileChange::Rename { from: from.into(), to: to.into() };
    office.session.change_files("rename", &[rename("one", "uno")]).unwrap();
    let mut live = CommandRequest::shell("mv two due && cat uno/up");
    live.view = Some(ViewSetting::Live);
    let report = office.session.exec(&live, |_, _| {}).unwrap();
    assert_eq!((report.exit_code, report.view), (0, Some(View::Live)));
    for command in running {
        command.order(Order::Input { data: vec![], eof: true });
        assert_eq!(command.wait().unwrap().exit_code, 0);
    }
    for name in ["uno", "due", "three"] {
        assert!(office.workspace.path(name).join("down").exists(), "{name}");
    }
    let steps = office.session.history(None).unwrap().len();
    office.session.undo(None, steps, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &office.workspace.snapshot());
}

/// Two sessions share a folder, and each asks about its own commands.
#[test]
fn the_question_of_a_command_is_put_to_whoever_runs_it() {
    struct Answers(SafeguardDecision, AtomicU32);
    impl Asker for Answers {
        fn ask(&self, _: &Question) -> Option<SafeguardDecision> {
            self.1.fetch_add(1, Ordering::SeqCst);
            Some(self.0)
        }
    }
    let careful = |options: &mut SessionOptions| {
        options.share = true;
        options.safeguards.delete_threshold = Some(1);
    };
    let office = Office::with(TempWorkspace::with_fixture(fill), careful);
    let mut options = options(&office.workspace);
    careful(&mut options);
    let state = tempfile::tempdir().unwrap();
    options.state_dir = Some(state.path().join("state"));
    let other = Session::new(options).unwrap();
    other.start().unwrap();
    let no = Arc::new(Answers(SafeguardDecision::Deny, AtomicU32::new(0)));
    let yes = Arc::new(Answers(SafeguardDecision::Allow, AtomicU32::new(0)));
    office.session.set_asker(Arc::clone(&no) as _);
    other.set_asker(Arc::clone(&yes) as _);
    other.exec(&CommandRequest::shell("rm a"), |_, _| {}).unwrap();
    assert!(!office.workspace.path("a").exists());
    let asked = |asker: &Answers| asker.1.load(Ordering::SeqCst);
    assert_eq!((asked(&no), asked(&yes)), (0, 1));
    other.undo(None, 1, OnConflict::Refuse).unwrap();
    office.session.exec(&CommandRequest::shell("rm a"), |_, _| {}).unwrap_err();
    assert!(office.workspace.path("a").exists());
    assert_eq!((asked(&no), asked(&yes)), (1, 1));
    other.stop().unwrap();
}

#[test]
fn an_interrupted_step_is_taken_back_and_told_at_the_start() {
    if !can_use_fuse() {
        return skip(
            "an_interrupted_step_is_taken_back_and_told_at_the_start",
            "/dev/fuse cannot be used",
        );
    }
    let workspace = TempWorkspace::with_fixture(fill);
    let before = workspace.snapshot();
    {
        use codeagent_interceptor::{EngineConfig, StepRequest, UndoEngine};
        use codeagent_test_support::Applier;
        let engine =
            UndoEngine::open(EngineConfig::new(workspace.working(), workspace.undo())).unwrap();
        engine.open_step(StepRequest::command("never ends")).unwrap();
        Applier::new(&engine, workspace.working()).unlink("a").unwrap();
    }
    let office = Office::with(workspace, |_| {});
    let recovery = office.event("recovery", |event| matches!(event, Event::Recovery { .. }));
    assert!(matches!(recovery, Event::Recovery { directory, .. } if directory == "work"));
    assert_tree_eq(&before, &office.workspace.snapshot());
}

#[test]
fn other_peoples_edits_are_told_and_our_own_are_not() {
    let office = Office::new();
    office.run("echo ours > a");
    fs::write(office.workspace.path("a"), "theirs").unwrap();
    let is_edit = |event: &Event| matches!(event, Event::ExternalModification { .. });
    let edit = office.event("an edit", is_edit);
    let Event::ExternalModification { paths, .. } = edit else { panic!("{edit:?}") };
    assert_eq!(paths.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a"]);
    let refused = office.session.undo(None, 1, OnConflict::Refuse).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::RollbackBlocked);
    office.session.undo(None, 1, OnConflict::Force).unwrap();
    assert_eq!(fs::read_to_string(office.workspace.path("a")).unwrap(), "a");
}

struct Answers(SafeguardDecision);

impl Asker for Answers {
    fn ask(&self, question: &Question) -> Option<SafeguardDecision> {
        assert_eq!(question.directory, "work");
        Some(self.0)
    }
}

#[test]
fn safeguards_ask_whoever_is_there() {
    let office = Office::with(TempWorkspace::with_fixture(fill), |options| {
        options.safeguards.delete_threshold = Some(5);
    });
    let before = office.workspace.snapshot();
    office.session.set_asker(Arc::new(Answers(SafeguardDecision::Deny)));
    let denied = office.session.exec(&CommandRequest::shell("rm -rf d"), |_, _| {});
    assert!(matches!(denied, Err(SandboxError::Denied { .. })), "{denied:?}");
    assert_tree_eq(&before, &office.workspace.snapshot());
    office.event("asked", |event| matches!(event, Event::SafeguardTriggered { .. }));
    office.session.set_asker(Arc::new(Answers(SafeguardDecision::Allow)));
    office.run("rm -rf d");
    assert!(!office.workspace.path("d").exists());
}

/// Says yes when it is told to.
struct AnswersLater(Mutex<Receiver<()>>);

impl Asker for AnswersLater {
    fn ask(&self, _: &Question) -> Option<SafeguardDecision> {
        let told = self.0.lock().unwrap().recv_timeout(Duration::from_secs(20));
        Some(if told.is_ok() { SafeguardDecision::Allow } else { SafeguardDecision::Deny })
    }
}

/// SG-07
#[test]
fn what_waits_behind_a_question_is_bounded() {
    if !can_use_fuse() {
        return skip("what_waits_behind_a_question_is_bounded", "/dev/fuse cannot be used");
    }
    let office = Office::with(TempWorkspace::with_fixture(fill), |options| {
        options.view = ViewSetting::Live;
        options.safeguards.delete_threshold = Some(1);
        options.safeguards.max_held_operations = 0;
    });
    let (answer, awaited) = channel();
    office.session.set_asker(Arc::new(AnswersLater(Mutex::new(awaited))));
    // In another directory: in its own, the kernel already holds up everybody.
    let script = "cd d; rm ../a & until [ -e asked ]; do sleep 0.05; done; touch new; wait";
    let running = office.session.spawn(CommandRequest::shell(script), move |_, said| {
        if String::from_utf8_lossy(said).contains("No space left on device") {
            answer.send(()).unwrap();
        }
    });
    office.event("asked", |event| matches!(event, Event::SafeguardTriggered { .. }));
    fs::write(office.workspace.path("d/asked"), "").unwrap();
    running.unwrap().wait().unwrap();
    assert!(!office.workspace.path("d/new").exists() && !office.workspace.path("a").exists());
}

#[test]
fn a_worker_that_dies_is_replaced() {
    let office = Office::new();
    office.run("echo one > one");
    let undo = office.workspace.undo();
    let pid = codeagent_worker::Client::connect(undo).unwrap().hello().unwrap().pid;
    common::sh(&format!("kill -9 {pid}"), office.workspace.working());
    office.event("lost", |event| matches!(event, Event::WorkerLost { .. }));
    office.run("echo two > two");
    assert_eq!(office.session.history(None).unwrap().len(), 2);
}

/// A mount protects no paths, and commands are not to get round the rules by its worker.
#[test]
fn a_folder_is_shared_only_with_whoever_protects_paths_in_it() {
    let workspace = TempWorkspace::with_fixture(fill);
    let settings = Settings::new(workspace.working(), workspace.undo());
    let spec = WorkerSpec { program: PROGRAM.into(), ..WorkerSpec::new(settings).unwrap() };
    let worker = WorkerProcess::start(&spec, |_| {}).unwrap().unwrap();
    let mut options = options(&workspace);
    options.share = true;
    let session = Session::new(options).unwrap();

    let refused = session.start().unwrap_err();

    assert!(refused.to_string().contains("protects no paths"), "{refused}");
    worker.end(Duration::from_secs(20)).unwrap();
    session.start().unwrap();
    session.stop().unwrap();
}

#[test]
fn read_only_folders_are_refused_by_everything() {
    let office = Office::with(TempWorkspace::with_fixture(fill), |options| {
        options.folders[0].access = Access::ReadOnly;
    });
    let before = office.workspace.snapshot();
    assert_ne!(office.run("echo x > a").exit_code, 0);
    let write = FileChange::Write { path: "a".into(), content: vec![] };
    let refused = office.session.change_files("write", &[write]).unwrap_err();
    assert_eq!(refused.code(), ErrorCode::ReadOnly);
    // And by the engine itself.
    let client = codeagent_worker::Client::connect(office.workspace.undo()).unwrap();
    let change = codeagent_worker::FileChange::MakeDir {
        path: codeagent_common::RelPathBuf::new(&b"new"[..]).unwrap(),
    };
    assert!(client.change(change).is_err());
    assert_tree_eq(&before, &office.workspace.snapshot());
}

#[test]
fn a_reset_forgets_what_commands_left_and_not_what_they_did() {
    let office =
        Office::with(TempWorkspace::with_fixture(fill), |options| options.persistent = true);
    office.run("echo kept > /tmp/note; echo x > x");
    assert_eq!(office.run("cat /tmp/note").exit_code, 0);
    office.session.reset().unwrap();
    assert_ne!(office.run("cat /tmp/note").exit_code, 0);
    assert!(office.workspace.path("x").exists());
    assert_eq!(office.session.history(None).unwrap().len(), 1);
}

#[test]
fn the_difference_of_a_step_can_be_asked_for() {
    let office = Office::new();
    let report = office.run("echo new > a; rm d/3");
    let diffs = office.session.diff(None, report.directories[0].step.unwrap()).unwrap();
    let texts = serde_json::to_string(&diffs).unwrap();
    assert!(texts.contains("-a") && texts.contains("+new") && texts.contains("d/3"), "{texts}");
}

#[test]
fn a_line_that_nobody_means_well_with_is_refused_if_that_is_wanted() {
    let office = Office::new();
    let mut request = CommandRequest::shell("echo x > x; :(){ :|:& };:");
    request.is_checked = true;
    let refused = office.session.exec(&request, |_, _| {});
    assert!(matches!(refused, Err(SandboxError::Refused { .. })), "{refused:?}");
    assert!(!office.workspace.path("x").exists() && office.session.running().is_empty());
    let started = office.event("started", |event| matches!(event, Event::CommandStarted { .. }));
    assert!(matches!(started, Event::CommandStarted { class: Class::Write, .. }), "{started:?}");
}

#[test]
fn a_session_that_stops_ends_its_commands_and_keeps_what_they_did() {
    if !can_use_fuse() {
        let test = "a_session_that_stops_ends_its_commands_and_keeps_what_they_did";
        return skip(test, "/dev/fuse cannot be used");
    }
    let office = Office::new();
    let mut request = CommandRequest::shell("echo up > up; sleep 4325.25");
    request.background = true;
    let background = office.session.spawn(request, |_, _| {}).unwrap();
    eventually("its change is seen", || office.workspace.path("up").exists());
    let script = "echo x > x; echo says; sleep 4325.25";
    let (says, heard) = channel();
    let said = move |_, _: &[u8]| {
        let _ = says.send(()); // only the first time does somebody wait
    };
    let other = office.session.spawn(CommandRequest::shell(script), said).unwrap();
    heard.recv_timeout(Duration::from_secs(20)).unwrap();
    office.session.stop().unwrap();
    assert!(processes_that_name("4325.25").is_empty());
    assert_eq!(background.wait().unwrap().cause, Cause::Cancelled);
    assert_eq!(other.wait().unwrap().cause, Cause::Cancelled);
    office.session.start().unwrap();
    assert!(office.workspace.path("up").exists() && office.workspace.path("x").exists());
    assert_eq!(office.session.history(None).unwrap().len(), 2);
}

fn output(office: &Office, script: &str) -> (i32, String) {
    let mut printed = Vec::new();
    let request = CommandRequest::shell(script);
    let report = office.session.exec(&request, |_, data| printed.extend_from_slice(data)).unwrap();
    (report.exit_code, String::from_utf8_lossy(&printed).trim().to_owned())
}

/// A command that does nothing but start more must not take the machine along.
#[test]
fn commands_have_no_more_processes_than_a_machine_bears() {
    let office = Office::new();
    let limit = match rustix::process::geteuid().is_root() {
        true => "cat /proc/sys/kernel/pid_max",
        false => "awk '/Max processes/ {print $3}' /proc/self/limits",
    };
    assert_eq!(output(&office, limit), (0, "4096".to_owned()));
}

#[test]
fn user_namespaces_can_be_allowed() {
    let script = "command -v unshare >/dev/null || exit 9; unshare --user true 2>/dev/null";
    let (refused, _) = output(&Office::new(), script);
    assert_eq!(refused, 1);
    let workspace = TempWorkspace::with_fixture(fill);
    let office = Office::with(workspace, |options| options.nested_namespaces = true);
    assert_eq!(output(&office, script), (0, String::new()));
    // They mount nothing all the same.
    let mounting = "unshare --user --map-root-user --mount true 2>/dev/null";
    assert_ne!(output(&office, mounting).0, 0);
}
