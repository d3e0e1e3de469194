//! Mounting, unmounting, and what a mount is besides a place for programs to write.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};

use codeagent_interceptor::{EngineConfig, RollbackOptions, StepRequest, UndoEngine};
use codeagent_mount::Unmounted;
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use common::{Mounted, Process, binary, can_mount, has, is_mount, wait_for};

fn two_files(root: &Path) {
    fs::create_dir(root.join("dir")).unwrap();
    fs::write(root.join("dir/one"), "one").unwrap();
    fs::write(root.join("two"), "two").unwrap();
}

#[test]
fn a_read_only_mount_shows_everything_and_changes_nothing() {
    if !can_mount("a_read_only_mount_shows_everything_and_changes_nothing") {
        return;
    }
    let mounted = Mounted::with(two_files, |options| options.read_only = true);
    let before = mounted.workspace.snapshot();
    assert_eq!(fs::read_to_string(mounted.path("dir/one")).unwrap(), "one");
    for refused in [
        fs::write(mounted.path("two"), "x"),
        fs::write(mounted.path("new"), "x"),
        fs::remove_file(mounted.path("two")),
        fs::create_dir(mounted.path("d")),
        fs::rename(mounted.path("two"), mounted.path("three")),
    ] {
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EROFS));
    }
    assert_tree_eq(&before, &mounted.workspace.snapshot());
}

#[test]
fn a_folder_can_be_mounted_over_itself() {
    if !can_mount("a_folder_can_be_mounted_over_itself") {
        return;
    }
    let mounted = Mounted::with(two_files, |options| {
        options.mount_point.clone_from(&options.source);
    });
    let before = mounted.workspace.snapshot();
    mounted.step("echo changed > two; mv dir folder; echo new > folder/new; rm folder/one");
    let after = mounted.workspace.snapshot();
    let Mounted { mount, workspace, .. } = mounted;
    let engine = std::sync::Arc::clone(mount.engine());
    assert_eq!(mount.unmount().unwrap(), Unmounted::Cleanly);
    assert_tree_eq(&after, &workspace.snapshot());
    engine.rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
}

#[test]
fn a_mount_in_use_is_taken_away_all_the_same() {
    if !can_mount("a_mount_in_use_is_taken_away_all_the_same") {
        return;
    }
    let mounted = Mounted::new(two_files);
    let mut open = fs::File::open(mounted.path("two")).unwrap();
    let Mounted { mount, point, .. } = mounted;
    assert_eq!(mount.unmount().unwrap(), Unmounted::WhileInUse);
    assert!(!is_mount(point.path()));
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!(text, "two");
}

/// As `df` has one, which would otherwise leave the undo log locked.
#[test]
fn whoever_only_has_a_look_at_a_mount_is_waited_for() {
    if !can_mount("whoever_only_has_a_look_at_a_mount_is_waited_for") {
        return;
    }
    let Mounted { mount, workspace, point } = Mounted::new(two_files);
    let look = fs::File::open(mount.mount_point()).unwrap();
    let looking = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(30));
        drop(look);
    });
    assert_eq!(mount.unmount().unwrap(), Unmounted::Cleanly);
    assert!(!is_mount(point.path()));
    drop(steps(&workspace));
    looking.join().unwrap();
}

#[test]
fn undo_is_seen_at_once_through_the_mount() {
    if !can_mount("undo_is_seen_at_once_through_the_mount") {
        return;
    }
    let mounted = Mounted::new(two_files);
    mounted.step("echo changed > two");
    assert_eq!(fs::read_to_string(mounted.path("two")).unwrap(), "changed\n");
    mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
    assert_eq!(fs::read_to_string(mounted.path("two")).unwrap(), "two");
    assert_eq!(fs::metadata(mounted.path("two")).unwrap().len(), 3);
}

#[test]
fn a_file_held_open_across_steps_is_captured_in_each() {
    if !can_mount("a_file_held_open_across_steps_is_captured_in_each") {
        return;
    }
    let mounted = Mounted::new(two_files);
    let before = mounted.workspace.snapshot();
    let mut held = fs::OpenOptions::new().append(true).open(mounted.path("two")).unwrap();
    let mut states = vec![before];
    for text in ["a", "b", "c"] {
        mounted.engine().open_step(StepRequest::command(text)).unwrap();
        held.write_all(text.as_bytes()).unwrap();
        mounted.engine().close_step(Some(0)).unwrap();
        states.push(mounted.workspace.snapshot());
    }
    while let Some(state) = states.pop() {
        assert_tree_eq(&state, &mounted.workspace.snapshot());
        if !states.is_empty() {
            mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
        }
    }
}

