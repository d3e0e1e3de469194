//! Sessions whose commands run in a guest: steps, undo, safeguards, deaths.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(clippy::print_stdout, reason = "shown when a test fails")]

mod common;

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use codeagent_common::{SafeguardConfig, SafeguardDecision};
use codeagent_control::Order;
use codeagent_interceptor::OnConflict;
use codeagent_sandbox::SandboxError;
use codeagent_sandbox::executor::Isolation;
use codeagent_sandbox::session::{
    Access, AnsweredElsewhere, Asker, CommandReport, CommandRequest, Event, FileChange,
    FolderOptions, Question, Running, Session, State,
};
use codeagent_test_support::{TempWorkspace, assert_tree_eq, fixtures};
use common::{Ground, Office, descendants, eventually, kill, options, output};

/// UR-01, UR-02, UR-04, UR-05, VF-04: what a command does is one step, whatever it does; undone and
/// redone it is exact, and the guest sees it at once. UR-03: so it is with several of many. SL-08.
#[test]
fn commands_in_a_guest_are_steps_that_come_back_exactly() {
    let test = "commands_in_a_guest_are_steps_that_come_back_exactly";
    let Some(ground) = Ground::find(test) else { return };
    let workspace = TempWorkspace::with_fixture(|root| {
        fixtures::awkward_tree(root);
        fixtures::symlink_tree(root);
        fixtures::large_flat(root, 60, 700);
    });
    let office = Office::new(&ground, workspace);
    let status = office.session.status().unwrap();
    assert_eq!(status.isolation, Some(Isolation::Vm));
    let before = office.workspace.snapshot();

    let scripts = [
        ("everything goes", "rm -rf ./* .[!.]*"),
        ("a tree is made", "mkdir -p n/e/w && for i in $(seq 50); do echo $i > n/e/w/$i; done"),
        ("names change", "mkdir t && mv ./[a-m]* t/ && mv t u"),
        ("an archive", "tar cf /tmp/all.tar file* && rm -rf ./* && tar xf /tmp/all.tar -C ."),
        ("attributes", "find . -type f -exec chmod 600 {} + ; find . -exec touch -h {} +"),
        (
            "appends and truncations",
            "for f in $(find . -type f -name 'file*'); do echo more >> $f; done",
        ),
    ];
    for (what, script) in scripts {
        println!("{what}");
        let report = office.run(script);
        assert_eq!(report.directories.len(), 1, "{what}");
        assert!(report.undoable && report.directories[0].step.is_some(), "{what}: {report:?}");
        let after = office.workspace.snapshot();
        office.undo();
        assert_tree_eq(&before, &office.workspace.snapshot());
        assert_eq!(
            office.output("find . -print0 | tr -dc '\\0' | wc -c").trim().parse::<usize>().unwrap(),
            walk(office.workspace.working()),
            "the guest sees the undo of: {what}"
        );
        office.redo();
        assert_tree_eq(&after, &office.workspace.snapshot());
        office.undo();
    }
    assert_tree_eq(&before, &office.workspace.snapshot());

    // Of several steps, the last ones are undone, and the rest later.
    let boundaries: Vec<_> = (1..=4)
        .map(|step| {
            let boundary = office.workspace.snapshot();
            office.output(&format!(
                "mv file-000000{step} moved{step}; echo {step} >> all; rm file-000001{step}"
            ));
            boundary
        })
        .collect();
    office.session.undo(None, 3, OnConflict::Refuse).unwrap();
    assert_tree_eq(&boundaries[1], &office.workspace.snapshot());
    assert_eq!(office.output("cat all"), "1\n");
    office.undo();
    assert_tree_eq(&before, &office.workspace.snapshot());

    // A file tool beside it: the guest has it at once, and it is a step of its own.
    let change = FileChange::Write { path: "written".into(), content: b"by a tool".to_vec() };
    office.session.change_files("write", &[change]).unwrap();
    assert_eq!(office.output("cat written"), "by a tool");
    office.undo();
    assert_eq!(office.run("test -e written").exit_code, 1);
    assert_tree_eq(&before, &office.workspace.snapshot());

    // Nothing is left of it: no process, no socket, no disk.
    assert!(!descendants(std::process::id()).is_empty());
    office.session.stop().unwrap();
    assert_eq!(descendants(std::process::id()), []);
    let left: Vec<_> = fs::read_dir(office.state_dir()).unwrap().flatten().collect();
    assert!(left.is_empty(), "{left:?}");
}

