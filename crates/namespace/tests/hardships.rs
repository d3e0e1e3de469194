//! Commands that do not go well, and folders that somebody else works in.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::fs;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use codeagent_common::SafeguardConfig;
use codeagent_control::{Cause, CommandLine, Exec, ExitStatus, Leftovers, Order, Outcome, Stream};
use codeagent_interceptor::{ClosedStep, OnConflict};
use codeagent_namespace::{RunError, View, WorkFolder};
use codeagent_test_support::filesystems::{SmallDisk, skip};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use codeagent_worker::{Request, Settings, WorkerProcess, WorkerSpec};
use common::{PROGRAM, Session, eventually, processes_that_name, sh, shell, start_worker};
use rustix::process::{Pid, Signal, kill_process};

const VIEWS: [View; 2] = [View::Transactional, View::Live];

/// How many overlays a process has open, and how many descriptors wait in its sockets.
fn overlays_held(pid: u32) -> (usize, usize) {
    const OVERLAYFS: rustix::fs::FsWord = 0x794c_7630;
    let entries = |dir: &str| fs::read_dir(format!("/proc/{pid}/{dir}")).unwrap();
    let is_overlay = |path: &Path| rustix::fs::statfs(path).is_ok_and(|fs| fs.f_type == OVERLAYFS);
    let held = entries("fd").filter(|fd| is_overlay(&fd.as_ref().unwrap().path())).count();
    let texts = entries("fdinfo").filter_map(|info| fs::read_to_string(info.unwrap().path()).ok());
    let waiting = texts.filter_map(|text| {
        text.lines().find_map(|line| line.strip_prefix("scm_fds:")?.trim().parse::<usize>().ok())
    });
    (held, waiting.sum())
}

/// Of this process, the child from which another one descends.
fn child_above(pid: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:")).unwrap();
    match parent.trim().parse().unwrap() {
        parent if parent == std::process::id() => pid,
        parent => child_above(parent),
    }
}

/// The guard of the command whose command line this is in.
fn guard_of(marker: &str) -> u32 {
    child_above(processes_that_name(marker)[0])
}

/// When an overlay goes, the kernel writes out whatever waits to be written on that disk. It goes with
/// the last who holds it: that has to be somebody whose end nobody waits for.
#[test]
fn the_guard_holds_the_overlays_so_that_no_command_waits_until_a_disk_is_written() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".cargo")).unwrap();
    let policy_home = Some(home.path().to_owned());
    let session = Session::with(TempWorkspace::new(), |policy| policy.home = policy_home);
    let marker = marker("held");
    let script = format!("echo alive; sleep 1000; : # {marker}");
    let (orders, taken) = channel();
    let ran = session.run_watched(Exec { grace_ms: 300, ..shell(&script) }, taken, |_| {
        let guard = guard_of(&marker);
        // Those of the folder and of the toolchain; and it takes them out of its socket.
        eventually("it holds both", || overlays_held(guard) == (2, 0));
        let works_in = fs::read_link(format!("/proc/{guard}/cwd")).unwrap();
        assert_eq!(works_in, Path::new("/"), "it keeps nobody's directory in use");
        orders.send(Order::Cancel).unwrap();
    });
    assert_eq!(ran.unwrap().stdout, "alive\n");
}

/// A process that does nothing until this value is dropped.
struct Stopped(Pid);

impl Stopped {
    fn process(pid: u32) -> Self {
        let stopped = Self(Pid::from_raw(pid.cast_signed()).unwrap());
        kill_process(stopped.0, Signal::STOP).unwrap();
        eventually("it has stopped", || stopped.still_is());
        stopped
    }

    fn still_is(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0)).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|fields| fields.trim_start().starts_with('T'))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// As one does that is in the kernel until a slow disk is written.
