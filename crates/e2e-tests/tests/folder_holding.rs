//! Guests that wait, must not write, or lose who serves them.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::time::Duration;

use codeagent_common::{SafeguardConfig, SafeguardDecision};
use codeagent_interceptor::{OnConflict, StepRequest};
use codeagent_test_support::assert_tree_eq;
use codeagent_test_support::workloads::project;
use codeagent_worker::{Event, Request, Settings};
use common::folder::{Carrier, Session, Way, boot, over_each_carrier, parts, start_worker};

fn careful(settings: &mut Settings) {
    settings.safeguards = SafeguardConfig {
        delete_threshold: Some(3),
        overwrite_threshold_bytes: Some(100_000),
        rename_over_existing: true,
        timeout: Duration::from_secs(120),
        ..SafeguardConfig::default()
    };
}

over_each_carrier! {
    /// SF-01, SF-02, SF-03, as far as they are the device's.
    a_question_holds_what_it_is_about_and_no_reader
}

fn a_question_holds_what_it_is_about_and_no_reader(carrier: Carrier) {
    let Some(parts) = parts("a_question_holds_what_it_is_about_and_no_reader") else { return };
    let fixture = |root: &std::path::Path| {
        project(root);
        fs::create_dir_all(root.join("apart/deep")).unwrap();
        fs::write(root.join("apart/deep/leaf"), "leaf").unwrap();
    };
    let mut session = Session::start_with(&parts, carrier, fixture, careful);
    let before = session.workspace.snapshot();
    let answer = |session: &Session, decision| {
        let question = session.question().id;
        let answered: Result<(), _> = session.client().call(Request::Answer { question, decision });
        answered.unwrap();
    };

    // Denied: the step is taken back.
    session.client().open_step(StepRequest::command("rm")).unwrap();
    session.guest.sh("(rm -rf src README && echo 0 || echo 1) > /tmp/rm 2>&1 & :");
    let question = session.question();
    assert!(session.workspace.path("README").exists() || session.workspace.path("src").exists());
    // Reading goes on meanwhile, though not in the directory that the guest itself has locked.
    assert_eq!(session.guest.sh("cat apart/deep/leaf"), "leaf");
    session.guest.sh("ls -lR apart > /dev/null; df . > /dev/null; test ! -s /tmp/rm");
    let denied: Result<(), _> = session
        .client()
        .call(Request::Answer { question: question.id, decision: SafeguardDecision::Deny });
    denied.unwrap();
    session.guest.sh("while ! grep -qx 1 /tmp/rm; do sleep 0.1; done");
    let _ = session.client().close_step(Some(1)); // it has been taken back
    assert_tree_eq(&before, &session.workspace.snapshot());
    assert_eq!(session.guest.sh("cat README"), "read me\n");

    // Allowed: it goes on, and can be undone.
    session.client().open_step(StepRequest::command("overwrite")).unwrap();
    session.guest.ask("echo short > src/deep/data; echo new > new; mv new README; sync");
    answer(&session, SafeguardDecision::Allow);
    answer(&session, SafeguardDecision::Allow);
    assert_eq!(session.guest.answer().code, 0);
    session.client().close_step(Some(0)).unwrap();
    assert_eq!(fs::read_to_string(session.workspace.path("README")).unwrap(), "new\n");
    session.client().undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &session.workspace.snapshot());
}

over_each_carrier!(a_folder_that_is_read_only_stays_as_it_is);

fn a_folder_that_is_read_only_stays_as_it_is(carrier: Carrier) {
    let Some(parts) = parts("a_folder_that_is_read_only_stays_as_it_is") else { return };
    let read_only = |settings: &mut Settings| settings.read_only = true;
    let mut session = Session::start_with(&parts, carrier, project, read_only);
    let before = session.workspace.snapshot();
    let script = "for change in 'echo x > README' 'echo x > new' 'rm README' 'mkdir d' \
        'mv README other' 'chmod 600 README' 'ln README l' 'ln -s a b' 'mkfifo f' \
        'truncate -s 1 README' 'touch README'; do
            if sh -c \"$change\" 2>/tmp/why; then echo \"$change\"; fi
            grep -q 'Read-only' /tmp/why || cat /tmp/why
        done";
    assert_eq!(session.guest.sh(script), "");
    assert_eq!(session.guest.sh("cat README"), "read me\n");
    assert_tree_eq(&before, &session.workspace.snapshot());
}

over_each_carrier! {
    /// The folder and its history are as they were after the last step, and another guest can have
    /// them.
    a_worker_that_dies_costs_the_guest_its_mount_and_the_session_nothing
}

fn a_worker_that_dies_costs_the_guest_its_mount_and_the_session_nothing(carrier: Carrier) {
    let test = "a_worker_that_dies_costs_the_guest_its_mount_and_the_session_nothing";
    let Some(parts) = parts(test) else { return };
    // Over virtiofs whoever asks for something waits until QEMU is ended, because no kernel gives up a
    // device with requests on their way; over 9P he gets an error.
    let waits = carrier == Carrier::Virtiofs;
    let mut session = Session::start(&parts, carrier, project);
    session.step("echo kept > kept");
    let boundary = session.workspace.snapshot();
    session.client().open_step(StepRequest::command("unfinished")).unwrap();
    session.guest.sh("echo unfinished > README; rm -rf src; mkdir new");
    let Session { mut guest, worker, workspace, .. } = session;
    drop(worker);
    guest.ask("cat README || echo more > more");
    let patience = Duration::from_secs(if waits { 1 } else { 60 });
    assert_eq!(guest.answers_within(patience), !waits, "whether it is told");
    let (worker, events) = start_worker(&workspace, |_| {});
    assert!(worker.ready().recovery.is_some());
    assert_tree_eq(&boundary, &workspace.snapshot());
    drop(guest);
    let (mut guest, attachment) = boot(&parts, worker.client(), Way::ours(carrier));
    assert_eq!(guest.sh("cat kept README"), "kept\nread me\n");
    worker.client().undo(1, OnConflict::Refuse).unwrap();
    assert_eq!(guest.run("cat kept").code, 1);

    // A guest whose plug is pulled leaves the worker as it is.
    drop(guest);
    assert!(worker.client().wait_until_detached(attachment, Duration::from_secs(30)).unwrap());
    assert!(matches!(
        events.iter().find(|event| matches!(event, Event::Detached { .. })),
        Some(Event::Detached { attachment: ended }) if ended == attachment
    ));
    worker.client().status().unwrap();
}