fn walk(root: &std::path::Path) -> usize {
    let mut count = 1;
    for entry in fs::read_dir(root).unwrap().flatten() {
        count += match entry.file_type().unwrap().is_dir() {
            true => walk(&entry.path()),
            false => 1,
        };
    }
    count
}

/// Counts questions, and what a background command says while one is open.
struct Witness {
    heard: Arc<AtomicUsize>,
    asked: AtomicUsize,
    said_meanwhile: AtomicUsize,
    decision: SafeguardDecision,
}

impl Asker for Witness {
    fn ask(&self, _: &Question) -> Option<SafeguardDecision> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        // What was on its way when the machine was stopped.
        std::thread::sleep(Duration::from_millis(500));
        let before = self.heard.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1500));
        let meanwhile = self.heard.load(Ordering::SeqCst) - before;
        self.said_meanwhile.fetch_add(meanwhile, Ordering::SeqCst);
        Some(self.decision)
    }
}

/// SG-08: while somebody is asked the machine stands still; denied, what was asked about is refused.
/// SF-01 to SF-03: so it is with everything that is asked about.
#[test]
fn the_machine_stands_still_while_somebody_is_asked() {
    let Some(ground) = Ground::find("the_machine_stands_still_while_somebody_is_asked") else {
        return;
    };
    for decision in [SafeguardDecision::Deny, SafeguardDecision::Allow] {
        let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 20, 10));
        let office = Office::with(&ground, workspace, |options| {
            options.safeguards.delete_threshold = Some(5);
            options.safeguards.timeout = Duration::from_secs(60);
        });
        let before = office.workspace.snapshot();
        let heard = Arc::new(AtomicUsize::new(0));
        let witness = Arc::new(Witness {
            heard: Arc::clone(&heard),
            asked: AtomicUsize::new(0),
            said_meanwhile: AtomicUsize::new(0),
            decision,
        });
        office.session.set_asker(Arc::clone(&witness) as _);
        let ticking = office.tick(&heard);

        let ran = office.session.exec(&CommandRequest::shell("rm -rf ./*"), |_, _| {});
        assert_eq!(witness.asked.load(Ordering::SeqCst), 1);
        assert_eq!(witness.said_meanwhile.load(Ordering::SeqCst), 0, "the machine ran on");
        let after = heard.load(Ordering::SeqCst);
        eventually("it ticks again", || heard.load(Ordering::SeqCst) > after + 3);
        if decision == SafeguardDecision::Allow {
            assert_eq!(ran.unwrap().exit_code, 0);
            assert_eq!(fs::read_dir(office.workspace.working()).unwrap().count(), 0);
            office.undo();
            let safeguards = SafeguardConfig {
                overwrite_threshold_bytes: Some(10),
                rename_over_existing: true,
                timeout: Duration::from_secs(60),
                ..SafeguardConfig::default()
            };
            office.session.set_safeguards(safeguards).unwrap();
            for script in ["echo shorter > file-0000007", "mv file-0000007 file-0000008"] {
                let asked = witness.asked.load(Ordering::SeqCst);
                assert_eq!(office.run(script).exit_code, 0, "{script}");
                assert_eq!(witness.asked.load(Ordering::SeqCst), asked + 1, "{script}");
                office.undo();
            }
        } else {
            assert_refused(&office, ran, 20);
        }
        assert_tree_eq(&before, &office.workspace.snapshot());
        ticking.order(Order::Cancel);
        ticking.wait().unwrap();
    }
}

/// Beside a background command nothing was taken back: of so many files, the first four are gone and
/// the rest was refused. Undoes it.
#[track_caller]
fn assert_refused(office: &Office, ran: Result<CommandReport, SandboxError>, files: usize) {
    let report = ran.unwrap();
    let [directory] = &report.directories[..] else { panic!("{report:?}") };
    assert!(directory.info.as_ref().is_some_and(|step| step.deleted == 4), "{report:?}");
    let [refusal] = &directory.denied[..] else { panic!("{report:?}") };
    assert!((1..=files as u64 - 3).contains(&refusal.count), "{report:?}");
    office.undo();
}

