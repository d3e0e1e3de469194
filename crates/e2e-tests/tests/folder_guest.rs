//! What a guest does in the folder, and what it sees of it.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod common;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use codeagent_interceptor::{OnConflict, StepRequest};
use codeagent_test_support::assert_tree_eq;
use codeagent_test_support::workloads::project;
use common::folder::{Carrier, Session, over_each_carrier, parts};

over_each_carrier! {
    /// Every kind of change, each undone and redone exactly, and seen by the guest at once.
    /// VF-04, PJ-01 to PJ-05.
    whatever_a_guest_changes_is_undone_exactly_and_the_guest_sees_it
}

fn whatever_a_guest_changes_is_undone_exactly_and_the_guest_sees_it(carrier: Carrier) {
    let Some(parts) = parts("whatever_a_guest_changes_is_undone_exactly_and_the_guest_sees_it")
    else {
        return;
    };
    let mut session = Session::start(&parts, carrier, project);
    for script in [
        "mkdir -p a/b/c; echo new > a/b/c/file; : > empty; ln -s x y",
        "echo short > src/main.c; echo more >> README",
        "printf XX | dd of=src/deep/data bs=1 seek=100000 conv=notrunc 2>/dev/null",
        "truncate -s 10 src/deep/data; truncate -s 1000 README; : > src/main.c",
        "rm -rf src README",
        "rm -rf src; mkdir src; echo other > src/main.c",
        "cp -a src copy; cp README copy/again",
        "mv src lib; echo x >> lib/deep/er/leaf; mv lib/deep .; rm deep/data",
        "echo new > tmp; mv tmp src/main.c; mv README src/deep/data",
        "ln README third; ln -s nowhere dangling; rm src/README.link; echo x >> third",
        "chmod 600 README; touch -d @1000000000 src; chmod 4755 src/main.c",
        "mkfifo pipe; chmod 600 pipe; mkfifo gone; rm gone",
        "exec 3>>README; rm README src/README.link; echo late >&3; exec 3>&-",
        "tar cf all.tar src; mkdir out; tar xf all.tar -C out; rm -r src",
        "/agent write-mapped src/deep/data mapped",
    ] {
        session.there_and_back(script);
    }

    // Whoever makes a file in the guest, it belongs to the person.
    session.step("chmod 777 .; su user -c 'echo theirs > theirs'; echo r > roots; chown 7:8 roots");
    let user = rustix::process::geteuid().as_raw();
    for file in ["theirs", "roots"] {
        assert_eq!(fs::metadata(session.workspace.path(file)).unwrap().uid(), user);
    }
    session.client().undo(1, OnConflict::Refuse).unwrap();

    what_is_open_is_seen_as_it_has_become(&mut session);
    a_mapping_is_recorded_when_the_guest_writes_it_out(&mut session);
    a_tree_of_many_files_is_removed_and_brought_back(&mut session);
}

over_each_carrier! {
    /// More in one message than a socket holds, to a worker that does not read for a while.
    what_a_guest_sends_arrives_whole_however_slowly_it_is_taken
}

fn what_a_guest_sends_arrives_whole_however_slowly_it_is_taken(carrier: Carrier) {
    use rustix::process::{Pid, Signal, kill_process};
    let test = "what_a_guest_sends_arrives_whole_however_slowly_it_is_taken";
    let Some(parts) = parts(test) else { return };
    let mut session = Session::start(&parts, carrier, project);
    let line = "a line that is the same everywhere\n";
    let whole = line.repeat((8 << 20) / line.len() + 1)[..8 << 20].to_owned();
    let text = line.trim_end();
    session.guest.sh(&format!("yes '{text}' | head -c {} > /tmp/source", whole.len()));
    session.client().open_step(StepRequest::command("dd")).unwrap();
    session.guest.ask("dd if=/tmp/source of=large bs=512k && cp large again");
    let large = session.workspace.path("large");
    let begun = Instant::now();
    while !large.exists() {
        assert!(begun.elapsed() < Duration::from_secs(60), "it never begins");
        std::thread::sleep(Duration::from_millis(1));
    }
    let worker = Pid::from_raw(i32::try_from(session.worker.id()).unwrap()).unwrap();
    kill_process(worker, Signal::STOP).unwrap();
    std::thread::sleep(Duration::from_secs(1));
    kill_process(worker, Signal::CONT).unwrap();
    let outcome = session.guest.answer();
    assert_eq!(outcome.code, 0, "{}", outcome.output);
    session.guest.sh("sync");
    session.client().close_step(Some(0)).unwrap();
    for name in ["large", "again"] {
        assert!(fs::read(session.workspace.path(name)).unwrap() == whole.as_bytes(), "{name}");
    }
}

/// What a program in the guest says of a file that changes while it has it open or mapped: undone
/// from outside.
fn seen_before_and_after_an_undo(session: &mut Session, how: &str) -> Vec<String> {
    session.step("printf 'original, and more' > README");
    session.step("printf 'changed! and more!' > README");
    session.guest.sh("rm -f /tmp/go /tmp/said; cat README README >/dev/null");
    session.guest.sh(&format!("/agent {how} README /tmp/go > /tmp/said 2>&1 & echo $! > /tmp/pid"));
    session.guest.sh("n=0; while [ $(cat /tmp/said | wc -l) -lt 1 ]; do
            n=$((n + 1)); [ $n -lt 600 ]; sleep 0.1; done");
    session.client().undo(1, OnConflict::Refuse).unwrap();
    // The same length, at the same second perhaps.
    assert_eq!(session.guest.sh("cat README"), "original, and more");
    session.guest.sh("touch /tmp/go; n=0; while [ -d /proc/$(cat /tmp/pid) ]; do
            n=$((n + 1)); [ $n -lt 600 ]; sleep 0.1; done");
    let said = session.guest.sh("cat /tmp/said");
    session.client().undo(1, OnConflict::Refuse).unwrap();
    said.lines().map(str::to_owned).collect()
}

fn what_is_open_is_seen_as_it_has_become(session: &mut Session) {
    assert_eq!(seen_before_and_after_an_undo(session, "watch-open"), ["changed!", "original"]);
}

/// Over 9P a mapping shows what was there until it is made anew: that protocol has no word for it.
#[test]
fn over_virtiofs_a_mapping_shows_what_an_undo_has_made_of_the_file() {
    let test = "over_virtiofs_a_mapping_shows_what_an_undo_has_made_of_the_file";
    let Some(parts) = parts(test) else { return };
    let mut session = Session::start(&parts, Carrier::Virtiofs, project);
    let seen = seen_before_and_after_an_undo(&mut session, "watch-mapped");
    assert_eq!(seen, ["changed!", "unasked original", "asked original"]);
}

fn a_mapping_is_recorded_when_the_guest_writes_it_out(session: &mut Session) {
    let before = session.workspace.snapshot();
    session.step("/agent write-mapped README MAPPED");
    let written = fs::read_to_string(session.workspace.path("README")).unwrap();
    assert!(written.starts_with("MAPPED"), "{written}");
    session.client().undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &session.workspace.snapshot());
}

fn a_tree_of_many_files_is_removed_and_brought_back(session: &mut Session) {
    session.step("/agent workload prepare .");
    let before = session.workspace.snapshot();
    session.step("rm -rf tree");
    assert!(!session.workspace.path("tree").exists());
    session.client().undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &session.workspace.snapshot());
    assert_eq!(session.guest.sh("find tree -type f | wc -l").trim(), "2000");
}
