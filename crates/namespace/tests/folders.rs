//! Working directories: several at once, read-only ones, and wherever they may lie.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::ffi::OsStr;
use std::fs;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::channel;

use codeagent_common::{RelPathBuf, StepId};
use codeagent_control::Stream;
use codeagent_interceptor::{ClosedStep, OnConflict};
use codeagent_namespace::{
    Executor, Finished, KeptStep, Policy, RunError, Steps, Surroundings, View, ViewChoice,
    WorkFolder,
};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use codeagent_worker::{Client, FileChange, Request};
use common::{PROGRAM, Session, as_ordinary_user_with_fuse, sh, shell, start_worker};

const VIEWS: [View; 2] = [View::Transactional, View::Live];

fn executor(state: &Path) -> Executor {
    let surroundings = Surroundings::new(Policy::new(state.join("state"))).unwrap();
    Executor::with_program(surroundings, PROGRAM)
        .with_live_options(codeagent_mount::live_options(2))
}

fn run(
    executor: &Executor,
    folders: &[WorkFolder<'_>],
    view: View,
    script: &str,
) -> (Finished, String) {
    let (_orders, taken) = channel();
    let mut said = Vec::new();
    let collect = |stream, data: &[u8]| {
        if stream == Stream::Stdout {
            said.extend_from_slice(data);
        }
    };
    let choice = ViewChoice::Only(view);
    let finished = executor.run(folders, shell(script), choice, taken, collect).unwrap();
    (finished, String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn several_folders_are_steps_of_their_own_and_read_only_ones_stay_as_they_are() {
    for view in VIEWS {
        let fixture = |dir: &Path| sh("echo old > file; mkdir dir", dir);
        let [one, two, fixed] = [(); 3].map(|()| TempWorkspace::with_fixture(fixture));
        let workers = [&one, &two].map(|folder| start_worker(folder.working(), folder.undo()));
        let state = tempfile::tempdir().unwrap();
        let folders = [
            WorkFolder { path: one.working(), worker: Some(workers[0].client()) },
            WorkFolder { path: two.working(), worker: Some(workers[1].client()) },
            WorkFolder { path: fixed.working(), worker: None },
        ];
        let before = [&one, &two, &fixed].map(TempWorkspace::snapshot);
        let script = format!(
            "set -e; echo new > file; echo new > {0}/file; mv file {0}/dir/moved; cat {1}/file; set +e
             for attempt in 'echo x > {1}/file' 'rm -r {1}/dir' 'touch {1}/new' 'chmod 777 {1}/file' 'mv {1}/file .'; do
                 sh -c \"$attempt\" 2>&1 | grep -c 'Read-only file system'
             done",
            two.working().display(),
            fixed.working().display(),
        );
        let (finished, said) = run(&executor(state.path()), &folders, view, &script);
        assert_eq!(said, "old\n1\n1\n1\n1\n1\n", "{view:?}");
        assert!(finished.steps[2].is_none());
        assert_tree_eq(&before[2], &fixed.snapshot());
        let after = [&one, &two].map(TempWorkspace::snapshot);
        assert!(before[0] != after[0] && before[1] != after[1]);
        // Each by itself, in either order.
        workers[1].client().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before[1], &two.snapshot());
        assert_tree_eq(&after[0], &one.snapshot());
        workers[0].client().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before[0], &one.snapshot());
        workers[1].client().redo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&after[1], &two.snapshot());
    }
}

/// A connection to a worker that breaks instead of passing on the message of this number.
fn connection_that_breaks(undo: &Path, last: usize) -> Client {
    let (theirs, client) = UnixStream::pair().unwrap();
    let worker = UnixStream::connect(undo.join(codeagent_interceptor::SOCKET)).unwrap();
    let (mut back, mut from_worker) = (theirs.try_clone().unwrap(), worker.try_clone().unwrap());
    std::thread::spawn(move || std::io::copy(&mut from_worker, &mut back));
    std::thread::spawn(move || {
        for _ in 1..last {
            let mut head = [0; 4];
            (&theirs).read_exact(&mut head).unwrap();
            let mut body = vec![0; u32::from_le_bytes(head) as usize];
            (&theirs).read_exact(&mut body).unwrap();
            (&worker).write_all(&[&head, body.as_slice()].concat()).unwrap();
        }
        (&theirs).read_exact(&mut [0]).unwrap();
        theirs.shutdown(Shutdown::Both).unwrap();
        worker.shutdown(Shutdown::Both).unwrap();
    });
    Client::over(client, |_| {}).unwrap()
}