/// Frontends answer when they like, and some never do: the machine stands still until it is decided,
/// and goes on then, whatever it was that had to wait.
#[test]
fn a_question_that_is_answered_late_or_never_keeps_the_machine_and_no_longer() {
    let test = "a_question_that_is_answered_late_or_never_keeps_the_machine_and_no_longer";
    let Some(ground) = Ground::find(test) else { return };
    let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 20, 10));
    let office = Office::new(&ground, workspace);
    let before = office.workspace.snapshot();
    office.session.set_asker(Arc::new(AnsweredElsewhere));
    let (asked, questions) = channel();
    office.session.listen(move |event| {
        if let Event::SafeguardTriggered { request, .. } = event {
            let _ = asked.send(request.id); // the test has failed meanwhile
        }
    });
    let heard = Arc::new(AtomicUsize::new(0));
    let ticking = office.tick(&heard);

    for (answer, seconds) in [(None, 12), (Some(SafeguardDecision::Allow), 120)] {
        let safeguards = SafeguardConfig {
            delete_threshold: Some(5),
            timeout: Duration::from_secs(seconds),
            ..SafeguardConfig::default()
        };
        office.session.set_safeguards(safeguards).unwrap();
        let session = Arc::clone(&office.session);
        let removing = std::thread::spawn(move || {
            session.exec(&CommandRequest::shell("rm -rf ./*"), |_, _| {})
        });
        let question = questions.recv_timeout(common::PATIENCE).unwrap();
        let at_first = standing_still(&heard);
        // Longer than what is decided takes to come to its end.
        std::thread::sleep(Duration::from_secs(6));
        assert_eq!(heard.load(Ordering::SeqCst), at_first, "the machine ran on: {answer:?}");
        if let Some(decision) = answer {
            office.session.answer(None, question, decision).unwrap();
        }
        let ran = removing.join().unwrap();
        eventually("it ticks again", || heard.load(Ordering::SeqCst) > at_first + 3);
        match answer {
            None => assert_refused(&office, ran, 20),
            Some(_) => {
                assert_eq!(ran.unwrap().exit_code, 0);
                office.undo();
            }
        }
        assert_tree_eq(&before, &office.workspace.snapshot());
        assert_eq!(office.output("ls | wc -l").trim(), "20");
    }
    ticking.order(Order::Cancel);
    ticking.wait().unwrap();
}

/// A command that is not wanted any more is not asked about: it ends in the guest, and the guest goes
/// on with everything else.
#[test]
fn a_command_that_is_cancelled_or_times_out_while_it_is_asked_about_costs_no_guest() {
    let test = "a_command_that_is_cancelled_or_times_out_while_it_is_asked_about_costs_no_guest";
    let Some(ground) = Ground::find(test) else { return };
    let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 20, 10));
    let office = Office::with(&ground, workspace, |options| {
        options.safeguards.delete_threshold = Some(5);
        options.safeguards.timeout = Duration::from_secs(600);
    });
    let before = office.workspace.snapshot();
    office.session.set_asker(Arc::new(AnsweredElsewhere));
    let (asked, questions) = channel();
    office.session.listen(move |event| {
        if let Event::SafeguardTriggered { request, .. } = event {
            let _ = asked.send(request.id); // the test has failed meanwhile
        }
    });
    let heard = Arc::new(AtomicUsize::new(0));
    let ticking = office.tick(&heard);
    let machine = office.qemu();

    for timeout in [None, Some(Duration::from_secs(5))] {
        let mut removing = CommandRequest::shell("rm -rf ./*; tail -f /dev/null");
        removing.timeout = timeout;
        let removing = office.session.spawn(removing, |_, _| {}).unwrap();
        questions.recv_timeout(common::PATIENCE).unwrap();
        let standing = standing_still(&heard);
        if timeout.is_none() {
            removing.order(Order::Cancel);
        }
        let ended = removing.wait();
        assert_refused(&office, ended, 20);
        eventually("it ticks again", || heard.load(Ordering::SeqCst) > standing + 3);
        assert_eq!(office.qemu(), machine, "{timeout:?}: another guest");
        assert_tree_eq(&before, &office.workspace.snapshot());
        assert_eq!(office.output("ls | wc -l; pidof rm tail || :").trim(), "20");
    }

    // What may be the doing of either is denied if either is cancelled.
    let session = Arc::clone(&office.session);
    let removing =
        std::thread::spawn(move || session.exec(&CommandRequest::shell("rm -rf ./*"), |_, _| {}));
    questions.recv_timeout(common::PATIENCE).unwrap();
    standing_still(&heard);
    ticking.order(Order::Cancel);
    let told = ticking.wait().unwrap();
    assert_eq!(told.directories[0].denied.len(), 3, "one for each question: {told:?}");
    assert_refused(&office, removing.join().unwrap(), 20);
    assert_tree_eq(&before, &office.workspace.snapshot());

    // What somebody else is asked about is left to him, and the cancel waits for it.
    let session = Arc::clone(&office.session);
    let removing =
        std::thread::spawn(move || session.exec(&CommandRequest::shell("rm -rf ./*"), |_, _| {}));
    let question = questions.recv_timeout(common::PATIENCE).unwrap();
    let mut late = CommandRequest::shell("true");
    late.background = true;
    let late = office.session.spawn(late, |_, _| {}).unwrap();
    late.order(Order::Cancel);
    // Longer than a guest has to end a command.
    std::thread::sleep(Duration::from_secs(17));
    assert!(!removing.is_finished());
    office.session.answer(None, question, SafeguardDecision::Allow).unwrap();
    assert_eq!(removing.join().unwrap().unwrap().exit_code, 0);
    drop(late.wait()); // it may not have begun
    assert_eq!(office.qemu(), machine, "another guest");
    office.undo();
    assert_tree_eq(&before, &office.workspace.snapshot());
}

