//! Files that the kernel reads itself: nothing that changes gets past the undo log.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use codeagent_interceptor::{OnConflict, RollbackOptions, StepRequest};
use codeagent_test_support::filesystems::skip;
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use codeagent_worker::Client;
use common::{Mounted, Process, binary, can_mount, has, is_mount, wait_for};
use rustix::process::{Pid, Signal, kill_process};

const LARGE: usize = 3 << 20;

fn large_content() -> Vec<u8> {
    (0..LARGE).map(|at| (at / 7) as u8).collect()
}

fn large_and_small(root: &Path) {
    fs::write(root.join("large"), large_content()).unwrap();
    fs::write(root.join("small"), "small").unwrap();
}

/// Whether the kernel of this machine, and this user, can do it; says why not.
fn has_passthrough(test: &str) -> bool {
    if !can_mount(test) {
        return false;
    }
    let workspace = TempWorkspace::with_fixture(large_and_small);
    let served = Served::start(workspace, &["--passthrough", "on"]);
    let said = served.stop();
    let missing = said.lines().find(|line| line.contains("without passthrough"));
    if let Some(missing) = missing {
        skip(test, missing);
    }
    missing.is_none()
}

/// A mount in this process, of which the kernel reads every file itself.
fn mounted() -> Mounted {
    Mounted::with(large_and_small, |options| options.passthrough_from = Some(0))
}

/// `codeagent-mount` at work.
struct Served {
    process: Process,
    point: tempfile::TempDir,
    workspace: TempWorkspace,
}

impl Served {
    fn start(workspace: TempWorkspace, extra: &[&str]) -> Self {
        let point = tempfile::tempdir().unwrap();
        let mut command = binary(&workspace, point.path(), extra);
        let process = Process(command.stderr(Stdio::piped()).spawn().unwrap());
        let served = Self { process, point, workspace };
        served.wait_until_served();
        served
    }

    fn wait_until_served(&self) {
        wait_for("the mount is served", || {
            is_mount(self.point.path())
                && self.connect().is_some()
                && fs::metadata(self.path("small")).is_ok()
        });
    }

    fn connect(&self) -> Option<Client> {
        let client = Client::connect(self.workspace.undo()).ok()?;
        client.hello().is_ok_and(|state| state.attached).then_some(client)
    }

    fn worker(&self) -> Pid {
        let pid = self.connect().unwrap().hello().unwrap().pid;
        Pid::from_raw(pid.cast_signed()).unwrap()
    }

    fn path(&self, relative: &str) -> PathBuf {
        self.point.path().join(relative)
    }

    /// What it has said.
    fn stop(mut self) -> String {
        kill_process(Pid::from_child(&self.process.0), Signal::TERM).unwrap();
        assert!(self.process.0.wait().unwrap().success());
        assert!(!is_mount(self.point.path()));
        let mut said = String::new();
        self.process.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        said
    }
}

/// A process that stands still for as long as this lives.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Self {
        kill_process(pid, Signal::STOP).unwrap();
        wait_for("it stands still", || {
            let status = format!("/proc/{}/stat", pid.as_raw_nonzero());
            fs::read_to_string(status).unwrap().contains(") T ")
        });
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).unwrap();
    }
}

/// In a thread of its own, because it may have to wait.
fn later<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(work()));
    result
}

fn read_all(mut file: File) -> Vec<u8> {
    let mut content = Vec::new();
    file.read_to_end(&mut content).unwrap();
    content
}

const SOON: Duration = Duration::from_secs(10);

