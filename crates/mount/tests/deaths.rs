//! Processes of a mount that are killed, whatever they are doing.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::print_stderr)]

mod common;

use std::fs;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use codeagent_interceptor::{
    ClosedStep, EngineConfig, HistoryEntry, OnConflict, StepRequest, UndoEngine,
};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq};
use codeagent_worker::Client;
use common::{Process, binary, binary_with, can_mount, is_mount, wait_for};
use rustix::process::{Pid, Signal, kill_process};

fn fixture(root: &Path) {
    fs::create_dir_all(root.join("dir/deeper")).unwrap();
    for name in 0..40 {
        fs::write(root.join(format!("dir/{name}")), vec![name; 5000]).unwrap();
        fs::write(root.join(format!("dir/deeper/{name}")), format!("{name}")).unwrap();
    }
    fs::write(root.join("two"), "two").unwrap();
}

/// `codeagent-mount` at work, and what its source really looks like.
struct Mounted {
    process: Process,
    point: PathBuf,
    /// Leads to the source even if the mount hides it.
    source: fs::File,
    workspace: TempWorkspace,
    _dir: Option<tempfile::TempDir>,
}

impl Mounted {
    fn start(over_itself: bool, extra: &[&str]) -> Self {
        let workspace = TempWorkspace::with_fixture(fixture);
        let source = fs::File::open(workspace.working()).unwrap();
        let dir = (!over_itself).then(|| tempfile::tempdir().unwrap());
        let point = dir.as_ref().map_or(workspace.working(), tempfile::TempDir::path).to_path_buf();
        let process = Process(binary(&workspace, &point, extra).spawn().unwrap());
        let mounted = Self { process, point, source, workspace, _dir: dir };
        mounted.wait_until_served();
        mounted
    }

    fn snapshot(&self) -> TreeSnapshot {
        TreeSnapshot::capture(Path::new(&format!("/proc/self/fd/{}/.", self.source.as_raw_fd())))
    }

    fn wait_until_served(&self) {
        wait_for("the mount is served", || {
            is_mount(&self.point)
                && self.connect().is_some()
                && fs::metadata(self.point.join("two")).is_ok()
        });
    }

    /// A connection to the worker, if there is one that serves.
    fn connect(&self) -> Option<Client> {
        let client = Client::connect(self.workspace.undo()).ok()?;
        client.hello().is_ok_and(|state| state.attached).then_some(client)
    }

    fn stop(mut self) -> TempWorkspace {
        kill_process(Pid::from_child(&self.process.0), Signal::TERM).unwrap();
        assert!(self.process.0.wait().unwrap().success());
        assert!(!is_mount(&self.point));
        self.workspace
    }
}

fn kill(pid: u32) {
    let pid = Pid::from_raw(pid.cast_signed()).unwrap();
    // It may have ended already.
    let _ = kill_process(pid, Signal::KILL);
}

/// As every program would, whatever happens to the mount.
fn work(point: &Path, worker: u32, stop: &AtomicBool) {
    let (mine, dir) = (point.join(format!("made{worker}")), point.join("dir"));
    for round in 0_u32.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let file = mine.join(format!("{}", round % 7));
        let number = (round * 2 + worker) % 40;
        // Any of these may fail: the file may be gone, the server dead.
        let _ = fs::create_dir(&mine);
        let _ = fs::write(&file, vec![round as u8; 3000]);
        let _ = fs::write(dir.join(format!("{number}")), format!("rewritten {round}"));
        let _ = fs::rename(&file, mine.join("renamed"));
        let _ = fs::remove_file(dir.join(format!("deeper/{number}")));
        let _ = fs::hard_link(mine.join("renamed"), mine.join(format!("link{}", round % 3)));
        if round % 5 == 4 {
            let _ = fs::rename(dir.join("deeper"), mine.join("moved"));
            let _ = fs::remove_dir_all(&mine);
        }
    }
}

/// Numbers that differ from run to run; a failure names the seed.
struct Dice(u64);

