//! Commands beside others in the background, where nobody can tell whose doing a change is: nothing
//! of theirs is taken back because of another command.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use codeagent_common::{SafeguardDecision, SafeguardKind};
use codeagent_interceptor::OnConflict;
use codeagent_sandbox::SandboxError;
use codeagent_sandbox::executor::IsolationChoice;
use codeagent_sandbox::session::{
    AnsweredElsewhere, Asker, CommandReport, CommandRequest, DenyAll, Event, FolderOptions,
    Question, Running, Session, SessionOptions, ViewSetting,
};
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::client::{Client, frontend};
use common::{PROGRAM, Person, can_use_fuse, eventually};
use serde_json::json;

use SafeguardDecision::{Allow, Deny};

fn fill(root: &Path) {
    fs::write(root.join("a"), "a").unwrap();
    fs::create_dir(root.join("d")).unwrap();
    for nth in 0..20 {
        fs::write(root.join(format!("d/{nth}")), "x").unwrap();
    }
}

/// A session whose commands work in the live view, and ask before the fifth deletion.
struct Office {
    session: Arc<Session>,
    _state: tempfile::TempDir,
}

impl Office {
    fn new(workspaces: &[&TempWorkspace]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let folder = |workspace: &&TempWorkspace| {
            let mut folder = FolderOptions::new(workspace.working());
            folder.undo_dir = Some(workspace.undo().into());
            folder.label = Some(workspace.working().display().to_string());
            folder
        };
        let mut options = SessionOptions::new(workspaces.iter().map(folder).collect());
        options.program = Some(PROGRAM.into());
        options.isolation = IsolationChoice::Namespace;
        options.view = ViewSetting::Live;
        options.persistent = false;
        options.share = true;
        options.watch.enabled = false;
        options.safeguards.delete_threshold = Some(5);
        options.safeguards.timeout = Duration::from_secs(60);
        options.state_dir = Some(state.path().join("state"));
        let session = Session::new(options).unwrap();
        session.start().unwrap();
        Self { session, _state: state }
    }

    fn answers(&self, decision: SafeguardDecision) -> Arc<Answers> {
        let answers = Arc::new(Answers(decision, AtomicU32::new(0), Mutex::default()));
        self.session.set_asker(Arc::clone(&answers) as _);
        answers
    }

    /// Comes back with the question, as soon as there is one.
    fn is_asked(&self, asker: impl Asker + 'static) -> Arc<OnceLock<Question>> {
        let asked = Arc::default();
        self.session.set_asker(Arc::new(Witness(asker, Arc::clone(&asked))));
        asked
    }

    fn background(&self, script: &str) -> Running {
        let mut request = CommandRequest::shell(script);
        request.background = true;
        self.session.spawn(request, |_, _| {}).unwrap()
    }

    fn exec(&self, script: &str) -> Result<CommandReport, SandboxError> {
        self.session.exec(&CommandRequest::shell(script), |_, _| {})
    }

    fn end(&self, running: Running) -> CommandReport {
        self.session.cancel(running.id).unwrap();
        running.wait().unwrap()
    }

    fn undo_everything(&self) {
        for folder in self.session.folders().unwrap() {
            let steps = self.session.history(Some(&folder.label)).unwrap().len();
            if steps > 0 {
                self.session.undo(Some(&folder.label), steps, OnConflict::Refuse).unwrap();
            }
        }
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        let _ = self.session.stop(); // some tests have done so already
    }
}

/// Remembers the question, once it has been put to another.
struct Witness<A>(A, Arc<OnceLock<Question>>);

impl<A: Asker> Asker for Witness<A> {
    fn ask(&self, question: &Question) -> Option<SafeguardDecision> {
        let decision = self.0.ask(question);
        self.1.set(question.clone()).unwrap();
        decision
    }
}

/// Counts, and remembers whose the questions may have been.
struct Answers(SafeguardDecision, AtomicU32, Mutex<Vec<Vec<u64>>>);

impl Asker for Answers {
    fn ask(&self, question: &Question) -> Option<SafeguardDecision> {
        self.1.fetch_add(1, Ordering::SeqCst);
        self.2.lock().unwrap().push(question.commands.clone());
        Some(self.0)
    }
}

fn has_written(workspace: &TempWorkspace) -> bool {
    fs::read(workspace.path("of-the-background")).is_ok_and(|content| content == b"kept\n")
}

/// Tells the other when to write, and waits until it has.
const MEET: &str = "touch go; until [ -e of-the-background ]; do sleep 0.02; done";
const WRITE_WHEN_TOLD: &str =
    "until [ -e go ]; do sleep 0.02; done; echo kept > of-the-background; sleep 4341.5";