#[test]
fn a_large_file_is_read_while_the_worker_stands_still() {
    let test = "a_large_file_is_read_while_the_worker_stands_still";
    if !has_passthrough(test) {
        return;
    }
    let workspace = TempWorkspace::with_fixture(large_and_small);
    let served = Served::start(workspace, &["--passthrough", "on"]);
    let [large, small] = ["large", "small"].map(|name| File::open(served.path(name)).unwrap());
    let worker = served.worker();
    let status = format!("/proc/{}/status", worker.as_raw_nonzero());
    let status = fs::read_to_string(status).unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let sys_admin = 1 << 21;
    assert_eq!(u64::from_str_radix(effective, 16).unwrap() & sys_admin, 0);

    let stopped = Stopped::new(worker);
    // Nothing but reading: the worker hears of it when a file is closed.
    let reading = later(move || {
        let mut content = vec![0; LARGE];
        let outcome = large.read_exact_at(&mut content, 0);
        (large, outcome.map(|()| content))
    });
    let (large, content) = reading.recv_timeout(SOON).unwrap();
    assert!(content.unwrap() == large_content());
    // A file for which the worker is asked shows that it does stand still.
    let small = later(|| read_all(small));
    let waits = small.recv_timeout(Duration::from_millis(100));
    assert_eq!(waits.unwrap_err(), RecvTimeoutError::Timeout);
    drop(stopped);
    assert_eq!(small.recv_timeout(SOON).unwrap(), b"small");
    drop(large);
    served.stop();
}

/// Copies bytes as a pipe does, without reading them.
const SPLICE: &str = "
import os, sys
(end, begin) = os.pipe()
os.write(begin, b'spliced')
file = os.open(sys.argv[1], os.O_WRONLY)
os.splice(end, file, 7, offset_dst=2000000)
";

#[test]
fn a_writer_beside_a_reader_is_recorded_and_undone() {
    if !can_mount("a_writer_beside_a_reader_is_recorded_and_undone") {
        return;
    }
    let mounted = mounted();
    let before = mounted.workspace.snapshot();
    let reader = File::open(mounted.path("large")).unwrap();
    let text = |at: u64, length: usize| {
        let mut bytes = vec![0; length];
        reader.read_exact_at(&mut bytes, at).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let mut after = vec![before];
    mounted.step_of("write", || {
        let writer = OpenOptions::new().write(true).open(mounted.path("large")).unwrap();
        writer.write_all_at(b"written", 1_000_000).unwrap();
        assert_eq!(text(1_000_000, 7), "written", "the reader sees it at once");
    });
    after.push(mounted.workspace.snapshot());
    mounted.step_of("append", || {
        let mut writer = OpenOptions::new().append(true).open(mounted.path("large")).unwrap();
        writer.write_all(b"appended").unwrap();
        assert_eq!(text(LARGE as u64, 8), "appended");
        assert_eq!(reader.metadata().unwrap().len(), LARGE as u64 + 8);
    });
    after.push(mounted.workspace.snapshot());
    mounted.step_of("copy", || {
        let writer = OpenOptions::new().write(true).open(mounted.path("large")).unwrap();
        let small = File::open(mounted.path("small")).unwrap();
        let (mut from, mut to) = (0, 500_000);
        rustix::fs::copy_file_range(&small, Some(&mut from), &writer, Some(&mut to), 5).unwrap();
        assert_eq!(text(500_000, 5), "small");
        let mode = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&writer, mode, 0, LARGE as u64 + 1000).unwrap();
        writer.set_len(LARGE as u64 - 1000).unwrap();
        assert_eq!(reader.metadata().unwrap().len(), LARGE as u64 - 1000);
    });
    after.push(mounted.workspace.snapshot());
    if has("python3") {
        mounted.step_of("splice", || {
            let mut command = Command::new("python3");
            command.args(["-c", SPLICE]).arg(mounted.path("large"));
            assert!(command.status().unwrap().success());
            assert_eq!(text(2_000_000, 7), "spliced");
        });
        after.push(mounted.workspace.snapshot());
    }
    mounted.step_of("truncate", || {
        let how = OpenOptions::new().write(true).truncate(true).open(mounted.path("large"));
        how.unwrap().write_all(b"short").unwrap();
        assert_eq!(text(0, 5), "short");
    });
    for state in after.iter().rev() {
        mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
        assert_tree_eq(state, &mounted.workspace.snapshot());
        mounted.assert_seen_through_the_mount(state);
        let mut content = vec![0; LARGE + 100];
        let length = reader.read_at(&mut content, 0).unwrap();
        assert!(content[..length] == fs::read(mounted.workspace.path("large")).unwrap());
    }
}