#[test]
fn a_guard_that_takes_its_time_holds_nobody_up() {
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".cargo")).unwrap();
    for view in VIEWS {
        let workspace = TempWorkspace::with_fixture(|dir| sh("mkdir d; echo old > d/old", dir));
        let session = Session::with(workspace, |policy| policy.home = Some(home.path().to_owned()))
            .seen(view);
        let before = session.snapshot();
        let go_on = session.state.path().join("state/persistent/tmp/go-on");
        let marker = marker(&format!("slow-{view:?}"));
        let script = format!(
            "rm -r d; echo new > new; echo new > ~/.cargo/new; echo alive
             until [ -e /tmp/go-on ]; do sleep 0.01; done # {marker}"
        );
        let (_orders, taken) = channel();
        let mut guard = None;
        let ran = session.run_watched(shell(&script), taken, |_| {
            guard.get_or_insert_with(|| Stopped::process(guard_of(&marker)));
            fs::write(&go_on, "").unwrap();
        });
        let ran = ran.unwrap();
        let guard = guard.unwrap();
        assert_eq!((ran.code(), &*ran.stdout), (Some(0), "alive\n"), "{view:?}: {ran:?}");
        assert!(guard.still_is(), "{view:?}");
        let after = session.snapshot();
        assert_eq!(fs::read_to_string(session.workspace.path("new")).unwrap(), "new\n");
        session.worker().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &session.snapshot());
        session.worker().redo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&after, &session.snapshot());
        assert_eq!(session.run("cat ~/.cargo/new").stdout, "new\n", "the next one: {view:?}");
        assert!(guard.still_is(), "{view:?}");
        let place = PathBuf::from(format!("/proc/{}", guard.0));
        drop(guard);
        eventually("it ends and is reaped", || !place.exists());
        assert_eq!(processes_that_name(&marker), Vec::<u32>::new());
    }
}

/// What a command is called that must not outlive its sandbox.
fn marker(what: &str) -> String {
    format!("codeagent-{what}-{}", std::process::id())
}

/// Waits, in a script, for a process with this name, and says that it has lived.
fn until_alive(marker: &str) -> String {
    // Its name, and not that of a shell that is told to become it.
    format!("until grep -qsa ^{marker} /proc/[0-9]*/cmdline; do sleep 0.01; done; echo alive")
}

#[test]
fn a_daemon_ends_with_the_command_that_started_it() {
    for view in VIEWS {
        let session = Session::new(|_| {}).seen(view);
        let marker = marker("daemon");
        let until_alive = until_alive(&marker);
        // Forked twice, in a session of its own, deaf to signals, with nothing of ours open.
        let script = format!(
            "(setsid bash -c 'trap \"\" HUP TERM INT; (exec -a {marker} sleep 1000) & wait' \
             </dev/null >/dev/null 2>&1 &) & {until_alive}; echo made > file"
        );
        for leftovers in [Leftovers::Keep, Leftovers::Kill] {
            let started = Instant::now();
            let ran = session.try_run(Exec { leftovers, grace_ms: 300, ..shell(&script) }).unwrap();
            assert_eq!((ran.code(), &*ran.stdout), (Some(0), "alive\n"), "{ran:?}");
            assert!(started.elapsed() < Duration::from_secs(10));
            assert_eq!(processes_that_name(&marker), Vec::<u32>::new());
        }
        assert_eq!(fs::read_to_string(session.workspace.path("file")).unwrap(), "made\n");
    }
}

#[test]
fn a_cancelled_command_that_ignores_it_is_ended() {
    for view in VIEWS {
        let session = Session::new(|_| {}).seen(view);
        let before = session.snapshot();
        let (orders, taken) = channel();
        let marker = marker("stubborn");
        let script = format!(
            "trap '' TERM INT HUP QUIT; (exec -a {marker} sleep 1000) & echo x > file; {}; \
             while :; do sleep 1; done",
            until_alive(&marker)
        );
        let mut exec =
            Exec::new(CommandLine::Argv(["bash", "-c", &script].map(Into::into).to_vec()));
        exec.grace_ms = 300;
        let started = Instant::now();
        let ran = session.run_watched(exec, taken, |said| {
            if said == b"alive\n" {
                orders.send(Order::Cancel).unwrap();
            }
        });
        let ran = ran.unwrap();
        assert_eq!(ran.stdout, "alive\n", "{ran:?}");
        let Outcome::Completed { cause, .. } = ran.finished.outcome else { panic!("{ran:?}") };
        assert_eq!(cause, Cause::Cancelled);
        assert!(started.elapsed() < Duration::from_secs(8));
        assert_eq!(processes_that_name(&marker), Vec::<u32>::new());
        session.worker().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &session.snapshot());
    }
}