/// The question goes with the guest: whoever comes next is not kept waiting by it.
#[test]
fn a_guest_that_dies_while_somebody_is_asked_leaves_no_question_behind() {
    let test = "a_guest_that_dies_while_somebody_is_asked_leaves_no_question_behind";
    let Some(ground) = Ground::find(test) else { return };
    let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 20, 10));
    let office = Office::with(&ground, workspace, |options| {
        options.safeguards.delete_threshold = Some(5);
        options.safeguards.timeout = Duration::from_secs(600);
    });
    let before = office.workspace.snapshot();
    office.session.set_asker(Arc::new(AnsweredElsewhere));
    let (asked, questions) = channel();
    office.session.listen(move |event| {
        if let Event::SafeguardTriggered { request, .. } = event {
            let _ = asked.send(request.id); // the test has failed meanwhile
        }
    });
    let removing = office.session.spawn(CommandRequest::shell("rm -rf ./*"), |_, _| {}).unwrap();
    questions.recv_timeout(common::PATIENCE).unwrap();
    kill(office.qemu());
    let ended = removing.wait();
    assert!(matches!(ended, Err(SandboxError::CommandLost(_))), "{ended:?}");
    assert_tree_eq(&before, &office.workspace.snapshot());

    // Well before the first question would have been denied for want of an answer.
    assert_eq!(office.run("echo new > new").exit_code, 0);
    office.undo();
    let removing = office.session.spawn(CommandRequest::shell("rm -rf ./*"), |_, _| {}).unwrap();
    let question = questions.recv_timeout(common::PATIENCE).unwrap();
    office.session.answer(None, question, SafeguardDecision::Allow).unwrap();
    assert_eq!(removing.wait().unwrap().exit_code, 0);
    office.undo();
    assert_tree_eq(&before, &office.workspace.snapshot());
}

/// One that cannot be let go on after a question is given up, with that as the reason: whoever is in
/// it would wait for ever. The next command has another.
#[test]
fn a_machine_that_cannot_be_resumed_is_given_up_and_the_next_command_runs() {
    let test = "a_machine_that_cannot_be_resumed_is_given_up_and_the_next_command_runs";
    let Some(ground) = Ground::find(test) else { return };
    let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 20, 10));
    let office = Office::with(&ground, workspace, |options| {
        options.safeguards.delete_threshold = Some(5);
        options.safeguards.timeout = Duration::from_secs(600);
    });
    let before = office.workspace.snapshot();
    let heard = Arc::new(AtomicUsize::new(0));
    let ticking = office.tick(&heard);
    office.session.set_asker(Arc::new(AnsweredElsewhere));
    let (asked, questions) = channel();
    office.session.listen(move |event| {
        if let Event::SafeguardTriggered { request, .. } = event {
            let _ = asked.send(request.id); // the test has failed meanwhile
        }
    });
    let removing = office.session.spawn(CommandRequest::shell("rm -rf ./*"), |_, _| {}).unwrap();
    let question = questions.recv_timeout(common::PATIENCE).unwrap();
    standing_still(&heard);
    // QEMU answers to nothing any more.
    let qemu = rustix::process::Pid::from_raw(office.qemu() as i32).unwrap();
    rustix::process::kill_process(qemu, rustix::process::Signal::STOP).unwrap();
    office.session.answer(None, question, SafeguardDecision::Allow).unwrap();
    for lost in [removing.wait(), ticking.wait()] {
        let reason = lost.unwrap_err().to_string();
        assert!(reason.contains("could not be resumed"), "{reason}");
    }
    // Its step was beside a background command, and so is kept.
    office.undo();
    assert_tree_eq(&before, &office.workspace.snapshot());
    assert_eq!(office.output("ls | wc -l").trim(), "20");
}