impl Dice {
    fn new() -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        Self(now.as_nanos() as u64 | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A step under load, during which the worker is killed. Whatever it was doing, the tree is at a
/// step boundary when the next worker serves, and the mount can be used again.
fn one_death(mounted: &Mounted, dice: &mut Dice) {
    let client = mounted.connect().unwrap();
    let pid = client.hello().unwrap().pid;
    let before = mounted.snapshot();
    client.open_step(StepRequest::command("load")).unwrap();
    let stop = AtomicBool::new(false);
    let when = Duration::from_micros(dice.below(30_000));
    let what = dice.below(4);
    let states = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..2)
            .map(|worker| {
                scope.spawn({
                    let (point, stop) = (&mounted.point, &stop);
                    move || work(point, worker, stop)
                })
            })
            .collect();
        std::thread::sleep(when);
        let rest = || {
            stop.store(true, Ordering::SeqCst);
            workers.into_iter().for_each(|worker| worker.join().unwrap());
        };
        let soon = Duration::from_micros(dice.below(3_000));
        let kill_soon = || {
            scope.spawn(move || {
                std::thread::sleep(soon);
                kill(pid);
            })
        };
        match what {
            // In the middle of the step.
            0 | 1 => {
                kill(pid);
                rest();
                vec![before]
            }
            // While the step ends.
            2 => {
                rest();
                let after = mounted.snapshot();
                kill_soon();
                match client.close_step(Some(0)) {
                    Ok(_) => vec![after],
                    Err(_) => vec![before, after],
                }
            }
            // While it is undone.
            _ => {
                rest();
                let after = mounted.snapshot();
                let closed = client.close_step(Some(0)).unwrap();
                assert!(matches!(closed, ClosedStep::Recorded { .. } | ClosedStep::Empty { .. }));
                kill_soon();
                match client.undo(1, OnConflict::Refuse) {
                    Ok(_) => vec![before],
                    Err(_) => vec![before, after],
                }
            }
        }
    });
    wait_for("another worker serves", || {
        mounted.connect().is_some_and(|client| client.hello().is_ok_and(|state| state.pid != pid))
    });
    mounted.wait_until_served();
    undo_what_came_later(&mounted.connect().unwrap());
    let now = mounted.snapshot();
    if !states.contains(&now) {
        eprintln!("moment {what}, {} states", states.len());
        assert_tree_eq(&states[0], &now);
    }
    // Usable, and what clients see is what is there.
    assert_tree_eq(&now, &TreeSnapshot::capture(&mounted.point));
    let client = mounted.connect().unwrap();
    client.open_step(StepRequest::command("use")).unwrap();
    fs::write(mounted.point.join("used"), "again").unwrap();
    client.close_step(Some(0)).unwrap();
    client.undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&now, &mounted.snapshot());
}

/// A program that was on its way when the worker died may have waited for the next one.
fn undo_what_came_later(client: &Client) {
    client.end_ambient_step().unwrap();
    let is_ambient = |entry: &HistoryEntry| match entry {
        HistoryEntry::Step(step) => step.id.is_ambient(),
        HistoryEntry::Barrier(_) => false,
    };
    while client.history().unwrap().last().is_some_and(is_ambient) {
        client.undo(1, OnConflict::Refuse).unwrap();
    }
}

fn deaths(count: u32, over_itself: bool, extra: &[&str]) {
    let mounted = Mounted::start(over_itself, extra);
    let mut dice = Dice::new();
    for round in 0..count {
        eprintln!("round {round}, dice {}", dice.0); // shown if it fails
        one_death(&mounted, &mut dice);
    }
    mounted.stop();
}

#[test]
fn a_worker_killed_a_hundred_times_under_load_leaves_step_boundaries() {
    if !can_mount("a_worker_killed_a_hundred_times_under_load_leaves_step_boundaries") {
        return;
    }
    deaths(100, false, &[]);
}

#[test]
fn a_mount_over_its_own_source_survives_its_worker() {
    if !can_mount("a_mount_over_its_own_source_survives_its_worker") {
        return;
    }
    deaths(20, true, &[]);
}