#[test]
fn a_command_that_is_killed_says_by_which_signal() {
    for view in VIEWS {
        let session = Session::new(|_| {}).seen(view);
        for signal in [6, 9, 11, 15] {
            let ran = session.run(&format!("echo {signal} > file; kill -{signal} $$; sleep 10"));
            let Outcome::Completed { status, .. } = ran.finished.outcome else { panic!("{ran:?}") };
            assert_eq!(status, ExitStatus::Signal(signal));
            let ClosedStep::Recorded { step, .. } = &ran.step().closed else { panic!("{ran:?}") };
            assert_eq!(step.exit_code, Some(128 + signal));
        }
    }
}

#[test]
fn a_hundred_megabytes_on_both_streams_arrive_exactly() {
    const LINE: &[u8] = b"0123456789abcde\n";
    const SIZE: usize = 100 << 20;
    let session = Session::new(|_| {});
    let folder = WorkFolder { path: session.workspace.working(), worker: Some(session.worker()) };
    let script = format!(
        "yes 0123456789abcde | head -c {SIZE} & yes 0123456789abcde | head -c {SIZE} >&2 & wait"
    );
    let mut received = [0_usize; 2];
    let (_orders, taken) = channel();
    let finished =
        session.executor.run(&[folder], shell(&script), session.choice, taken, |stream, data| {
            let at = &mut received[usize::from(stream == Stream::Stderr)];
            for byte in data {
                assert_eq!(*byte, LINE[*at % LINE.len()], "byte {at} of {stream:?}");
                *at += 1;
            }
        });
    assert_eq!(finished.unwrap().outcome.exit_code(), Some(0));
    assert_eq!(received, [SIZE; 2]);
}

/// What a background process still writes when its command has ended is there or not, but never
/// half a step: what the folder has then is what the step has.
#[test]
fn files_that_are_still_open_when_the_command_ends_are_in_the_step() {
    for view in VIEWS {
        let session = Session::new(|dir| sh("echo old > open; echo old > other", dir)).seen(view);
        let before = session.snapshot();
        let script = "exec 3>open 4>>other 5>new; echo early >&3; echo early >&4; rm other
             (while :; do echo late >&3; echo late >&4; echo late >&5; done) >/dev/null 2>&1 &
             sleep 0.1; echo done";
        let ran = session.try_run(Exec { leftovers: Leftovers::Keep, ..shell(script) }).unwrap();
        assert_eq!(ran.stdout, "done\n");
        let after = session.snapshot();
        std::thread::sleep(Duration::from_millis(100));
        assert_tree_eq(&after, &session.snapshot());
        assert!(fs::read_to_string(session.workspace.path("open")).unwrap().starts_with("early\n"));
        session.worker().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &session.snapshot());
        session.worker().redo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&after, &session.snapshot());
    }
}

/// A folder on a disk of its own, which is nearly as full as it can be without a complaint.
fn on_a_small_disk(test: &str, view: View) -> Option<(Session, SmallDisk, tempfile::TempDir)> {
    let holder = tempfile::tempdir_in("/dev/shm").unwrap();
    let Some(disk) = SmallDisk::mount(&holder.path().join("disk"), "160M") else {
        skip(test, "mounting is not allowed");
        return None;
    };
    let fixture = "mkdir d; for i in $(seq 50); do echo $i > d/$i; done; echo old > f";
    let workspace = TempWorkspace::on(disk.path()).filled(|dir| sh(fixture, dir));
    Some((Session::with(workspace, |_| {}).seen(view), disk, holder))
}