/// What a machine has asked for when it is stopped, it has when it goes on: of whichever kind, and
/// however short the question was. The answer to none of it may be lost, or a program waits for ever.
#[test]
fn programs_that_read_while_somebody_is_asked_go_on_reading() {
    let test = "programs_that_read_while_somebody_is_asked_go_on_reading";
    let Some(ground) = Ground::find(test) else { return };
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::create_dir(root.join("read")).unwrap();
        fixtures::large_flat(&root.join("read"), 20, 10);
        fs::create_dir(root.join("remove")).unwrap();
        fixtures::large_flat(&root.join("remove"), 20, 10);
    });
    let office = Office::with(&ground, workspace, |options| {
        options.safeguards.delete_threshold = Some(5);
        options.safeguards.timeout = Duration::from_secs(60);
    });
    office.session.set_asker(Arc::new(AtOnce));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let heard = Arc::new(AtomicUsize::new(0));
            let listener = Arc::clone(&heard);
            let mut reading = CommandRequest::shell(
                "while :; do ls -l read > /dev/null; cat read/*; sync; echo; done",
            );
            reading.background = true;
            let running = office.session.spawn(reading, move |_, _| {
                listener.fetch_add(1, Ordering::SeqCst);
            });
            (running.unwrap(), heard)
        })
        .collect();
    for round in 0..6 {
        let denied = office.session.exec(&CommandRequest::shell("rm -rf remove"), |_, _| {});
        println!("{round}");
        assert_refused(&office, denied, 20);
        for (_, heard) in &readers {
            let so_far = heard.load(Ordering::SeqCst);
            eventually("it reads on", || heard.load(Ordering::SeqCst) > so_far);
        }
    }
    for (running, _) in readers {
        running.order(Order::Cancel);
        running.wait().unwrap();
    }
}

/// Says no before the machine has quite stopped.
#[derive(Debug)]
struct AtOnce;

impl Asker for AtOnce {
    fn ask(&self, _: &Question) -> Option<SafeguardDecision> {
        Some(SafeguardDecision::Deny)
    }
}

/// Waits until nothing more is heard; what was heard until then.
fn standing_still(heard: &AtomicUsize) -> usize {
    let mut at_first = 0;
    eventually("it stands still", || {
        at_first = heard.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(500));
        heard.load(Ordering::SeqCst) == at_first
    });
    at_first
}

/// CC-08 to CC-12: somebody in the guest who never stops writing holds no step open for long; what he
/// writes later is not part of it.
#[test]
fn a_step_of_a_guest_ends_although_somebody_else_in_it_goes_on_writing() {
    let test = "a_step_of_a_guest_ends_although_somebody_else_in_it_goes_on_writing";
    let Some(ground) = Ground::find(test) else { return };
    let office = Office::new(&ground, TempWorkspace::with_fixture(fixtures::small_tree));
    let before = office.workspace.snapshot();
    let mut writing = CommandRequest::shell("while :; do echo late > late; done");
    writing.background = true;
    let writing = office.session.spawn(writing, |_, _| {}).unwrap();
    let late = office.workspace.working().join("late");
    eventually("it writes", || late.exists());

    let began = std::time::Instant::now();
    let report = office.run("echo mine > mine");
    let took = began.elapsed();
    assert!((Duration::from_millis(100)..Duration::from_secs(20)).contains(&took), "{took:?}");
    let step = report.directories[0].step.expect("it changed something");
    fs::remove_file(&late).unwrap();
    eventually("it goes on writing", || late.exists());
    writing.order(Order::Cancel);
    writing.wait().unwrap();
    let is_ours = |step: &codeagent_interceptor::HistoryEntry| matches!(step, codeagent_interceptor::HistoryEntry::Step(step) if !step.id.is_ambient());
    let history = office.session.history(None).unwrap();
    assert_eq!(history.iter().filter(|entry| is_ours(entry)).count(), 1, "{history:?}");
    assert!(!is_ours(history.last().unwrap()), "{history:?}");
    let changes = office.session.changes(None, step).unwrap();
    assert!(format!("{changes:?}").contains("mine"), "{changes:?}");
    office.session.undo(None, history.len(), OnConflict::Force).unwrap();
    assert_tree_eq(&before, &office.workspace.snapshot());
}