/// Removes names of files in every way, and returns the counts of names seen meanwhile.
fn remove_names(root: &Path) -> Vec<u64> {
    let open = |name: &str| fs::File::open(root.join(name)).unwrap();
    let [single, twice, replaced] = ["single", "twice", "replaced"].map(open);
    let count = |file: &fs::File| file.metadata().unwrap().nlink();
    let mut counts = vec![count(&single), count(&twice), count(&replaced)];
    fs::remove_file(root.join("single")).unwrap();
    fs::remove_file(root.join("twice")).unwrap();
    counts.extend([count(&single), count(&twice), count(&open("second"))]);
    counts.push(fs::symlink_metadata(root.join("second")).unwrap().nlink());
    fs::hard_link(root.join("second"), root.join("third")).unwrap();
    counts.push(count(&twice));
    fs::rename(root.join("new"), root.join("replaced")).unwrap();
    counts.extend([count(&replaced), count(&open("replaced"))]);
    fs::remove_file(root.join("second")).unwrap();
    fs::remove_file(root.join("third")).unwrap();
    counts.push(count(&twice));
    counts
}

#[test]
fn names_of_removed_files_are_counted_as_below() {
    if !can_mount("names_of_removed_files_are_counted_as_below") {
        return;
    }
    let files = |root: &Path| {
        for name in ["single", "twice", "replaced", "new"] {
            fs::write(root.join(name), name).unwrap();
        }
        fs::hard_link(root.join("twice"), root.join("second")).unwrap();
    };
    let bare = TempWorkspace::with_fixture(files);
    let mounted = Mounted::new(files);
    let held = fs::File::open(mounted.path("twice")).unwrap();
    let count = || held.metadata().unwrap().nlink();
    let counts = mounted.there_and_back_of("remove", || remove_names(mounted.mount.mount_point()));
    assert_eq!(counts, remove_names(bare.working()));
    assert_eq!(counts, [1, 2, 1, 0, 1, 1, 1, 2, 0, 1, 0]);
    assert_eq!(count(), 0);
    mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
    assert_eq!(count(), 2, "both names are back");
}

/// A program that holds a file open, and writes to it when it is told to.
struct Holder {
    process: Process,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    fn of(file: &Path) -> Self {
        let program = "
import mmap, os, sys
file = os.open(sys.argv[1], os.O_RDWR)
mapping = mmap.mmap(file, 0)
for line in sys.stdin:
    how, offset, text = line.split()
    offset, text = int(offset), text.encode()
    if how == 'write':
        os.pwrite(file, text, offset)
    else:
        mapping[offset:offset + len(text)] = text
        if how == 'map-and-sync':
            mapping.flush()
    print('done', flush=True)
";
        let mut command = Command::new("python3");
        command.args(["-c", program]).arg(file);
        Self::start(command)
    }

    fn start(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (commands, answers) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { process: Process(child), commands, answers: BufReader::new(answers) }
    }

    fn tell(&mut self, command: &str) {
        assert_eq!(self.ask(command), "done\n", "{command}");
    }

    fn ask(&mut self, question: &str) -> String {
        writeln!(self.commands, "{question}").unwrap();
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        answer
    }
}

#[test]
fn a_mapping_that_is_only_read_shows_what_undo_brings_back() {
    let test = "a_mapping_that_is_only_read_shows_what_undo_brings_back";
    if !can_mount(test) {
        return;
    }
    if !has("python3") {
        return skip(test, "python3 is not installed");
    }
    let mounted = Mounted::new(two_files);
    let program = "
import mmap, sys
file = open(sys.argv[1], 'rb')
mapping = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
for line in sys.stdin:
    print(mapping[:].decode(), flush=True)
";
    let mut command = Command::new("python3");
    command.args(["-c", program]).arg(mounted.path("two"));
    let mut holder = Holder::start(command);
    assert_eq!(holder.ask("?"), "two\n");
    mounted.step("printf TWO | dd of=two conv=notrunc 2>/dev/null");
    assert_eq!(holder.ask("?"), "TWO\n");
    mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
    assert_eq!(holder.ask("?"), "two\n");
}