const FILL: &str = "rm -r d; echo new > f; head -c 500M /dev/zero > big; echo $?";

/// Nothing holds it back, so there is no room left to record what it did. What holds the room must go
/// before anybody needs it, even if that takes a moment.
#[test]
fn what_fills_the_disk_is_not_kept() {
    let test = "what_fills_the_disk_is_not_kept";
    let Some((session, disk, _holder)) = on_a_small_disk(test, View::Transactional) else { return };
    let before = session.snapshot();
    let go_on = session.state.path().join("state/persistent/tmp/go-on");
    let marker = marker("filled");
    let script = format!("{FILL}; until [ -e /tmp/go-on ]; do sleep 0.01; done # {marker}");
    let (_orders, taken) = channel();
    let mut guard = None;
    let refused = std::thread::scope(|scope| {
        session.run_watched(shell(&script), taken, |_| {
            let slow = Stopped::process(*guard.get_or_insert_with(|| guard_of(&marker)));
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(500));
                drop(slow);
            });
            fs::write(&go_on, "").unwrap();
        })
    });
    assert!(!Path::new(&format!("/proc/{}", guard.unwrap())).exists(), "it was waited for");
    let Err(RunError::NotKept { outcome, reason }) = refused else { panic!("{refused:?}") };
    assert_eq!(outcome.exit_code(), Some(0), "of the last loop");
    assert!(reason.to_string().contains("bytes are free where the undo log is kept"), "{reason}");
    assert_tree_eq(&before, &session.snapshot());
    let free = disk.free_bytes();
    assert!(free > 100 << 20, "its space is given back: {free}");
    assert_eq!(session.run("rm -r d; echo new > f; ls").stdout, "f\n", "the next one works");
    session.worker().undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &session.snapshot());
}

/// Each write is refused in time; what is added at the end counts like any other.
#[test]
fn what_would_fill_the_disk_is_refused_in_the_live_view() {
    let test = "what_would_fill_the_disk_is_refused_in_the_live_view";
    for way in [">", ">>"] {
        let Some((session, disk, _holder)) = on_a_small_disk(test, View::Live) else { return };
        let before = session.snapshot();
        let ran = session.run(&FILL.replace("> big", &format!("{way} big")));
        assert!(ran.stderr.contains("No space left on device"), "{ran:?}");
        assert_eq!(ran.stdout, "1\n");
        assert!(disk.free_bytes() > 32 << 20, "{way}: {}", disk.free_bytes());
        let after = session.snapshot();
        for _ in 0..2 {
            session.worker().undo(1, OnConflict::Refuse).unwrap();
            assert_tree_eq(&before, &session.snapshot());
            session.worker().redo(1, OnConflict::Refuse).unwrap();
            assert_tree_eq(&after, &session.snapshot());
        }
    }
}

#[test]
fn what_the_user_does_to_attributes_and_names_meanwhile_is_told_and_kept() {
    let session = Session::new(|dir| {
        let script = "mkdir d other; for f in touched edited moved gone; do echo 1 > $f; done
                      echo 1 > other/kept; chmod 644 touched; chmod 755 d other";
        sh(script, dir);
    });
    let path = |name| session.workspace.path(name);
    let mode = |name| fs::metadata(path(name)).unwrap().permissions().mode() & 0o777;
    let (_orders, taken) = channel();
    let script = "touch touched; echo 2 > d/new; echo 2 > edited; mv moved d/moved; echo 2 >> gone
                  echo 2 > other/kept; echo ready; sleep 0.3";
    let ran = session.run_watched(shell(script), taken, |said| {
        if said == b"ready\n" {
            for (name, mode) in [("touched", 0o600), ("d", 0o700)] {
                fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
            }
            fs::remove_file(path("edited")).unwrap();
            fs::rename(path("gone"), path("elsewhere")).unwrap();
        }
    });
    let ran = ran.unwrap();
    let mut told: Vec<_> =
        ran.step().report.changed_meanwhile.iter().map(ToString::to_string).collect();
    told.sort();
    assert_eq!(told, ["d", "edited", "gone", "touched"], "{ran:?}");
    session.worker().undo(1, OnConflict::Refuse).unwrap();
    assert_eq!((mode("touched"), mode("d")), (0o600, 0o700), "theirs are back");
    assert!(!path("edited").exists() && !path("gone").exists());
    assert_eq!(fs::read_to_string(path("moved")).unwrap(), "1\n");
    assert_eq!(fs::read_to_string(path("elsewhere")).unwrap(), "1\n");
}

