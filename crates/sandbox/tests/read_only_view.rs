//! Commands that are known to only read, and those of whoever wants nothing to be changed.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

use codeagent_control::{Order, PtySize};
use codeagent_namespace::View;
use codeagent_sandbox::SandboxError;
use codeagent_sandbox::executor::IsolationChoice;
use codeagent_sandbox::session::{
    CommandReport, CommandRequest, FolderOptions, Session, SessionOptions, ViewSetting,
};
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::client::Client;
use common::{PROGRAM, Person, can_use_fuse, eventually, sh, text};
use serde_json::json;

const REPOSITORY: &str = "git init -q; git config user.name x; git config user.email x@example.org
    echo b > file; echo a >> file; git add .; git commit -qm first; echo c >> file; touch untracked";

/// Writes when git shows a difference, which nobody can know from the command line.
const WRITING_DIFF: &str = "printf '#!/bin/sh\\necho seen > seen || exit 1\\n' > .git/differ
    chmod +x .git/differ; git config diff.external .git/differ";

struct Office {
    session: Arc<Session>,
    workspace: TempWorkspace,
    _state: tempfile::TempDir,
}

impl Office {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut SessionOptions)) -> Self {
        let workspace = TempWorkspace::with_fixture(|dir| sh(REPOSITORY, dir));
        let mut folder = FolderOptions::new(workspace.working());
        folder.undo_dir = Some(workspace.undo().into());
        Self::of(workspace, vec![folder], change)
    }

    fn of(
        workspace: TempWorkspace,
        folders: Vec<FolderOptions>,
        change: impl FnOnce(&mut SessionOptions),
    ) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut options = SessionOptions::new(folders);
        options.program = Some(PROGRAM.into());
        options.isolation = IsolationChoice::Namespace;
        options.persistent = false;
        options.watch.enabled = false;
        options.state_dir = Some(state.path().join("state"));
        change(&mut options);
        let session = Session::new(options).unwrap();
        session.start().unwrap();
        Self { session, workspace, _state: state }
    }

    fn exec(&self, request: &CommandRequest) -> CommandReport {
        self.session.exec(request, |_, _| {}).unwrap()
    }

    fn run(&self, line: &str) -> CommandReport {
        self.exec(&CommandRequest::shell(line))
    }

    fn said(&self, line: &str) -> (CommandReport, String) {
        let mut said = Vec::new();
        let request = CommandRequest::shell(line);
        let report = self.session.exec(&request, |_, data| said.extend_from_slice(data)).unwrap();
        (report, text(&said))
    }

    fn steps(&self) -> usize {
        self.session.history(None).unwrap().len()
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        let _ = self.session.stop();
    }
}

#[test]
fn commands_that_only_read_run_in_the_read_only_view_and_make_no_step() {
    let office = Office::new();
    let before = office.workspace.snapshot();
    for line in ["git status", "git diff", "grep -r a .", "ls -la | wc -l", "cat file > /dev/null"]
    {
        let report = office.run(line);
        assert_eq!((report.exit_code, report.view), (0, Some(View::ReadOnly)), "{line}");
        assert!(report.directories.is_empty() && report.undoable, "{line}: {report:?}");
        assert_eq!((report.other_view, report.hint), (None, None), "{line}");
    }
    let report = office.exec(&CommandRequest::argv(["grep", "-r", "a > b", "."]));
    assert_eq!((report.exit_code, report.view, report.hint), (1, Some(View::ReadOnly), None));
    assert_eq!(office.steps(), 0);
    assert_tree_eq(&before, &office.workspace.snapshot());
}

#[test]
fn commands_that_write_or_may_write_have_steps() {
    let office = Office::new();
    for (nth, line) in
        ["echo x > f", "sort -o file file", "ls & touch y", "cat file | tee z"].iter().enumerate()
    {
        let report = office.run(line);
        assert_eq!((report.exit_code, report.view), (0, Some(View::Transactional)), "{line}");
        assert_eq!(office.steps(), nth + 1, "{line}");
    }
}