/// A boot takes seconds, and nobody waits for it who does not want a guest: whoever asks how the
/// session is, stops it, or cancels the command that needs a new one.
#[test]
fn nobody_waits_for_a_boot_but_whoever_wants_a_guest() {
    let test = "nobody_waits_for_a_boot_but_whoever_wants_a_guest";
    let Some(ground) = Ground::find(test) else { return };
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let state = tempfile::tempdir().unwrap();
    let session = Session::new(options(&ground, &workspace, state.path())).unwrap();
    let starting = Arc::clone(&session);
    let starting = std::thread::spawn(move || starting.start());
    eventually("it boots", || machines() == 1);
    assert_eq!(session.status().unwrap().state, State::Stopped);
    assert!(!starting.is_finished(), "the boot was waited for");
    session.stop().unwrap();
    let started = starting.join().unwrap();
    assert!(matches!(started, Err(SandboxError::Cancelled)), "{started:?}");
    assert_eq!(descendants(std::process::id()), []);

    session.start().unwrap();
    let commands = two_that_wait_for_a_guest(&session);
    assert_eq!(session.status().unwrap().state, State::Running);
    for command in &commands {
        session.cancel(command.id).unwrap();
    }
    for command in commands {
        let ended = command.wait();
        assert!(matches!(ended, Err(SandboxError::Cancelled)), "{ended:?}");
    }
    assert_eq!(output(&session, "echo here"), "here\n");

    let commands = two_that_wait_for_a_guest(&session);
    session.stop().unwrap();
    for command in commands {
        let ended = command.wait();
        // The second may not have come as far as to wait.
        let is_over = matches!(ended, Err(SandboxError::Cancelled | SandboxError::NotRunning));
        assert!(is_over, "{ended:?}");
    }
    assert_eq!(descendants(std::process::id()), []);
}

/// The machine has died, and two commands want another; the second waits for what the first has
/// started.
fn two_that_wait_for_a_guest(session: &Arc<Session>) -> [Running; 2] {
    let found = descendants(std::process::id());
    let machine = found.iter().find(|(_, name)| name.starts_with("qemu-system")).unwrap().0;
    kill(machine);
    eventually("it is gone", || machines() == 0);
    let first = session.spawn(CommandRequest::shell("true"), |_, _| {}).unwrap();
    eventually("it boots", || machines() == 1);
    let mut second = CommandRequest::shell("true");
    second.background = true;
    [first, session.spawn(second, |_, _| {}).unwrap()]
}

/// How many of ours run.
fn machines() -> usize {
    let found = descendants(std::process::id());
    found.iter().filter(|(_, name)| name.starts_with("qemu-system")).count()
}

/// Each has a guest of its own; what one does the other sees, and their steps come one after the
/// other.
#[test]
fn two_sessions_have_guests_in_one_folder() {
    let Some(ground) = Ground::find("two_sessions_have_guests_in_one_folder") else { return };
    let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 40, 100));
    let first = Office::with(&ground, workspace, |options| options.share = true);
    let second = first.beside(&ground);
    let before = first.workspace.snapshot();
    // Root in its guest would have it for writing, as the first one has.
    let reader = first.beside_with(&ground, |options| {
        options.folders[0].access = Access::ReadOnly;
    });
    let refused = reader.start().unwrap_err();
    assert!(refused.to_string().contains("so that no guest can have it read-only"), "{refused}");
    first.run("rm -f ./*1*; echo first > made");
    assert_eq!(output(&second, "cat made; ls | grep -c 1 || :"), "first\n0\n");

    let at_once: Vec<_> = [&first.session, &second]
        .into_iter()
        .map(|session| {
            let session = Arc::clone(session);
            let script = "for i in $(seq 30); do echo $i >> shared; done";
            std::thread::spawn(move || session.exec(&CommandRequest::shell(script), |_, _| {}))
        })
        .collect();
    for command in at_once {
        assert_eq!(command.join().unwrap().unwrap().exit_code, 0);
    }
    assert_eq!(output(&second, "wc -l < shared").trim(), "60");
    second.undo(None, 1, OnConflict::Refuse).unwrap();
    assert_eq!(first.output("wc -l < shared").trim(), "30");
    first.session.undo(None, 2, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &first.workspace.snapshot());

    // The worker that serves both goes with the first; the second goes on with its own.
    first.session.stop().unwrap();
    assert_eq!(output(&second, "ls | wc -l").trim(), "40");
    output(&second, "rm -f ./*");
    second.undo(None, 1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &first.workspace.snapshot());
    second.stop().unwrap();
}