/// The user saves files while the command has its own versions of them.
#[test]
fn what_the_user_saves_meanwhile_is_told_and_kept() {
    let session = Session::new(|dir| sh("echo 1 > a; echo 1 > b; echo 1 > c; echo 1 > d", dir));
    let path = |name| session.workspace.path(name);
    let (_orders, taken) = channel();
    let script = "echo 2 > a; rm b; echo 2 > new; echo ready; sleep 0.3; cat c";
    let ran = session.run_watched(shell(script), taken, |said| {
        if said == b"ready\n" {
            for name in ["a", "b", "c", "new"] {
                fs::write(path(name), "mine\n").unwrap();
            }
        }
    });
    let ran = ran.unwrap();
    let mut told: Vec<_> =
        ran.step().report.changed_meanwhile.iter().map(ToString::to_string).collect();
    told.sort();
    assert_eq!(told, ["a", "b", "new"], "{ran:?}");
    let read = |name| fs::read_to_string(path(name)).ok();
    assert_eq!(read("a").as_deref(), Some("2\n"));
    assert_eq!((read("b"), read("new").as_deref()), (None, Some("2\n")));
    assert_eq!(read("c").as_deref(), Some("mine\n"), "the command did not change it");
    session.worker().undo(1, OnConflict::Refuse).unwrap();
    for name in ["a", "b", "c", "new"] {
        assert_eq!(read(name).as_deref(), Some("mine\n"), "{name}: the user's version is back");
    }
    assert_eq!(read("d").as_deref(), Some("1\n"));
}

/// What goes with a directory may be somebody's work, too.
#[test]
fn what_the_user_saves_in_a_directory_that_goes_is_told_and_kept() {
    let session = Session::new(|dir| {
        sh("mkdir -p d/e o; echo 1 > d/e/a; echo 1 > d/b; echo 1 > o/c; echo 1 > o/d", dir);
    });
    let path = |name| session.workspace.path(name);
    let (_orders, taken) = channel();
    let script = "rm -r d; rm -r o; mkdir o; echo 2 > o/c; echo ready; sleep 0.3";
    let ran = session.run_watched(shell(script), taken, |said| {
        if said == b"ready\n" {
            for name in ["d/e/a", "d/e/new", "o/c"] {
                fs::write(path(name), "mine\n").unwrap();
            }
        }
    });
    let ran = ran.unwrap();
    let report = &ran.step().report;
    let mut told: Vec<_> = report.changed_meanwhile.iter().map(ToString::to_string).collect();
    told.sort();
    assert_eq!(told, ["d/e/a", "d/e/new", "o/c"], "{ran:?}");
    assert!(report.not_examined.is_empty(), "{report:?}");
    assert!(!path("d").exists());
    session.worker().undo(1, OnConflict::Refuse).unwrap();
    for name in ["d/e/a", "d/e/new", "o/c"] {
        assert_eq!(fs::read_to_string(path(name)).unwrap(), "mine\n", "{name}");
    }
    assert_eq!(fs::read_to_string(path("d/b")).unwrap(), "1\n");
}