#[test]
fn what_cannot_be_kept_in_one_folder_is_kept_in_none() {
    let fixture = |dir: &Path| sh("echo old > file; mkdir dir", dir);
    let [one, two] = [(); 2].map(|()| TempWorkspace::with_fixture(fixture));
    let workers = [&one, &two].map(|folder| start_worker(folder.working(), folder.undo()));
    let before = [&one, &two].map(TempWorkspace::snapshot);
    // Begun, staged, adopted; and then it cannot be ended.
    let breaking = connection_that_breaks(two.undo(), 4);
    let state = tempfile::tempdir().unwrap();
    let folders = [
        WorkFolder { path: one.working(), worker: Some(workers[0].client()) },
        WorkFolder { path: two.working(), worker: Some(&breaking) },
    ];
    let script = format!("echo new > file; rm -r dir; echo new > {}/file", two.working().display());
    let (_orders, taken) = channel();
    let choice = ViewChoice::Only(View::Transactional);
    let executor = executor(state.path());
    let failed = executor.run(&folders, shell(&script), choice, taken, |_, _| {});
    assert!(matches!(failed, Err(RunError::NotKept { .. })), "{failed:?}");
    assert_tree_eq(&before[0], &one.snapshot());
    assert!(workers[0].client().history().unwrap().is_empty());
    workers[1].client().abort_step().unwrap();
    assert_tree_eq(&before[1], &two.snapshot());
}

#[test]
fn what_may_be_left_of_a_command_that_is_given_up_is_named() {
    let folder = TempWorkspace::with_fixture(|dir| sh("echo old > file", dir));
    let worker = start_worker(folder.working(), folder.undo());
    let client = worker.client();
    let folders = [WorkFolder { path: folder.working(), worker: Some(client) }];
    let write = || {
        let path = RelPathBuf::new(b"new".to_vec()).unwrap();
        client.change(FileChange::Write { path, content: b"new".to_vec().into() }).unwrap();
    };
    let kept = |step| vec![KeptStep { folder: folder.working().into(), step }];
    let open = |view| Steps::open(&folders, "work", view).unwrap();

    let begin = Request::BeginTransaction { label: "all".into() };
    let transaction: StepId = client.call(begin).unwrap();
    let steps = open(View::Live);
    write();
    assert_eq!(steps.abort(&folders), kept(transaction));
    assert_eq!(open(View::Live).abort_unbegun(&folders), []);
    assert_eq!(open(View::Transactional).abort(&folders), []);
    client.call::<StepId>(Request::RollbackTransaction).unwrap();
    assert!(!folder.path("new").exists());

    let steps = open(View::Live);
    write();
    assert_eq!(steps.abort(&folders), []);
    assert!(!folder.path("new").exists());

    // Somebody else has ended it meanwhile.
    let steps = open(View::Live);
    write();
    let step = client.status().unwrap().open_step.unwrap();
    client.close_step(Some(0)).unwrap();
    assert_eq!(steps.abort(&folders), kept(step));
}

#[test]
fn a_folder_without_a_worker_alone_can_only_be_read() {
    let fixed = TempWorkspace::with_fixture(|dir| sh("echo old > file", dir));
    let state = tempfile::tempdir().unwrap();
    let folders = [WorkFolder { path: fixed.working(), worker: None }];
    let script = "cat file; echo x > file; echo x > ~/scratch && cat ~/scratch";
    let (_, said) = run(&executor(state.path()), &folders, View::Transactional, script);
    assert_eq!(said, "old\nx\n");
}