/// Then the process that starts workers has the kernel's end of the mount, too.
#[test]
fn a_mount_with_passthrough_survives_its_worker() {
    if !can_mount("a_mount_with_passthrough_survives_its_worker") {
        return;
    }
    deaths(20, true, &["--passthrough", "on"]);
}

/// While no worker serves, programs wait or fail; they never get to the bare folder.
#[test]
fn no_write_slips_past_while_the_worker_is_replaced() {
    if !can_mount("no_write_slips_past_while_the_worker_is_replaced") {
        return;
    }
    let mounted = Mounted::start(true, &[]);
    let stop = AtomicBool::new(false);
    let before = mounted.snapshot();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                let _ = fs::write(mounted.point.join("slipped"), "past");
                let _ = fs::remove_file(mounted.point.join("two"));
            }
        });
        for _ in 0..10 {
            let client = mounted.connect().unwrap();
            let pid = client.hello().unwrap().pid;
            // Long enough that the next one is started without delay.
            std::thread::sleep(Duration::from_millis(120));
            client.end_ambient_step().unwrap();
            kill(pid);
            wait_for("another worker serves", || {
                mounted
                    .connect()
                    .is_some_and(|client| client.hello().is_ok_and(|state| state.pid != pid))
            });
        }
        stop.store(true, Ordering::SeqCst);
    });
    let client = mounted.connect().unwrap();
    client.end_ambient_step().unwrap();
    let steps = client.status().unwrap().steps;
    // Every write is in some step: undoing them all, without force, brings back the beginning.
    client.undo(steps, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &mounted.snapshot());
    mounted.stop();
}

#[test]
fn a_mount_outlives_the_process_that_made_it_until_the_next_takes_over() {
    if !can_mount("a_mount_outlives_the_process_that_made_it_until_the_next_takes_over") {
        return;
    }
    let mut mounted = Mounted::start(false, &[]);
    let before = mounted.snapshot();
    mounted.process.0.kill().unwrap();
    mounted.process.0.wait().unwrap();
    fs::write(mounted.point.join("two"), "still recorded").unwrap();
    let pid = mounted.connect().unwrap().hello().unwrap().pid;
    mounted.process = Process(binary(&mounted.workspace, &mounted.point, &[]).spawn().unwrap());
    wait_for("the next one has taken over", || {
        mounted.connect().is_some_and(|client| client.hello().is_ok_and(|state| state.pid != pid))
    });
    mounted.wait_until_served();
    let client = mounted.connect().unwrap();
    assert_eq!(fs::read_to_string(mounted.point.join("two")).unwrap(), "still recorded");
    client.undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &mounted.snapshot());
    mounted.stop();
}

#[test]
fn a_dead_mount_is_taken_away_by_the_next_one() {
    if !can_mount("a_dead_mount_is_taken_away_by_the_next_one") {
        return;
    }
    let mut mounted = Mounted::start(false, &[]);
    let before = mounted.snapshot();
    fs::write(mounted.point.join("two"), "unfinished").unwrap();
    let worker = mounted.connect().unwrap().hello().unwrap().pid;
    mounted.process.0.kill().unwrap();
    mounted.process.0.wait().unwrap();
    kill(worker);
    wait_for("nobody serves it", || fs::metadata(&mounted.point).is_err());
    mounted.process = Process(binary(&mounted.workspace, &mounted.point, &[]).spawn().unwrap());
    mounted.wait_until_served();
    assert_eq!(fs::read_to_string(mounted.point.join("two")).unwrap(), "two");
    assert_tree_eq(&before, &mounted.snapshot());
    mounted.stop();
}