#[test]
fn whoever_names_a_view_has_it() {
    let office = Office::new();
    let mut request = CommandRequest::shell("git status");
    request.view = Some(ViewSetting::Transactional);
    assert_eq!(office.exec(&request).view, Some(View::Transactional));
    let office = Office::with(|options| options.view = ViewSetting::Transactional);
    assert_eq!(office.run("git status").view, Some(View::Transactional));
    request.view = Some(ViewSetting::Auto);
    assert_eq!(office.exec(&request).view, Some(View::ReadOnly));
}

#[test]
fn what_the_line_does_not_say_is_a_doubt() {
    let office = Office::new();
    let mut request = CommandRequest::shell("git diff");
    request.env.insert("GIT_EXTERNAL_DIFF".into(), "./x".into());
    request.env.insert("NO_COLOR".into(), "1".into());
    assert_eq!(office.exec(&request).view, Some(View::Transactional));
    request.env.remove("GIT_EXTERNAL_DIFF");
    assert_eq!(office.exec(&request).view, Some(View::ReadOnly));
    request.pty = Some(PtySize { rows: 24, columns: 80 });
    assert_eq!(office.exec(&request).view, Some(View::Transactional));
    let office = Office::with(|options| options.lists.write.push("grep".into()));
    assert_eq!(office.run("grep a file").view, Some(View::Transactional));
    assert_eq!(office.run("cat file").view, Some(View::ReadOnly));
}

#[test]
fn in_a_transaction_commands_read_what_those_before_them_wrote() {
    let office = Office::new();
    office.session.begin("several").unwrap();
    office.run("echo new > new");
    let (report, said) = office.said("cat new");
    assert_eq!((report.view, said.as_str()), (Some(View::ReadOnly), "new\n"));
    office.run("echo newer > new");
    assert_eq!(office.said("cat new").1, "newer\n");
    office.session.commit().unwrap();
    assert_eq!(office.steps(), 1);
}

/// Through a mount, files are written that the folder may not show yet.
#[test]
fn beside_a_background_command_reading_ones_have_the_transactional_view() {
    let test = "beside_a_background_command_reading_ones_have_the_transactional_view";
    if !can_use_fuse() {
        return skip(test, "/dev/fuse cannot be used");
    }
    let office = Office::new();
    let mut request = CommandRequest::shell("touch up; cat");
    (request.background, request.takes_input) = (true, true);
    let running = office.session.spawn(request, |_, _| {}).unwrap();
    eventually("it runs", || office.workspace.path("up").exists());
    assert_eq!(office.run("cat file").view, Some(View::Transactional));
    running.order(Order::Input { data: vec![], eof: true });
    assert_eq!(running.wait().unwrap().view, Some(View::Live));
    assert_eq!(office.run("cat file").view, Some(View::ReadOnly));
}

#[test]
fn a_reading_command_that_writes_nevertheless_is_told_how_and_works_when_tried_again() {
    let office = Office::new();
    sh(WRITING_DIFF, office.workspace.working());
    let before = office.workspace.snapshot();
    let (report, said) = office.said("git diff");
    assert!(said.contains("Read-only file system"), "{said}");
    assert_ne!(report.exit_code, 0);
    assert!(report.hint.unwrap().contains("--view transactional"));
    assert_tree_eq(&before, &office.workspace.snapshot());
    let (report, said) = office.said("git diff");
    assert_eq!((report.exit_code, report.view), (0, Some(View::Transactional)), "{said}");
    assert_eq!((office.steps(), report.hint), (1, None));
}