/// Whatever the path is, the folder has it inside, and what is done there is a step.
fn work_in(workspace: TempWorkspace, policy: impl Fn(&mut Policy)) {
    let parent = workspace.working().parent().unwrap().parent().unwrap().to_owned();
    drop(workspace);
    for view in VIEWS {
        let workspace = TempWorkspace::on(&parent).filled(|dir| sh("mkdir a; echo x > a/x", dir));
        let session = Session::with(workspace, &policy).seen(view);
        let before = session.snapshot();
        let ran = session.run("pwd; mv a/x y; rm -r a; echo new > z; cd /; cat \"$OLDPWD/y\"");
        let inside = session.workspace.working().as_os_str().as_bytes();
        let expected = [inside, b"\nx\n"].concat();
        assert_eq!(ran.stdout, String::from_utf8_lossy(&expected), "{view:?} {ran:?}");
        assert!(matches!(ran.step().closed, ClosedStep::Recorded { .. }), "{ran:?}");
        let after = session.snapshot();
        session.worker().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &session.snapshot());
        session.worker().redo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&after, &session.snapshot());
    }
}

#[test]
fn a_folder_in_the_home() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir_all(home.path().join("code/.cargo")).unwrap();
    fs::create_dir_all(home.path().join(".cargo")).unwrap();
    work_in(TempWorkspace::on(&home.path().join("code")), |policy| {
        policy.home = Some(home.path().into());
    });
    // In one of the directories in which tools live.
    work_in(TempWorkspace::on(&home.path().join(".cargo")), |policy| {
        policy.home = Some(home.path().into());
    });
}

#[test]
fn a_folder_in_tmp() {
    work_in(TempWorkspace::on(Path::new("/tmp")), |_| {});
}

#[test]
fn a_folder_in_the_other_tmp() {
    work_in(TempWorkspace::on(Path::new("/var/tmp")), |_| {});
}

#[test]
fn folders_with_strange_names() {
    let holder = tempfile::tempdir_in("/dev/shm").unwrap();
    let long = "n".repeat(250);
    for name in [
        &b"with spaces and 'quotes\""[..],
        b"commas,colons:and\\backslashes",
        b"lowerdir=x,upperdir=y",
        b"not text \xff\xfe",
        b"line\nbreak\ttab",
        b"-dash",
        long.as_bytes(),
    ] {
        let dir = holder.path().join(OsStr::from_bytes(name));
        fs::create_dir(&dir).unwrap();
        work_in(TempWorkspace::on(&dir), |_| {});
    }
}

#[test]
fn a_folder_behind_a_symlink() {
    let holder = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir(holder.path().join("real")).unwrap();
    std::os::unix::fs::symlink("real", holder.path().join("link")).unwrap();
    work_in(TempWorkspace::on(&holder.path().join("link")), |_| {});
}

/// Where an ordinary user may look, and owns nothing.
#[test]
fn a_folder_of_somebody_else_is_seen_in_the_view_that_is_possible() {
    let test = "a_folder_of_somebody_else_is_seen_in_the_view_that_is_possible";
    as_ordinary_user_with_fuse(test, || {
        let folder = Path::new("/usr/share");
        let state = tempfile::tempdir().unwrap();
        let worker = start_worker(folder, &state.path().join("undo"));
        let folders = [WorkFolder { path: folder, worker: Some(worker.client()) }];
        let run = |choice| {
            let (_orders, taken) = channel();
            executor(state.path()).run(&folders, shell("pwd; ls"), choice, taken, |_, _| {})
        };
        let finished = run(ViewChoice::Auto).unwrap();
        assert_eq!((finished.view, finished.outcome.exit_code()), (View::Live, Some(0)));
        assert!(finished.other_view.is_some_and(|why| why.starts_with("staging changes: ")));
        let refused = run(ViewChoice::Only(View::Transactional));
        assert!(matches!(refused, Err(RunError::Start(_))), "{refused:?}");
    });
}