#[test]
fn a_file_held_open_across_steps_is_undone_step_by_step() {
    let test = "a_file_held_open_across_steps_is_undone_step_by_step";
    if !can_mount(test) {
        return;
    }
    if !has("python3") {
        return skip(test, "python3 is not installed");
    }
    let steps: [&[&str]; 4] = [
        &["write 100 first"],
        &["write 102 second", "write 150000 far"],
        &["map 104 third", "map-and-sync 250000 mapped"],
        &["map 101 fourth", "write 250001 both"],
    ];
    for _ in 0..if std::env::var_os("CODEAGENT_LONG").is_some() { 20 } else { 1 } {
        let mounted = Mounted::new(|root| fs::write(root.join("file"), [b'.'; 300_000]).unwrap());
        let mut holder = Holder::of(&mounted.path("file"));
        let mut states = vec![mounted.workspace.snapshot()];
        for commands in steps {
            mounted.step_of("held", || commands.iter().for_each(|command| holder.tell(command)));
            states.push(mounted.workspace.snapshot());
        }
        for state in states.iter().rev().skip(1) {
            mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
            assert_tree_eq(state, &mounted.workspace.snapshot());
        }
        // The holder goes on with the file as it is now, and that is a step like any other.
        mounted.step_of("held", || holder.tell("map 200 again"));
        let text = fs::read(mounted.workspace.path("file")).unwrap();
        assert!(text.iter().filter(|byte| **byte != b'.').eq(b"again"));
        mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
        assert_tree_eq(&states[0], &mounted.workspace.snapshot());
        drop(holder.commands);
        assert!(holder.process.0.wait().unwrap().success());
        assert_tree_eq(&states[0], &mounted.workspace.snapshot());
    }
}

fn steps(workspace: &TempWorkspace) -> UndoEngine {
    UndoEngine::open(EngineConfig::new(workspace.working(), workspace.undo())).unwrap()
}

/// A transaction is all or nothing, and nobody has said that it is done.
#[test]
fn an_unmount_ends_the_open_step_and_no_transaction() {
    if !can_mount("an_unmount_ends_the_open_step_and_no_transaction") {
        return;
    }
    let mounted = Mounted::new(two_files);
    let Mounted { mount, workspace, point: _point } = mounted;
    mount.engine().open_step(StepRequest::command("a step")).unwrap();
    fs::write(mount.mount_point().join("two"), "saved").unwrap();
    mount.unmount().unwrap();
    let engine = steps(&workspace);
    assert!(engine.recovery().is_none());
    assert_eq!(engine.steps().len(), 1);
    drop(engine);

    let Mounted { mount, workspace, point: _point } = Mounted::on(workspace, |_| {});
    mount.engine().begin_transaction("all").unwrap();
    fs::write(mount.mount_point().join("two"), "or nothing").unwrap();
    mount.unmount().unwrap();
    let engine = steps(&workspace);
    assert!(engine.recovery().is_some_and(|recovery| recovery.rolled_back));
    assert_eq!(fs::read_to_string(workspace.path("two")).unwrap(), "saved");
}