/// SL-06, SL-07: whatever dies, the folder is at a step boundary, and the next command runs.
#[test]
fn whatever_dies_the_folder_is_at_a_boundary_and_the_next_command_runs() {
    let test = "whatever_dies_the_folder_is_at_a_boundary_and_the_next_command_runs";
    let Some(ground) = Ground::find(test) else { return };
    let workspace = TempWorkspace::with_fixture(|root| fixtures::large_flat(root, 40, 100));
    let office = Office::new(&ground, workspace);
    let before = office.workspace.snapshot();
    let busy = "rm -f ./*1* ; echo begun; i=0; while :; do i=$((i+1)); echo $i > new$i; done";

    for who in ["qemu", "worker", "guest"] {
        println!("{who}");
        let (begun, has_begun) = channel();
        let session = Arc::clone(&office.session);
        let script = match who {
            // The kernel of the guest gives up.
            "guest" => {
                format!("({busy}) & sleep 1; echo begun; echo c > /proc/sysrq-trigger; wait")
            }
            _ => busy.to_owned(),
        };
        let command = std::thread::spawn(move || {
            session.exec(&CommandRequest::shell(script), |_, _| {
                let _ = begun.send(());
            })
        });
        has_begun.recv_timeout(common::PATIENCE).unwrap();
        match who {
            "qemu" => kill(office.qemu()),
            "worker" => kill(office.worker()),
            _ => {}
        }
        let lost = command.join().unwrap();
        let Err(SandboxError::CommandLost(reason)) = lost else { panic!("{who}: {lost:?}") };
        let expected = match who {
            "qemu" => "QEMU was killed by signal 9",
            "worker" => "a worker that served its folders is gone",
            _ => "the kernel of the guest panicked",
        };
        assert!(reason.contains(expected), "{who}: {reason}");
        assert_tree_eq(&before, &office.workspace.snapshot());
        assert_eq!(office.output("ls | wc -l").trim(), "40", "after the death of {who}");
        office.run("rm -f ./*");
        office.undo();
        assert_tree_eq(&before, &office.workspace.snapshot());
    }
}

/// SL-02: several folders, one of them read-only; commands begin in the first.
#[test]
fn several_folders_are_at_their_own_paths_and_read_only_ones_stay_as_they_are() {
    let test = "several_folders_are_at_their_own_paths_and_read_only_ones_stay_as_they_are";
    let Some(ground) = Ground::find(test) else { return };
    let other = TempWorkspace::with_fixture(fixtures::small_tree);
    let reference = TempWorkspace::with_fixture(fixtures::small_tree);
    let workspace = TempWorkspace::with_fixture(fixtures::small_tree);
    let office = Office::with(&ground, workspace, |options| {
        let mut second = FolderOptions::new(other.working());
        second.undo_dir = Some(other.undo().into());
        second.label = Some("other".into());
        let mut third = FolderOptions::new(reference.working());
        third.undo_dir = Some(reference.undo().into());
        third.label = Some("reference".into());
        third.access = Access::ReadOnly;
        options.folders.extend([second, third]);
    });
    let (first, before, kept) =
        (office.workspace.snapshot(), other.snapshot(), reference.snapshot());
    let (here, there, fixed) = (office.workspace.working(), other.working(), reference.working());
    assert_eq!(office.output("pwd").trim(), here.display().to_string());

    let script = format!("rm -rf ./* '{}'/*; rm -rf '{}'/*", there.display(), fixed.display());
    let report = office.run(&script);
    assert_ne!(report.exit_code, 0, "nothing can be removed from what is read-only");
    assert_eq!(report.directories.len(), 2);
    assert_tree_eq(&kept, &reference.snapshot());
    assert_eq!(fs::read_dir(there).unwrap().count(), 0);
    office.undo();
    office.session.undo(Some("other"), 1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&first, &office.workspace.snapshot());
    assert_tree_eq(&before, &other.snapshot());
}
