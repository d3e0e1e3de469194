//! Commands beside others in one guest: what is whose, and that nothing outlives its command.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "shown when a test fails")]

mod common;

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use codeagent_common::SafeguardDecision;
use codeagent_interceptor::OnConflict;
use codeagent_sandbox::SandboxError;
use codeagent_sandbox::session::{Asker, CommandRequest, Question, Running};
use codeagent_test_support::{TempWorkspace, assert_tree_eq, fixtures};
use common::{Ground, Office, eventually, kill};

struct No;

impl Asker for No {
    fn ask(&self, _: &Question) -> Option<SafeguardDecision> {
        Some(SafeguardDecision::Deny)
    }
}

fn background(office: &Office, script: &str) -> Running {
    let mut request = CommandRequest::shell(script);
    request.background = true;
    office.session.spawn(request, |_, _| {}).unwrap()
}

fn undo_everything(office: &Office) {
    let steps = office.session.history(None).unwrap().len();
    office.session.undo(None, steps, OnConflict::Refuse).unwrap();
}

/// Denied, not begun or lost: what a background command wrote meanwhile is there, and can be undone.
#[test]
fn nothing_of_a_background_command_is_taken_back_because_of_another() {
    let test = "nothing_of_a_background_command_is_taken_back_because_of_another";
    let Some(ground) = Ground::find(test) else { return };
    let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 20, 10));
    let office = Office::with(&ground, workspace, |options| {
        options.safeguards.delete_threshold = Some(5);
        options.safeguards.timeout = Duration::from_secs(60);
    });
    office.session.set_asker(Arc::new(No));
    let before = office.workspace.snapshot();
    let there = |name: &str| office.workspace.path(name).exists();

    // Alone, as ever.
    let denied = office.session.exec(&CommandRequest::shell("touch new; rm -f file*"), |_, _| {});
    assert!(matches!(denied, Err(SandboxError::Denied { .. })), "{denied:?}");
    assert_tree_eq(&before, &office.workspace.snapshot());

    println!("denied");
    let meet = "touch go; until [ -e kept ]; do sleep 0.05; done";
    let write = "until [ -e go ]; do sleep 0.05; done; echo kept > kept; tail -f /dev/null";
    let writing = background(&office, write);
    let report = office.run(&format!("{meet}; rm -f file*; echo over > over"));
    assert_eq!(report.directories[0].denied.len(), 1, "{report:?}");
    assert!(there("kept") && there("over") && there("file-0000010"));
    office.session.cancel(writing.id).unwrap();
    let told = writing.wait().unwrap();
    assert_eq!(told.directories[0].denied.len(), 1, "{told:?}");
    undo_everything(&office);
    assert_tree_eq(&before, &office.workspace.snapshot());

    println!("not begun");
    let count = "i=0; while :; do i=$((i+1)); echo $i > n$i; done";
    let counting = background(&office, count);
    eventually("it has begun", || there("n1"));
    let nothing = CommandRequest::argv(["/there/is/no/such/program"]);
    let failed = office.session.exec(&nothing, |_, _| {}).unwrap_err();
    let SandboxError::PartlyKept { kept, reason } = &failed else { panic!("{failed:?}") };
    assert_eq!(kept[0].folder, office.workspace.working());
    assert!(matches!(**reason, SandboxError::NotStarted(_)), "{failed:?}");

    println!("lost");
    let session = Arc::clone(&office.session);
    let command = std::thread::spawn(move || {
        session.exec(&CommandRequest::shell("echo mine > mine; tail -f /dev/null"), |_, _| {})
    });
    eventually("it has written", || there("mine"));
    let newest = || {
        let names = fs::read_dir(office.workspace.working()).unwrap().flatten();
        let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter_map(|name| name.strip_prefix('n')?.parse::<usize>().ok()).max().unwrap()
    };
    let so_far = newest();
    eventually("the other writes beside it", || newest() > so_far + 3);
    kill(office.qemu());
    let lost = command.join().unwrap().unwrap_err();
    let SandboxError::PartlyKept { kept, reason } = &lost else { panic!("{lost:?}") };
    assert!(matches!(**reason, SandboxError::CommandLost(_)), "{lost:?}");
    assert_eq!(kept[0].folder, office.workspace.working());
    counting.wait().unwrap_err();
    // Not one is missing.
    assert!(there("mine"));
    let newest = newest();
    assert!((1..=newest).all(|n| there(&format!("n{n}"))), "of {newest}");
    undo_everything(&office);
    assert_tree_eq(&before, &office.workspace.snapshot());
}

/// Whatever it does to get away: there is one guest for all, and it would write into others' steps.
#[test]
fn nothing_that_a_command_starts_in_a_guest_outlives_it() {
    let test = "nothing_that_a_command_starts_in_a_guest_outlives_it";
    let Some(ground) = Ground::find(test) else { return };
    let office = Office::new(&ground, TempWorkspace::with_fixture(fixtures::small_tree));
    let before = office.workspace.snapshot();
    let escape = "(setsid sh -c 'trap \"\" TERM HUP; echo $$ > /tmp/escaped; \
                  while :; do echo late > late; done' < /dev/null > /dev/null 2>&1 &); \
                  until [ -s /tmp/escaped ] && [ -e late ]; do sleep 0.05; done; echo ended";
    for in_background in [false, true] {
        println!("{in_background}");
        let mut request = CommandRequest::shell(escape);
        request.background = in_background;
        let report = office.session.exec(&request, |_, _| {}).unwrap();
        assert_eq!(report.exit_code, 0);
        let gone = "! kill -0 $(cat /tmp/escaped) 2> /dev/null && rm /tmp/escaped";
        assert_eq!(office.run(gone).exit_code, 0, "it still runs");
        undo_everything(&office);
        assert_tree_eq(&before, &office.workspace.snapshot());
    }
}