#[test]
fn a_denial_takes_nothing_of_a_background_command_back() {
    if !can_use_fuse() {
        let test = "a_denial_takes_nothing_of_a_background_command_back";
        return skip(test, "/dev/fuse cannot be used");
    }
    let workspace = TempWorkspace::with_fixture(fill);
    let office = Office::new(&[&workspace]);
    let before = workspace.snapshot();
    let answers = office.answers(Deny);
    let running = office.background(WRITE_WHEN_TOLD);
    let report = office.exec(&format!("{MEET}; rm -rf d; echo over > over")).unwrap();
    assert_eq!(answers.1.load(Ordering::SeqCst), 1);
    assert_eq!(*answers.2.lock().unwrap(), [vec![running.id, report.command]]);
    let [directory] = &report.directories[..] else { panic!("{report:?}") };
    assert!(directory.step.is_some());
    let [refusal] = &directory.denied[..] else { panic!("{report:?}") };
    assert_eq!(refusal.kind, SafeguardKind::DeleteCount);
    assert!(refusal.count >= 16, "{refusal:?}");
    assert!(workspace.path("of-the-background").exists() && workspace.path("over").exists());
    assert_eq!(fs::read_dir(workspace.path("d")).unwrap().count(), 16);
    // It may have been its doing.
    let ended = office.end(running);
    assert_eq!(ended.directories[0].denied[0].safeguard, refusal.safeguard, "{ended:?}");
    office.undo_everything();
    assert_tree_eq(&before, &workspace.snapshot());

    // Beside nobody, as ever.
    let denied = office.exec("touch new; rm -rf d");
    assert!(matches!(denied, Err(SandboxError::Denied { .. })), "{denied:?}");
    assert_tree_eq(&before, &workspace.snapshot());
}

/// What it does is staged, and told from everything else.
#[test]
fn a_denied_command_in_the_transactional_view_is_taken_back_beside_others_too() {
    if !can_use_fuse() {
        let test = "a_denied_command_in_the_transactional_view_is_taken_back_beside_others_too";
        return skip(test, "/dev/fuse cannot be used");
    }
    let workspace = TempWorkspace::with_fixture(fill);
    let office = Office::new(&[&workspace]);
    office.answers(Deny);
    let running = office.background("echo kept > of-the-background; sleep 4342.5");
    eventually("it has written", || has_written(&workspace));
    let before = workspace.snapshot();
    let mut request = CommandRequest::shell("touch new; rm -rf d");
    request.view = Some(ViewSetting::Transactional);
    let denied = office.session.exec(&request, |_, _| {});
    assert!(matches!(denied, Err(SandboxError::Denied { .. })), "{denied:?}");
    assert_tree_eq(&before, &workspace.snapshot());
    office.end(running);
}

#[test]
fn a_command_that_cannot_begin_takes_nothing_of_a_background_command_along() {
    if !can_use_fuse() {
        let test = "a_command_that_cannot_begin_takes_nothing_of_a_background_command_along";
        return skip(test, "/dev/fuse cannot be used");
    }
    let workspace = TempWorkspace::with_fixture(fill);
    let office = Office::new(&[&workspace]);
    let before = workspace.snapshot();
    let count = "i=0; while :; do i=$((i+1)); echo $i > n$i; sleep 0.005; done";
    let running = office.background(count);
    eventually("it has begun", || workspace.path("n1").exists());
    let nothing = CommandRequest::argv(["/there/is/no/such/program"]);
    let failed = office.session.exec(&nothing, |_, _| {}).unwrap_err();
    let SandboxError::PartlyKept { kept, reason } = &failed else { panic!("{failed:?}") };
    assert_eq!(kept[0].folder, workspace.working());
    assert!(matches!(**reason, SandboxError::NotStarted(_)), "{reason:?}");
    let said = failed.to_string();
    assert!(said.contains(&workspace.working().display().to_string()), "{said}");
    assert!(!said.contains("nothing of it was kept"), "{said}");
    let steps = office.session.history(None).unwrap();
    let is_kept = |entry: &codeagent_interceptor::HistoryEntry| matches!(entry, codeagent_interceptor::HistoryEntry::Step(step) if step.id == kept[0].step);
    assert!(steps.iter().any(is_kept), "{steps:?}");
    office.end(running);
    // Not one is missing.
    let written = (1..).take_while(|n| workspace.path(format!("n{n}")).exists()).count();
    let all = fs::read_dir(workspace.working()).unwrap().flatten();
    let all = all.filter(|entry| entry.file_name().to_string_lossy().starts_with('n')).count();
    assert_eq!(written, all);
    office.undo_everything();
    assert_tree_eq(&before, &workspace.snapshot());
}