#[test]
fn agents_are_told_too() {
    let person = Person::with(REPOSITORY);
    let mut agent = Client::start(&mut person.sandbox(["--protocol", "mcp"]));
    agent.initialize(json!({}));
    let (said, _) = agent.tool("Bash", json!({"command": "cd .git && cat HEAD && pwd"}));
    assert!(!said.contains("step"), "{said}");
    let (said, _) = agent.tool("Bash", json!({"command": "pwd"}));
    assert!(said.contains("/.git"), "where it was is known in this view, too: {said}");
    agent.tool("Bash", json!({"command": "cd .."}));
    sh(WRITING_DIFF, &person.project());
    let (said, _) = agent.tool("Bash", json!({"command": "git diff"}));
    assert!(said.contains("ran in the read-only view"), "{said}");
    let (said, _) = agent.tool("Bash", json!({"command": "git diff"}));
    assert!(said.contains("step 1"), "{said}");
}

#[test]
fn a_session_can_be_one_in_which_commands_change_nothing() {
    let office = Office::with(|options| options.view = ViewSetting::ReadOnly);
    let before = office.workspace.snapshot();
    for background in [false, true] {
        let mut request = CommandRequest::shell("touch new; rm -rf .git; echo x > file");
        request.background = background;
        let report = office.exec(&request);
        assert_eq!(report.view, Some(View::ReadOnly));
        assert_ne!(report.exit_code, 0);
        assert_eq!(report.hint, None, "who has asked for it knows");
    }
    assert_eq!(office.steps(), 0);
    assert_tree_eq(&before, &office.workspace.snapshot());
}

#[test]
fn where_there_is_no_such_view_it_is_refused() {
    let office = Office::with(|options| {
        options.isolation = IsolationChoice::Host;
        options.view = ViewSetting::ReadOnly;
    });
    let before = office.workspace.snapshot();
    let refused = office.session.exec(&CommandRequest::shell("touch new"), |_, _| {});
    assert!(matches!(refused, Err(SandboxError::Isolation { .. })), "{refused:?}");
    assert_tree_eq(&before, &office.workspace.snapshot());
}

/// It lies in another folder of the session, and is named by way of a link.
#[test]
fn undo_directories_are_not_seen_in_the_read_only_view() {
    let workspace = TempWorkspace::with_fixture(|dir| sh("mkdir one two; echo a > one/file", dir));
    symlink("two", workspace.path("link")).unwrap();
    let mut one = FolderOptions::new(workspace.path("one"));
    one.undo_dir = Some(workspace.path("link/undo"));
    let mut two = FolderOptions::new(workspace.path("two"));
    two.undo_dir = Some(workspace.undo().into());
    let office = Office::of(workspace, vec![one, two], |_| {});
    let (report, said) = office.said("cat file; ls -A ../two/undo; cat ../two/undo/version");
    assert_eq!(report.view, Some(View::ReadOnly));
    assert!(said.contains("a\n") && said.contains("No such file"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(office.workspace.path("two/undo/version").exists());
}

#[test]
fn people_can_run_what_must_not_change_anything() {
    let person = Person::with("echo a > file");
    let before = person.snapshot();
    let script = "cat file; echo x > file";
    let output = person.output(&["run", "--view", "read-only", "--", "sh", "-c", script]);
    assert_ne!(output.status.code(), Some(0));
    assert_eq!(text(&output.stdout), "a\n");
    let said = text(&output.stderr);
    assert!(said.contains("Read-only file system"), "{said}");
    assert!(said.contains("nothing changed (namespace, read-only view)"), "{said}");
    assert_tree_eq(&before, &person.snapshot());
    assert_eq!(person.json(&["run", "--", "cat", "file"])["report"]["view"], "read_only");
    let json = person.json(&["run", "--view", "transactional", "--", "cat", "file"]);
    assert_eq!(json["report"]["view"], "transactional");
    person.configure("[sandbox]\nview = \"read_only\"\n");
    assert!(!person.output(&["run", "--", "touch", "new"]).status.success());
    let refused =
        person.output(&["run", "--isolation", "host", "--view", "read-only", "--", "touch", "new"]);
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).contains("there is no read-only view in it"), "{refused:?}");
    assert_tree_eq(&before, &person.snapshot());
    assert!(!fs::exists(person.path("new")).unwrap());
}