/// Looking at everything that goes would take longer than letting it go.
#[test]
fn a_large_directory_that_goes_is_not_searched_and_that_is_told() {
    let session =
        Session::new(|dir| sh("mkdir d a; touch a/x; seq -f d/%g 6000 | xargs touch", dir));
    let before = session.snapshot();
    let ran = session.run("rm -r a; rm -r d");
    let told: Vec<_> = ran.step().report.not_examined.iter().map(ToString::to_string).collect();
    assert_eq!(told, ["d"], "{ran:?}");
    session.worker().undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &session.snapshot());
}

#[test]
fn what_a_safeguard_denies_is_not_kept_and_the_question_is_told() {
    for view in VIEWS {
        let session = Session::new(|dir| sh("echo 1 > a; echo 1 > b; echo 1 > c", dir)).seen(view);
        let before = session.snapshot();
        // Nobody answers, which means no.
        let config = SafeguardConfig {
            delete_threshold: Some(2),
            timeout: Duration::from_millis(50),
            ..SafeguardConfig::default()
        };
        session.worker().call::<()>(Request::SetSafeguards(config)).unwrap();
        let denied = session.try_run(shell("echo 2 > c; rm -f a b; true"));
        let Err(RunError::Denied { outcome, asked }) = denied else { panic!("{denied:?}") };
        assert_eq!(outcome.exit_code(), Some(0), "{view:?}");
        assert!(asked.contains("is about to delete b, its deletion number 2"), "{asked}");
        assert_tree_eq(&before, &session.snapshot());
        let ran = session.run("rm a");
        assert!(matches!(ran.step().closed, ClosedStep::Recorded { .. }), "{ran:?}");
        session.worker().undo(1, OnConflict::Refuse).unwrap();
        assert_tree_eq(&before, &session.snapshot());
    }
}

/// Removing things is the way out of a full disk.
#[test]
fn a_command_removes_files_on_a_disk_without_any_room() {
    let test = "a_command_removes_files_on_a_disk_without_any_room";
    let Some((session, disk, _holder)) = on_a_small_disk(test, View::Transactional) else { return };
    session.run("echo room is set aside by now > f");
    disk.fill("filled");
    assert_eq!(disk.free_bytes(), 0);
    let before = session.snapshot();
    let ran = session.run("rm -r d");
    assert_eq!(ran.code(), Some(0), "{ran:?}");
    assert!(!session.workspace.path("d").exists());
    session.worker().undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &session.snapshot());
}

#[test]
fn the_second_session_in_a_folder_is_refused() {
    let workspace = TempWorkspace::with_fixture(|dir| sh("echo x > file", dir));
    let first = start_worker(workspace.working(), workspace.undo());
    let mut spec = WorkerSpec::new(Settings::new(workspace.working(), workspace.undo())).unwrap();
    spec.program = PROGRAM.into();
    let refused = WorkerProcess::start(&spec, |_| {}).unwrap().err().unwrap();
    let expected = format!("the undo log is in use by process {}", first.id());
    assert_eq!(refused.to_string(), expected);
    drop(first);
    assert!(WorkerProcess::start(&spec, |_| {}).unwrap().is_ok());
}

/// How the user's editor saves: another file in the place of the old one, or the old one in place.
#[derive(Debug, Clone, Copy)]
enum Saving {
    ByRename,
    InPlace,
}

/// The user, who saves one file again and again. While `saved` is locked, he does not.
struct User<'a> {
    file: &'a Path,
    saving: Saving,
    /// How many versions he has saved.
    saved: &'a Mutex<usize>,
    is_over: &'a AtomicBool,
}