/// Another session has a command in the background, in one of two folders.
#[test]
fn of_several_folders_only_the_shared_one_keeps_what_a_denied_command_did() {
    if !can_use_fuse() {
        let test = "of_several_folders_only_the_shared_one_keeps_what_a_denied_command_did";
        return skip(test, "/dev/fuse cannot be used");
    }
    let [alone, shared] = [(); 2].map(|()| TempWorkspace::with_fixture(fill));
    // Whichever is closed first.
    for order in [[&alone, &shared], [&shared, &alone]] {
        let before = [alone.snapshot(), shared.snapshot()];
        let other = Office::new(&[&shared]);
        let office = Office::new(&order);
        office.answers(Deny);
        let running = other.background(WRITE_WHEN_TOLD);
        let [here, there] = [alone.working().display(), shared.working().display()];
        let script = format!("cd '{there}'; {MEET}; cd '{here}'; touch new; rm -rf d");
        let denied = office.exec(&script).unwrap_err();
        let SandboxError::PartlyKept { kept, reason } = &denied else { panic!("{denied:?}") };
        assert_eq!(kept.len(), 1, "{kept:?}");
        assert_eq!(kept[0].folder, shared.working());
        assert!(matches!(**reason, SandboxError::Denied { .. }), "{reason:?}");
        assert_tree_eq(&before[0], &alone.snapshot());
        assert!(shared.path("of-the-background").exists() && shared.path("go").exists());
        other.end(running);
        other.undo_everything();
        assert_tree_eq(&before[1], &shared.snapshot());
        drop(office);
        drop(other);
    }
}

/// Both may have raised it; the first answer counts, and the other learns of it.
#[test]
fn a_question_about_a_shared_step_is_put_to_everybody_it_may_be_of() {
    if !can_use_fuse() {
        let test = "a_question_about_a_shared_step_is_put_to_everybody_it_may_be_of";
        return skip(test, "/dev/fuse cannot be used");
    }
    let workspace = TempWorkspace::with_fixture(fill);
    let first = Office::new(&[&workspace]);
    let second = Office::new(&[&workspace]);
    let third = Office::new(&[&workspace]);
    let running = second.background("echo up > up; sleep 4343.5");
    eventually("it has begun", || workspace.path("up").exists());
    first.session.set_asker(Arc::new(AnsweredElsewhere));
    let yes = second.answers(Allow);
    let uninvolved = third.answers(Deny);
    let (told, answered) = std::sync::mpsc::channel();
    first.session.listen(move |event| {
        if let Event::SafeguardAnswered { decision, .. } = event {
            let _ = told.send(*decision); // the test has ended
        }
    });
    assert_eq!(first.exec("rm -rf d").unwrap().exit_code, 0);
    assert_eq!(answered.recv_timeout(Duration::from_secs(20)), Ok(Allow));
    assert_eq!(yes.1.load(Ordering::SeqCst), 1);
    assert_eq!(*yes.2.lock().unwrap(), [vec![running.id]]);

    // What is asked about a background command's own steps goes to whoever runs it.
    let removing = second.background("mkdir e; cp a e/1; rm -f a up e/1");
    removing.wait().unwrap();
    second.end(running);
    let more = second.background("sleep 0.01");
    more.wait().unwrap();
    assert_eq!(uninvolved.1.load(Ordering::SeqCst), 0);
}

/// A transaction takes everything along, because somebody says so; and redo brings it back.
#[test]
fn where_nobody_can_be_asked_nothing_is_denied_that_others_are_asked_about() {
    if !can_use_fuse() {
        let test = "where_nobody_can_be_asked_nothing_is_denied_that_others_are_asked_about";
        return skip(test, "/dev/fuse cannot be used");
    }
    let workspace = TempWorkspace::with_fixture(|root| {
        fill(root);
        fs::create_dir(root.join("e")).unwrap();
        (0..20).for_each(|nth| fs::write(root.join(format!("e/{nth}")), "x").unwrap());
    });
    let person = Office::new(&[&workspace]);
    let nobody = Office::new(&[&workspace]);
    let asked = [person.is_asked(AnsweredElsewhere), nobody.is_asked(DenyAll)];
    let running = nobody.background("echo up > up; sleep 4345.5");
    eventually("it has begun", || workspace.path("up").exists());
    let report = std::thread::scope(|scope| {
        let removing = scope.spawn(|| person.exec("rm -rf d"));
        eventually("both are asked", || asked.iter().all(|asked| asked.get().is_some()));
        let id = asked[0].get().unwrap().request.id;
        person.session.answer(None, id, Allow).unwrap();
        removing.join().unwrap().unwrap()
    });
    assert_eq!(report.directories[0].denied, []);
    assert!(!workspace.path("d").exists());
    nobody.end(running);

    // Alone, it is denied at once.
    nobody.session.set_asker(Arc::new(DenyAll));
    let denied = nobody.exec("rm -rf e");
    assert!(matches!(denied, Err(SandboxError::Denied { .. })), "{denied:?}");
}