/// A program that has mapped a file, and closed it.
struct Mapper {
    process: Child,
    answers: BufReader<std::process::ChildStdout>,
}

/// Without Python's own mappings, which keep the file open.
const MAPPER: &str = "
import ctypes, os, sys
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
may_write = sys.argv[2] == 'write'
file = os.open(sys.argv[1], os.O_RDWR if may_write else os.O_RDONLY)
length = os.fstat(file).st_size
mapping = libc.mmap(None, length, 3 if may_write else 1, 1, file, 0)
os.close(file)
assert mapping != ctypes.c_void_p(-1).value
print('mapped', flush=True)
for line in sys.stdin:
    offset, text = line.split()
    offset, text = int(offset), text.encode()
    if may_write:
        ctypes.memmove(mapping + offset, text, len(text))
    else:
        print(ctypes.string_at(mapping + offset, len(text)) == text)
    print('done', flush=True)
";

impl Mapper {
    fn start(file: &Path, what_for: &str) -> Self {
        let mut command = Command::new("python3");
        command.args(["-c", MAPPER]).arg(file).arg(what_for);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap());
        Self { process, answers }
    }

    fn hear(&mut self, expected: &str) {
        let mut answer = String::new();
        self.answers.read_line(&mut answer).unwrap();
        assert_eq!(answer.trim_end(), expected);
    }

    fn tell(&mut self, offset: usize, text: &str) {
        writeln!(self.process.stdin.as_mut().unwrap(), "{offset} {text}").unwrap();
    }

    fn write(&mut self, offset: usize, text: &str) {
        self.tell(offset, text);
        self.hear("done");
    }

    /// Whether it sees this there.
    fn expect(&mut self, offset: usize, text: &str) {
        self.tell(offset, text);
        self.hear("True");
        self.hear("done");
    }
}

impl Drop for Mapper {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Two steps of a mapping, each undone exactly, while a reader has the file open.
fn map_and_undo(mounted: &Mounted, mapper: &mut Mapper, reader: &File) {
    let mut states = vec![mounted.workspace.snapshot()];
    for (offset, word) in [(1_500_000, "first"), (1_500_002, "second")] {
        mounted.step_of(word, || mapper.write(offset, word));
        states.push(mounted.workspace.snapshot());
    }
    for state in states.iter().rev().skip(1) {
        mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
        assert_tree_eq(state, &mounted.workspace.snapshot());
        let mut content = vec![0; LARGE];
        reader.read_exact_at(&mut content, 0).unwrap();
        assert!(content == fs::read(mounted.workspace.path("large")).unwrap());
    }
}

#[test]
fn a_mapping_for_writing_waits_for_readers_and_is_undone_step_by_step() {
    let test = "a_mapping_for_writing_waits_for_readers_and_is_undone_step_by_step";
    if !has_passthrough(test) {
        return;
    }
    if !has("python3") {
        return skip(test, "python3 is not installed");
    }
    let mounted = mounted();
    let reader = File::open(mounted.path("large")).unwrap();
    let path = mounted.path("large");
    let mapper = later(move || {
        let mut mapper = Mapper::start(&path, "write");
        mapper.hear("mapped");
        mapper
    });
    let waits = mapper.recv_timeout(Duration::from_millis(300));
    assert_eq!(waits.err(), Some(RecvTimeoutError::Timeout));
    drop(reader);
    let mut mapper = mapper.recv_timeout(SOON).unwrap();
    let reader = File::open(mounted.path("large")).unwrap();
    map_and_undo(&mounted, &mut mapper, &reader);
}

#[test]
fn a_mapping_for_writing_that_was_there_first_is_undone_step_by_step() {
    let test = "a_mapping_for_writing_that_was_there_first_is_undone_step_by_step";
    if !can_mount(test) {
        return;
    }
    if !has("python3") {
        return skip(test, "python3 is not installed");
    }
    let mounted = mounted();
    let mut mapper = Mapper::start(&mounted.path("large"), "write");
    mapper.hear("mapped");
    let reader = File::open(mounted.path("large")).unwrap();
    map_and_undo(&mounted, &mut mapper, &reader);
}

#[test]
fn who_reads_and_writes_fails_if_readers_stay_and_never_waits_again() {
    let test = "who_reads_and_writes_fails_if_readers_stay_and_never_waits_again";
    if !has_passthrough(test) {
        return;
    }
    let mounted = mounted();
    let before = mounted.workspace.snapshot();
    let reader = File::open(mounted.path("large")).unwrap();
    let mut both = OpenOptions::new();
    both.read(true).write(true).truncate(true);
    let refused = both.open(mounted.path("large")).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ETXTBSY));
    assert_tree_eq(&before, &mounted.workspace.snapshot());
    drop(reader);
    // The kernel tells of a close when it gets round to it; this one waits until it has.
    drop(OpenOptions::new().read(true).write(true).open(mounted.path("large")).unwrap());
    let again = File::open(mounted.path("large")).unwrap();
    mounted.step_of("truncate", || both.open(mounted.path("large")).unwrap());
    assert_eq!(again.metadata().unwrap().len(), 0);
    mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &mounted.workspace.snapshot());
    assert!(read_all(again) == large_content());
}

