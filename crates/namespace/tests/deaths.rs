//! Everything that runs a command is killed, at any moment: the session, its worker, the guard,
//! process 1, the command's supervisor, the command. The folder is at a step boundary, and nothing is left.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::print_stderr,
    reason = "a test may panic"
)]

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use codeagent_interceptor::{HistoryEntry, OnConflict};
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{
    CompareOptions, TempWorkspace, TreeSnapshot, assert_tree_eq, assert_tree_eq_with,
};
use codeagent_worker::{Settings, WorkerProcess, WorkerSpec};
use common::{
    PROGRAM, as_ordinary_user_with_fuse, eventually, every_process, mounts_that_name, sh, within,
};
use rustix::process::{Pid, Signal, kill_process};

/// Leaves nothing as it was, in pieces that take a while.
const SCRIPT: &str = "
    for i in 1 2 3 4 5 6; do
        echo changed $i > dir/$i; mkdir -p new/$i; echo new > new/$i/file; sleep 0.005
    done
    for i in $(seq 200); do echo made > made$i; echo again > old/$i; done
    rm -rf tree; mv dir/7 dir/seven; echo more >> large; chmod 600 dir/8; ( sleep 0.01; echo late > late )";

fn fixture(dir: &Path) {
    sh(
        "mkdir -p dir tree/a/b; for i in 1 2 3 4 5 6 7 8; do echo $i > dir/$i; echo $i > tree/a/b/$i; done
         mkdir old; for i in $(seq 200); do echo old > old/$i; done
         head -c 300000 /dev/zero > large; ln dir/8 tree/link",
        dir,
    );
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Victim {
    Session,
    Worker,
    Guard,
    FirstProcess,
    Supervisor,
    Command,
}

const VICTIMS: [Victim; 6] = [
    Victim::Session,
    Victim::Guard,
    Victim::FirstProcess,
    Victim::Supervisor,
    Victim::Command,
    Victim::Worker,
];

/// Numbers that differ from run to run; a failure names the seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// A folder whose sessions can be told from all other processes of the machine.
struct Scene {
    workspace: TempWorkspace,
    view: &'static str,
    before: TreeSnapshot,
    after: TreeSnapshot,
    /// How long a session takes that nobody kills.
    lasts: Duration,
}

impl Scene {
    fn new(view: &'static str) -> Self {
        let workspace = TempWorkspace::with_fixture(fixture);
        fs::copy(PROGRAM, workspace.working().with_file_name("program")).unwrap();
        let before = workspace.snapshot();
        let mut scene =
            Self { workspace, view, after: before.clone(), before, lasts: Duration::ZERO };
        let started = Instant::now();
        scene.run();
        scene.lasts = started.elapsed();
        scene.after = scene.workspace.snapshot();
        assert_ne!(scene.after, scene.before);
        scene.open().client().undo(1, OnConflict::Refuse).unwrap();
        scene
    }

    fn holder(&self) -> &Path {
        self.workspace.working().parent().unwrap()
    }

    fn program(&self) -> PathBuf {
        self.holder().join("program")
    }

    fn session(&self) -> Command {
        let mut command = Command::new(self.program());
        command.args(["session", self.view]);
        command.arg(self.workspace.working()).arg(self.workspace.undo());
        command.arg(self.holder().join("state")).arg(SCRIPT);
        command.stdin(Stdio::null());
        command
    }

    /// A session that nobody kills.
    fn run(&self) -> Output {
        let run = self.session().output().unwrap();
        assert!(run.status.success(), "{run:?}");
        run
    }

    /// The next session: waits until the one before has gone.
    fn open(&self) -> WorkerProcess {
        let mut worker = None;
        eventually("the next worker opens", || {
            codeagent_worker::end_orphan(self.workspace.undo()).unwrap();
            let settings = Settings::new(self.workspace.working(), self.workspace.undo());
            let mut spec = WorkerSpec::new(settings).unwrap();
            spec.program = self.program();
            match WorkerProcess::start(&spec, |_| {}).unwrap() {
                Ok(started) => worker = Some(started),
                Err(failure) => eprintln!("not yet: {failure}"),
            }
            worker.is_some()
        });
        worker.unwrap()
    }

    /// Processes of our program, and of commands in our folder.
    fn processes(&self) -> Vec<u32> {
        let leads_here = |link: String| {
            fs::read_link(link).is_ok_and(|target| target.starts_with(self.holder()))
        };
        every_process()
            .filter(|pid| {
                leads_here(format!("/proc/{pid}/exe")) || leads_here(format!("/proc/{pid}/cwd"))
            })
            .collect()
    }

    fn find(&self, session: u32, victim: Victim) -> Option<u32> {
        let guard = || child_of(session, |line| line.contains("--codeagent-namespace"));
        let first = || child_of(guard()?, |_| true);
        let supervisor = || child_of(first()?, |_| true);
        match victim {
            Victim::Session => Some(session),
            Victim::Worker => child_of(session, |line| line.contains("--codeagent-worker")),
            Victim::Guard => guard(),
            Victim::FirstProcess => first(),
            Victim::Supervisor => supervisor(),
            Victim::Command => child_of(supervisor()?, |_| true),
        }
    }

    /// Kills it at some moment of the time it takes, if it comes to that.
    fn kill(&self, session: &mut Child, victim: Victim, dice: &mut Dice) -> bool {
        let mut found = None;
        while found.is_none() && session.try_wait().unwrap().is_none() {
            found = self.find(session.id(), victim);
        }
        std::thread::sleep(Duration::from_micros(dice.below(self.lasts.as_micros() as u64)));
        if session.try_wait().unwrap().is_some() {
            return false;
        }
        let pid = found.and_then(|pid| Pid::from_raw(pid.cast_signed()));
        pid.is_some_and(|pid| kill_process(pid, Signal::KILL).is_ok())
    }

    /// Whether somebody was killed, and whether the command became a step all the same.
    fn one_death(&self, victim: Victim, dice: &mut Dice, sessions: &mut Vec<u32>) -> (bool, bool) {
        let mut session = self.session().stdout(Stdio::piped()).spawn().unwrap();
        sessions.push(session.id());
        let killed = self.kill(&mut session, victim, dice);
        let started = Instant::now();
        let output = session.wait_with_output().unwrap();
        assert!(started.elapsed() < Duration::from_secs(10), "{victim:?}: the session hangs");
        let worker = self.open();
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let is_step = self.assert_at_a_boundary(&worker, victim, &said);
        self.assert_nothing_is_left(&worker, victim);
        (killed, is_step)
    }

    fn assert_at_a_boundary(&self, worker: &WorkerProcess, victim: Victim, said: &str) -> bool {
        let now = self.workspace.snapshot();
        let history = worker.client().history().unwrap();
        let is_step = history.iter().any(|entry| matches!(entry, HistoryEntry::Step(_)));
        if is_step {
            if victim != Victim::Command {
                let times = CompareOptions {
                    mtime_tolerance_ns: u64::MAX,
                    directory_mtimes: false,
                    ..CompareOptions::default()
                };
                assert_tree_eq_with(&self.after, &now, &times);
            }
            worker.client().undo(1, OnConflict::Refuse).unwrap();
        } else {
            assert!(!said.contains("ExitCode(0)"), "{victim:?}: {said}, and nothing was recorded");
        }
        assert_tree_eq(&self.before, &self.workspace.snapshot());
        is_step
    }

    fn assert_nothing_is_left(&self, worker: &WorkerProcess, victim: Victim) {
        let own = worker.id();
        // A guard ends when the kernel has written what waits for the disk.
        let patience = Duration::from_secs(60);
        within(patience, "only the new worker runs", || self.processes() == [own]);
        assert_eq!(mounts_that_name(self.holder()), Vec::<String>::new(), "{victim:?}");
        let staging = fs::read_dir(self.workspace.undo().join("staging")).unwrap().count();
        assert_eq!(staging, 0, "{victim:?}");
        eventually("the trash is empty", || {
            fs::read_dir(self.workspace.undo().join("trash")).unwrap().count() == 0
        });
    }
}

/// A child of a process whose command line is as wanted.
fn child_of(parent: u32, wanted: impl Fn(&str) -> bool) -> Option<u32> {
    every_process().find(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let of = fields.split_whitespace().nth(1).and_then(|field| field.parse().ok());
        let line = || fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        of == Some(parent) && wanted(&String::from_utf8_lossy(&line()))
    })
}