impl User<'_> {
    /// What he has written can be told from anything else, and is always as long.
    fn version(number: usize) -> String {
        format!("{number:08}\n").repeat(200)
    }

    /// The version that a text is, if it is one, and a whole one.
    fn number_of(text: &str) -> Option<usize> {
        let number = text.lines().next()?.parse().ok()?;
        (text == Self::version(number)).then_some(number)
    }

    fn work(&self) {
        while !self.is_over.load(Ordering::SeqCst) {
            let mut saved = self.saved.lock().unwrap();
            self.save(&Self::version(*saved + 1));
            *saved += 1;
            drop(saved);
            // He takes some time between two versions, as commands do.
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn save(&self, text: &str) {
        match self.saving {
            Saving::ByRename => {
                // Made beside the folder, so that in it there is nothing but the renaming.
                let new = self.file.parent().unwrap().with_file_name("being-saved");
                fs::write(&new, text).unwrap();
                fs::rename(new, self.file).unwrap();
            }
            Saving::InPlace => {
                let opened = fs::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(false)
                    .open(self.file)
                    .unwrap();
                opened.write_all_at(text.as_bytes(), 0).unwrap();
            }
        }
    }
}

/// Commands change other files, and now and then that one, while the user saves it. What he has then is
/// a version of his own each time, and a whole one.
fn save_while_commands_come_and_go(view: View, saving: Saving) {
    const ROUNDS: usize = 60;
    let session = Session::new(|dir| {
        fs::write(dir.join("saved"), User::version(0)).unwrap();
        sh("mkdir dir; for i in 1 2 3 4; do echo $i > dir/$i; done", dir);
    })
    .seen(view);
    let file = session.workspace.path("saved");
    let (saved, is_over) = (Mutex::new(0), AtomicBool::new(false));
    let user = User { file: &file, saving, saved: &saved, is_over: &is_over };
    std::thread::scope(|scope| {
        let _end = SetAtTheEnd(&is_over);
        scope.spawn(|| user.work());
        for round in 0..ROUNDS {
            let at_first = *saved.lock().unwrap();
            let other =
                format!("echo {round} > dir/1; rm dir/2; echo new > dir/new; mv dir/3 three");
            let script = match round % 3 {
                0 => format!("{other}; yes commands | head -n 200 > saved"),
                1 => format!("{other}; yes commands | head -n 200 > s; mv s saved"),
                _ => other,
            };
            let ran = session.run(&script);
            assert_eq!(ran.code(), Some(0), "{round}: {ran:?}");
            // What he has saved since is a conflict, and stays.
            let undone = session.worker().undo(1, OnConflict::Skip);
            assert!(undone.is_ok(), "round {round}, {view:?}, {saving:?}: {undone:?}");
            let last = saved.lock().unwrap();
            let text = fs::read_to_string(&file).unwrap();
            let number = User::number_of(&text);
            assert!(
                number.is_some(),
                "round {round}, {view:?}, {saving:?}: not his: {text:.60}\n{ran:?}\n{undone:?}\n{at_first} {last}"
            );
            assert!(number >= Some(at_first), "round {round}: {number:?}, and he had {at_first}");
            assert!(number <= Some(*last), "round {round}");
            // In a live view, what he saves while another file is renamed over his is that command's
            // from then on, as outside.
            let is_last = number == Some(*last) || view == View::Live;
            assert!(is_last, "round {round}: {number:?} of {last}\n{ran:?}\n{undone:?}");
            drop(last);
            let names = |dir: &str| fs::read_dir(session.workspace.path(dir)).unwrap().count();
            assert_eq!(
                (names("."), names("dir")),
                (2, 4),
                "round {round}: the rest is undone\n{:?}\n{undone:?}",
                fs::read_dir(session.workspace.path(".")).unwrap().collect::<Vec<_>>()
            );
        }
    });
    assert!(*saved.lock().unwrap() > ROUNDS, "the user saved while commands ran");
}

/// Lets another thread end, also when this one panics.
struct SetAtTheEnd<'a>(&'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[test]
fn what_the_user_saves_by_renaming_while_commands_come_and_go_is_never_lost() {
    save_while_commands_come_and_go(View::Transactional, Saving::ByRename);
}

#[test]
fn what_the_user_saves_by_renaming_beside_a_live_view_is_never_lost() {
    save_while_commands_come_and_go(View::Live, Saving::ByRename);
}

#[test]
fn what_the_user_saves_in_place_beside_a_live_view_is_never_lost() {
    save_while_commands_come_and_go(View::Live, Saving::InPlace);
}