/// The kernel does not say when such a mapping ends; it must not matter.
#[test]
fn a_mapping_that_outlives_its_file_sees_what_others_write_and_hinders_nobody() {
    let test = "a_mapping_that_outlives_its_file_sees_what_others_write_and_hinders_nobody";
    if !can_mount(test) {
        return;
    }
    if !has("python3") {
        return skip(test, "python3 is not installed");
    }
    let mounted = mounted();
    let mut mapping = Mapper::start(&mounted.path("small"), "read");
    mapping.hear("mapped");
    mapping.expect(0, "small");
    mounted.step_of("write", || {
        let both = OpenOptions::new().read(true).write(true).open(mounted.path("small")).unwrap();
        both.write_all_at(b"SMALL", 0).unwrap();
        mapping.expect(0, "SMALL");
    });
    mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
    mapping.expect(0, "small");
}

#[test]
fn undo_is_seen_by_readers_that_stayed() {
    if !can_mount("undo_is_seen_by_readers_that_stayed") {
        return;
    }
    let mounted = mounted();
    let before = mounted.workspace.snapshot();
    let reader = File::open(mounted.path("large")).unwrap();
    mounted.there_and_back("printf XX | dd of=large bs=1 seek=70000 conv=notrunc 2>/dev/null");
    mounted.there_and_back("rm large; echo other > large");
    mounted.there_and_back("mv small large");
    mounted.engine().rollback(3, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &mounted.workspace.snapshot());
    assert!(fs::read(mounted.path("large")).unwrap() == large_content());
    assert_eq!(reader.metadata().unwrap().len(), LARGE as u64);
    assert!(read_all(reader) == large_content());
}

#[test]
fn a_read_only_mount_has_passthrough_too() {
    if !can_mount("a_read_only_mount_has_passthrough_too") {
        return;
    }
    let mounted = Mounted::with(large_and_small, |options| {
        options.passthrough_from = Some(0);
        options.read_only = true;
    });
    let reader = File::open(mounted.path("large")).unwrap();
    for flags in [libc::O_RDWR, libc::O_WRONLY, libc::O_RDWR | libc::O_TRUNC] {
        let mut how = OpenOptions::new();
        how.read(flags & libc::O_RDWR != 0).write(true).custom_flags(flags);
        let refused = how.open(mounted.path("large")).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EROFS));
    }
    assert!(read_all(reader) == large_content());
}