/// Groups that sessions make for their commands, if they can; names begin so, and go on with the
/// number of the process that made them.
fn cgroups_of(sessions: &[u32]) -> Vec<PathBuf> {
    let is_one = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let owner = name.strip_prefix("codeagent-").and_then(|name| name.split('-').next());
        owner.and_then(|owner| owner.parse().ok()).is_some_and(|owner| sessions.contains(&owner))
    };
    let (mut found, mut pending) = (Vec::new(), vec![PathBuf::from("/sys/fs/cgroup")]);
    while let Some(dir) = pending.pop() {
        let entries = fs::read_dir(&dir).into_iter().flatten().flatten();
        let groups = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        pending.extend(groups.map(|entry| entry.path()));
        if is_one(&dir) {
            found.push(dir);
        }
    }
    found
}

/// Returns whether the sessions had groups of their own.
fn deaths(view: &'static str, usually: usize) -> bool {
    let count = if std::env::var_os("CODEAGENT_LONG").is_some() { 200 } else { usually };
    let started = Instant::now();
    let scene = Scene::new(view);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let mut dice = Dice(now.as_nanos() as u64 | 1);
    let (mut killed, mut steps, mut sessions) = (0, 0, Vec::new());
    let both_happen = |killed, steps| 0 < steps && steps < killed;
    // That only one of them does is chance as long as there are few.
    while killed < count || (killed < 10 * count && !both_happen(killed, steps)) {
        let victim = VICTIMS[killed % VICTIMS.len()];
        eprintln!("{victim:?}, dice {}", dice.0); // shown if it fails
        let (was_killed, is_step) = scene.one_death(victim, &mut dice, &mut sessions);
        killed += usize::from(was_killed);
        steps += usize::from(was_killed && is_step);
    }
    let all = sessions.len();
    eprintln!(
        "{killed} of {all} sessions killed in {:?}, a session takes {:?}; {steps} of their commands became steps",
        started.elapsed(),
        scene.lasts
    );
    assert!(both_happen(killed, steps), "{steps} steps of {killed} killed");
    let state = scene.holder().join("state");
    let run = scene.run();
    assert_eq!(fs::read_dir(state).unwrap().count(), 0, "homes of killed sessions");
    assert_eq!(cgroups_of(&sessions), Vec::<PathBuf>::new(), "groups of killed sessions");
    has_cgroup(&run)
}

/// Whether a session could make a group for its command.
fn has_cgroup(run: &Output) -> bool {
    String::from_utf8_lossy(&run.stdout).contains("in a cgroup")
}

/// Where sessions cannot make any, the other tests say nothing of what is left of them.
#[test]
fn of_killed_sessions_no_cgroup_is_left() {
    if !has_cgroup(&Scene::new("transactional").run()) {
        let reason = "sessions can make no cgroups of version 2";
        return skip("of_killed_sessions_no_cgroup_is_left", reason);
    }
    assert!(deaths("transactional", 12));
}

#[test]
fn whoever_is_killed_the_folder_is_at_a_step_boundary() {
    deaths("transactional", 100);
}

#[test]
fn whoever_is_killed_the_folder_is_at_a_step_boundary_in_the_live_view() {
    deaths("live", 60);
}

#[test]
fn whichever_process_of_an_ordinary_user_is_killed_the_folder_is_at_a_step_boundary() {
    let test = "whichever_process_of_an_ordinary_user_is_killed_the_folder_is_at_a_step_boundary";
    as_ordinary_user_with_fuse(test, || {
        deaths("transactional", 30);
        deaths("live", 30);
    });
}