#[test]
fn the_binary_records_ambient_steps_and_unmounts_on_a_signal() {
    if !can_mount("the_binary_records_ambient_steps_and_unmounts_on_a_signal") {
        return;
    }
    let workspace = TempWorkspace::with_fixture(two_files);
    let point = tempfile::tempdir().unwrap();
    let before = workspace.snapshot();
    let mut command = binary(&workspace, point.path(), &["--ambient-timeout", "0.05"]);
    let mut process = Process(command.spawn().unwrap());
    wait_for("the mount appears", || is_mount(point.path()));
    fs::write(point.path().join("two"), "first").unwrap();
    let steps_dir = workspace.undo().join("steps");
    let count = || fs::read_dir(&steps_dir).map_or(0, Iterator::count);
    wait_for("the first step ends", || count() >= 1);
    fs::write(point.path().join("two"), "second").unwrap();
    let pid = rustix::process::Pid::from_child(&process.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(process.0.wait().unwrap().success());
    assert!(!is_mount(point.path()));
    let engine = steps(&workspace);
    let recorded = engine.steps().len();
    assert!(recorded >= 2, "more, where the machine was slow between two system calls");
    assert!(engine.recovery().is_none(), "a clean end leaves nothing to recover");
    assert_eq!(fs::read_to_string(workspace.path("two")).unwrap(), "second");
    engine.rollback(recorded, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
}

#[test]
fn a_daemon_returns_once_mounted_and_ends_with_umount() {
    if !can_mount("a_daemon_returns_once_mounted_and_ends_with_umount") {
        return;
    }
    let workspace = TempWorkspace::with_fixture(two_files);
    let point = tempfile::tempdir().unwrap();
    assert!(binary(&workspace, point.path(), &["--daemon"]).status().unwrap().success());
    assert!(is_mount(point.path()));
    fs::write(point.path().join("new"), "x").unwrap();
    assert!(Command::new("umount").arg(point.path()).status().unwrap().success());
    wait_for("the undo log is free", || {
        let config = EngineConfig::new(workspace.working(), workspace.undo());
        UndoEngine::open(config).is_ok_and(|engine| engine.steps().len() == 1)
    });
}

#[test]
fn directories_that_would_hide_each_other_are_refused() {
    let workspace = TempWorkspace::with_fixture(two_files);
    let inside = workspace.path("dir");
    let output = binary(&workspace, &inside, &[]).stderr(Stdio::piped()).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("inside the folder"));
    let above = workspace.working().parent().unwrap().to_path_buf();
    let output = binary(&workspace, &above, &[]).stderr(Stdio::piped()).output().unwrap();
    assert!(!output.status.success());
    assert!(!workspace.undo().exists());
}

/// Clients that open what they can get an error at some point, and hurt nobody else.
#[test]
fn a_hundred_thousand_handles_are_served_or_refused() {
    let test = "a_hundred_thousand_handles_are_served_or_refused";
    if !can_mount(test) {
        return;
    }
    if !has("python3") {
        return skip(test, "python3 is not installed");
    }
    let workspace = TempWorkspace::with_fixture(|root| {
        two_files(root);
        fs::create_dir(root.join("many")).unwrap();
        for name in 0..1000 {
            fs::write(root.join(format!("many/{name}")), "").unwrap();
        }
    });
    let before = workspace.snapshot();
    let point = tempfile::tempdir().unwrap();
    let mut process = Process(binary(&workspace, point.path(), &[]).spawn().unwrap());
    wait_for("the mount appears", || fs::metadata(point.path().join("two")).is_ok());
    let program = "
import os, resource, sys
most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
opened, refused = [], 0
for line in sys.stdin:
    for number in range(int(line)):
        try:
            opened.append(os.open(f'{sys.argv[1]}/many/{number % 1000}', os.O_RDONLY))
        except OSError:
            refused += 1
    print(len(opened) + refused, flush=True)
";
    let mut clients: Vec<Holder> = (0..8)
        .map(|_| {
            let mut command = Command::new("python3");
            command.args(["-c", program]).arg(point.path());
            Holder::start(command)
        })
        .collect();
    for client in &mut clients {
        assert_eq!(client.ask("12500"), "12500\n");
    }
    // Whoever has a handle can use it, and what needs none still works.
    assert_eq!(fs::metadata(point.path().join("two")).unwrap().len(), 3);
    fs::rename(point.path().join("two"), point.path().join("three")).unwrap();
    fs::rename(point.path().join("three"), point.path().join("two")).unwrap();
    drop(clients);
    wait_for("handles are given back", || fs::read(point.path().join("many/0")).is_ok());
    fs::write(point.path().join("new"), "new").unwrap();
    fs::remove_file(point.path().join("new")).unwrap();
    let pid = rustix::process::Pid::from_child(&process.0);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(process.0.wait().unwrap().success());
    let engine = steps(&workspace);
    engine.rollback(engine.steps().len(), RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
}

#[test]
fn more_files_than_descriptors_can_be_seen() {
    if !can_mount("more_files_than_descriptors_can_be_seen") {
        return;
    }
    let workspace = TempWorkspace::with_fixture(|root| {
        for number in 0..3000 {
            let dir = root.join(format!("dir_{}", number / 100));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join(number.to_string()), number.to_string()).unwrap();
        }
    });
    for cache in ["coherent", "auto"] {
        let point = tempfile::tempdir().unwrap();
        let mount = binary(&workspace, point.path(), &["--cache", cache]);
        let mut command = Command::new("sh");
        // Where the process may raise its limits again, nothing can run out.
        command.args(["-c", "ulimit -n 1000; exec \"$@\"", "sh"]);
        command.arg(mount.get_program()).args(mount.get_args());
        let mut process =
            Process(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
        wait_for("the mount appears", || is_mount(point.path()));
        for _ in 0..2 {
            for number in 0..3000 {
                let file = point.path().join(format!("dir_{}/{number}", number / 100));
                assert_eq!(fs::read_to_string(file).unwrap(), number.to_string());
            }
        }
        let pid = rustix::process::Pid::from_child(&process.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        assert!(process.0.wait().unwrap().success());
    }
}