/// Whatever the moment: while it waits, recovers, mounts.
#[test]
fn a_stop_while_the_worker_is_replaced_leaves_nothing_mounted() {
    if !can_mount("a_stop_while_the_worker_is_replaced_leaves_nothing_mounted") {
        return;
    }
    let mut dice = Dice::new();
    for round in 0..20 {
        let mounted = Mounted::start(round % 2 == 0, &[]);
        let before = mounted.snapshot();
        let client = mounted.connect().unwrap();
        client.open_step(StepRequest::command("unfinished")).unwrap();
        fs::write(mounted.point.join("two"), "unfinished").unwrap();
        let after = mounted.snapshot();
        kill(client.hello().unwrap().pid);
        std::thread::sleep(Duration::from_micros(dice.below(40_000)));
        let source = mounted.source.try_clone().unwrap();
        let workspace = mounted.stop();
        assert!(Client::connect(workspace.undo()).is_err(), "nobody is left");
        // The next one takes it back, if none has come to do so yet.
        let now =
            TreeSnapshot::capture(Path::new(&format!("/proc/self/fd/{}/.", source.as_raw_fd())));
        assert!(now == before || now == after);
        let config = EngineConfig::new(workspace.working(), workspace.undo());
        drop(UndoEngine::open(config).unwrap());
        assert_tree_eq(&before, &workspace.snapshot());
    }
}

#[test]
fn of_two_that_are_started_at_once_one_mounts_and_the_other_says_why_not() {
    let test = "of_two_that_are_started_at_once_one_mounts_and_the_other_says_why_not";
    if !can_mount(test) {
        return;
    }
    for round in 0..9 {
        let workspace = TempWorkspace::with_fixture(fixture);
        let dirs = [0, 1].map(|_| tempfile::tempdir().unwrap());
        // They share both, the mount point alone, or the undo directory alone.
        let point = |which: usize| dirs[if round % 3 == 2 { which } else { 0 }].path();
        let undo = |which: usize| match round % 3 {
            1 => workspace.undo().with_extension(which.to_string()),
            _ => workspace.undo().to_path_buf(),
        };
        let mut processes = [0, 1].map(|which| {
            let mut command = binary_with(&workspace, point(which), &undo(which));
            Process(command.stderr(Stdio::piped()).spawn().unwrap())
        });
        let mut loser = None;
        wait_for("one has given up", || {
            let ended = |process: &mut Process| process.0.try_wait().unwrap().is_some();
            loser = processes.iter_mut().position(ended);
            loser.is_some()
        });
        let (loser, winner) = (loser.unwrap(), 1 - loser.unwrap());
        let mut said = String::new();
        processes[loser].0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(!processes[loser].0.wait().unwrap().success());
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with("codeagent-mount: another codeagent-mount is at work"), "{said}");

        wait_for("the other one is served", || {
            Client::connect(&undo(winner))
                .is_ok_and(|client| client.hello().is_ok_and(|state| state.attached))
        });
        assert_eq!(fs::read_to_string(point(winner).join("two")).unwrap(), "two");
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let point = point(winner).to_str().unwrap();
        assert_eq!(mounts.lines().filter(|line| line.contains(point)).count(), 1);
        kill_process(Pid::from_child(&processes[winner].0), Signal::TERM).unwrap();
        assert!(processes[winner].0.wait().unwrap().success());
        assert!(!is_mount(Path::new(point)));
    }
}

#[test]
fn a_mount_that_is_served_is_not_mounted_over() {
    if !can_mount("a_mount_that_is_served_is_not_mounted_over") {
        return;
    }
    let mut mounted = Mounted::start(false, &[]);
    mounted.process.0.kill().unwrap();
    mounted.process.0.wait().unwrap();
    let other = TempWorkspace::with_fixture(fixture);
    let mut second = binary(&other, &mounted.point, &[]);
    let output = second.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert!(said.contains("is mounted already; unmount it first"), "{said}");
    mounted.process = Process(binary(&mounted.workspace, &mounted.point, &[]).spawn().unwrap());
    wait_for("its own has taken over", || {
        mounted.connect().is_some_and(|client| client.hello().is_ok_and(|state| !state.orphaned))
    });
    mounted.wait_until_served();
    mounted.stop();
}

/// A worker has mounts of its own: it must not keep those of others alive.
#[test]
fn a_mount_ends_while_another_goes_on() {
    let first = Mounted::start(false, &[]);
    let second = Mounted::start(false, &[]);
    let started = std::time::Instant::now();
    first.stop();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    second.stop();
}