/// The one that ends may have raised it, but so may the other, which waits for the answer.
#[test]
fn a_question_outlives_the_commands_of_one_process_while_it_may_be_of_another() {
    if !can_use_fuse() {
        let test = "a_question_outlives_the_commands_of_one_process_while_it_may_be_of_another";
        return skip(test, "/dev/fuse cannot be used");
    }
    let workspace = TempWorkspace::with_fixture(fill);
    let first = Office::new(&[&workspace]);
    let second = Office::new(&[&workspace]);
    let asked = [&first, &second].map(|office| office.is_asked(AnsweredElsewhere));
    let running = second.background("echo up > up; until [ -e over ]; do sleep 0.02; done");
    eventually("it has begun", || workspace.path("up").exists());
    let report = std::thread::scope(|scope| {
        let removing = scope.spawn(|| first.exec("rm -rf d"));
        eventually("both are asked", || asked.iter().all(|asked| asked.get().is_some()));
        fs::write(workspace.path("over"), "").unwrap();
        running.wait().unwrap();
        // Whoever wanted to deny it would have by now.
        (0..200).for_each(|_| drop(second.session.history(None).unwrap()));
        let id = asked[0].get().unwrap().request.id;
        first.session.answer(None, id, Allow).unwrap();
        removing.join().unwrap().unwrap()
    });
    assert_eq!(report.directories[0].denied, []);
    assert!(!workspace.path("d").exists());
}

#[test]
fn a_transaction_that_is_rolled_back_takes_background_changes_along_and_redo_brings_them_back() {
    if !can_use_fuse() {
        let test = "a_transaction_that_is_rolled_back_takes_background_changes_along_and_redo_brings_them_back";
        return skip(test, "/dev/fuse cannot be used");
    }
    let workspace = TempWorkspace::with_fixture(fill);
    let office = Office::new(&[&workspace]);
    let before = workspace.snapshot();
    office.session.begin("an attempt").unwrap();
    let running = office.background("echo kept > of-the-background; sleep 4344.5");
    eventually("it has written", || has_written(&workspace));
    office.exec("echo mine > mine").unwrap();
    let after = workspace.snapshot();
    office.session.rollback().unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
    office.session.redo(None, 1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&after, &workspace.snapshot());
    office.end(running);
}

/// Two programs in one folder: an agent has a command in the background, and another program's command
/// is denied. Whoever ran it learns what was refused, each in its way.
#[test]
fn frontends_agents_and_people_are_told_what_was_refused() {
    if !can_use_fuse() {
        let test = "frontends_agents_and_people_are_told_what_was_refused";
        return skip(test, "/dev/fuse cannot be used");
    }
    let person = Person::with("mkdir d; touch d/1 d/2 d/3 d/4");
    person.configure(
        "[sandbox]\nview = 'live'\n[safeguards]\ndelete_threshold = 2\ntimeout_seconds = 3\n",
    );
    let mut agent = Client::start(&mut person.sandbox(["--protocol", "mcp"]));
    agent.initialize(json!({}));
    let write = json!({"command": "echo up > up; sleep 4345.5", "run_in_background": true});
    agent.tool("Bash", write);
    eventually("it has begun", || person.path("up").exists());

    // Nobody can be asked, so it is denied.
    let (said, failed) = agent.tool("Bash", json!({"command": "rm -rf d; echo over > over"}));
    assert!(!failed && said.contains("Denied, and so refused"), "{said}");
    assert!(said.contains("  d/") && person.path("over").exists(), "{said}");
    assert_eq!(fs::read_dir(person.path("d")).unwrap().count(), 3);

    // Those who could be asked give no answer, here and below.
    let mut client = frontend(&person, &[], json!({"view": "live"}));
    let done = client.ask("agent.execute", json!({"command": "rm -rf d; echo again > over"}));
    let denied = &done["denied"][0];
    assert_eq!(denied["kind"], "delete_count", "{done}");
    assert!(denied["question"].as_str().unwrap().contains("about to delete"), "{done}");
    assert!(denied["count"].as_u64().unwrap() >= 1 && denied["paths"][0].is_string(), "{done}");
    assert!(done["steps"][0]["step_id"].is_number(), "{done}");
    client.hang_up();

    let output = person.output(&["run", "--view", "live", "--", "sh", "-c", "rm -rf d; touch new"]);
    let said = common::text(&output.stderr);
    assert!(said.contains("refused, of this command or one in the background"), "{said}");
    assert!(person.path("new").exists() && person.path("up").exists());

    let (said, _) = agent.tool("Bash", json!({"handle": "bash_1", "stop": true}));
    assert!(said.contains("Denied, and so refused"), "{said}");
    agent.hang_up();
}