#[test]
fn passthrough_without_caches_shows_what_others_change() {
    if !can_mount("passthrough_without_caches_shows_what_others_change") {
        return;
    }
    let mounted = Mounted::with(large_and_small, |options| {
        options.passthrough_from = Some(0);
        options.cache = codeagent_mount::Cache::Never;
    });
    let reader = File::open(mounted.path("small")).unwrap();
    fs::write(mounted.workspace.path("small"), "others").unwrap();
    assert_eq!(read_all(reader), b"others");
    mounted.there_and_back("echo more >> small; printf X | dd of=large conv=notrunc 2>/dev/null");
}

/// Killed while files are open in passthrough, the worker is replaced as ever.
#[test]
fn a_worker_killed_while_files_are_open_in_passthrough_is_replaced() {
    let test = "a_worker_killed_while_files_are_open_in_passthrough_is_replaced";
    if !has_passthrough(test) {
        return;
    }
    let workspace = TempWorkspace::with_fixture(large_and_small);
    let served = Served::start(workspace, &["--passthrough", "on"]);
    let before = served.workspace.snapshot();
    let mut held = Vec::new();
    for _ in 0..5 {
        held.push(File::open(served.path("large")).unwrap());
        let worker = served.worker();
        kill_process(worker, Signal::KILL).unwrap();
        wait_for("another worker serves", || {
            let client = served.connect();
            let pid = client.and_then(|client| client.hello().ok()).map(|state| state.pid);
            pid.is_some_and(|pid| pid != worker.as_raw_nonzero().get().cast_unsigned())
        });
        served.wait_until_served();
        assert!(fs::read(served.path("large")).unwrap() == large_content());
    }
    let client = served.connect().unwrap();
    client.open_step(StepRequest::command("use")).unwrap();
    fs::write(served.path("large"), "changed").unwrap();
    client.close_step(Some(0)).unwrap();
    client.undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &served.workspace.snapshot());
    drop(held);
    served.stop();
}

#[test]
fn a_worker_that_has_lost_its_owner_serves_large_files_all_the_same() {
    let test = "a_worker_that_has_lost_its_owner_serves_large_files_all_the_same";
    if !can_mount(test) {
        return;
    }
    let workspace = TempWorkspace::with_fixture(large_and_small);
    let mut served = Served::start(workspace, &["--passthrough", "auto"]);
    let before = served.workspace.snapshot();
    let held = File::open(served.path("large")).unwrap();
    served.process.0.kill().unwrap();
    served.process.0.wait().unwrap();
    assert!(fs::read(served.path("large")).unwrap() == large_content());
    drop(held);
    assert!(fs::read(served.path("large")).unwrap() == large_content());
    fs::write(served.path("large"), "still recorded").unwrap();
    let client = served.connect().unwrap();
    client.end_ambient_step().unwrap();
    client.undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &served.workspace.snapshot());
    assert!(Command::new("umount").arg(served.point.path()).status().unwrap().success());
}

#[test]
fn many_threads_open_one_file_in_every_way() {
    if !can_mount("many_threads_open_one_file_in_every_way") {
        return;
    }
    let mounted = mounted();
    let before = mounted.workspace.snapshot();
    mounted.step_of("load", || {
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let path = mounted.path("large");
                scope.spawn(move || {
                    for round in 0..200 {
                        let mut how = OpenOptions::new();
                        match (thread + round) % 5 {
                            0 => how.write(true),
                            1 => how.read(true).write(true),
                            _ => how.read(true),
                        };
                        let file = how.open(&path).unwrap();
                        match (thread + round) % 5 {
                            0 | 1 => file.write_all_at(b"word", thread * 1000).unwrap(),
                            _ => file.read_exact_at(&mut [0; 4], 2_000_000).unwrap(),
                        }
                    }
                });
            }
        });
    });
    mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &mounted.workspace.snapshot());
}
