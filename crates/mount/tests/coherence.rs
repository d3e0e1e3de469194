//! What the kernel keeps of a mount is true: after an undo, and after edits in the source itself.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use codeagent_fs::Cache;
use codeagent_interceptor::{RollbackOptions, StepRequest};
use codeagent_test_support::{TreeSnapshot, assert_tree_eq};
use common::{Mounted, can_mount};

const ALL: [Cache; 3] = [Cache::Never, Cache::Coherent, Cache::Auto];

/// How old a change on the host may be before a mount that keeps names has to show it.
const BOUND: Duration = Duration::from_secs(1);

fn project(root: &Path) {
    fs::create_dir_all(root.join("dir/deep")).unwrap();
    fs::write(root.join("dir/deep/leaf"), "leaf").unwrap();
    fs::write(root.join("dir/file"), "file").unwrap();
    fs::write(root.join("changed"), "before").unwrap();
    fs::write(root.join("removed"), "removed").unwrap();
    fs::write(root.join("linked"), "linked").unwrap();
    fs::hard_link(root.join("linked"), root.join("dir/link")).unwrap();
}

fn mounted(cache: Cache) -> Mounted {
    Mounted::with(project, |options| options.cache = cache)
}

fn undo(mounted: &Mounted) {
    mounted.engine().rollback(1, RollbackOptions::default()).unwrap();
}

/// Everything the kernel could keep: names, attributes, contents, and that there is nothing.
fn look_at_everything(mounted: &Mounted) {
    TreeSnapshot::capture(mounted.mount.mount_point());
    for absent in ["new", "dir/new", "renamed", "dir/deep/new"] {
        let _ = fs::metadata(mounted.path(absent));
    }
}

#[test]
fn undo_and_redo_leave_nothing_stale_in_the_mount() {
    if !can_mount("undo_and_redo_leave_nothing_stale_in_the_mount") {
        return;
    }
    for cache in ALL {
        let mounted = mounted(cache);
        let before = mounted.workspace.snapshot();
        look_at_everything(&mounted);
        mounted.step(
            "echo a longer text > changed; rm removed dir/link; echo new > new; mv dir renamed; \
             mkdir dir; echo other > dir/file; chmod 600 renamed/file; echo x >> linked; \
             ln -s changed link; rm -r renamed/deep",
        );
        let after = mounted.workspace.snapshot();
        for _ in 0..3 {
            look_at_everything(&mounted);
            undo(&mounted);
            mounted.assert_seen_through_the_mount(&before);
            for gone in ["new", "renamed", "link"] {
                assert!(fs::symlink_metadata(mounted.path(gone)).is_err(), "{cache:?}: {gone}");
            }
            mounted.engine().redo(1, RollbackOptions::default()).unwrap();
            mounted.assert_seen_through_the_mount(&after);
            assert!(fs::symlink_metadata(mounted.path("removed")).is_err(), "{cache:?}");
        }
    }
}

#[test]
fn an_open_file_shows_what_undo_made_of_it() {
    if !can_mount("an_open_file_shows_what_undo_made_of_it") {
        return;
    }
    for cache in ALL {
        let mounted = mounted(cache);
        let mut open = File::open(mounted.path("changed")).unwrap();
        // In place, as undo does it, so that the open file is the same one.
        mounted.step("printf 'AFTER and more' | dd of=changed conv=notrunc 2>/dev/null");
        let mut text = String::new();
        open.read_to_string(&mut text).unwrap();
        assert_eq!(text, "AFTER and more", "{cache:?}");
        undo(&mounted);
        assert_eq!(open.metadata().unwrap().len(), 6, "{cache:?}");
        let mut bytes = [0; 32];
        let read = open.read_at(&mut bytes, 0).unwrap();
        assert_eq!(&bytes[..read], b"before", "{cache:?}");
    }
}

#[test]
fn a_mapped_file_shows_what_undo_made_of_it() {
    if !can_mount("a_mapped_file_shows_what_undo_made_of_it") || !common::has("python3") {
        return;
    }
    for cache in [Cache::Coherent, Cache::Auto] {
        let mounted = mounted(cache);
        let script = "import mmap, sys; f = open('changed', 'rb'); \
            m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)\n\
            for line in sys.stdin: print(m[:6].decode(), flush=True)";
        let mut reader = Mapping::start(&mounted, script);
        mounted.engine().open_step(StepRequest::command("write")).unwrap();
        let file = File::options().write(true).open(mounted.path("changed")).unwrap();
        file.write_all_at(b"AFTER!", 0).unwrap();
        drop(file);
        mounted.engine().close_step(Some(0)).unwrap();
        assert_eq!(reader.look(), "AFTER!", "{cache:?}");
        undo(&mounted);
        assert_eq!(reader.look(), "before", "{cache:?}");
    }
}

struct Mapping {
    child: std::process::Child,
    answers: std::io::BufReader<std::process::ChildStdout>,
}

impl Mapping {
    fn start(mounted: &Mounted, script: &str) -> Self {
        let mut child = std::process::Command::new("python3")
            .args(["-c", script])
            .current_dir(mounted.mount.mount_point())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let answers = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut mapping = Self { child, answers };
        assert_eq!(mapping.look(), "before");
        mapping
    }

    fn look(&mut self) -> String {
        use std::io::{BufRead, Write};
        writeln!(self.child.stdin.as_mut().unwrap(), "look").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

#[test]
fn programs_stay_in_their_directory_through_an_undo() {
    if !can_mount("programs_stay_in_their_directory_through_an_undo") {
        return;
    }
    for cache in ALL {
        let mounted = mounted(cache);
        look_at_everything(&mounted);
        mounted.step("echo changed > dir/file; rm dir/deep/leaf");
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "read line; /bin/pwd >&2; cat file; cat deep/leaf"])
            .current_dir(mounted.path("dir"))
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        undo(&mounted);
        std::io::Write::write_all(&mut shell.stdin.take().unwrap(), b"go\n").unwrap();
        let output = shell.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(said.trim_end(), mounted.path("dir").to_str().unwrap(), "{cache:?}");
        assert_eq!(output.stdout, b"fileleaf", "{cache:?}");
    }
}

#[test]
fn edits_in_the_source_are_seen_in_the_mount() {
    if !can_mount("edits_in_the_source_are_seen_in_the_mount") {
        return;
    }
    for cache in ALL {
        let mounted = mounted(cache);
        look_at_everything(&mounted);
        let source = mounted.workspace.working().to_path_buf();
        fs::write(source.join("changed"), "changed on the host").unwrap();
        fs::remove_file(source.join("removed")).unwrap();
        fs::write(source.join("dir/new"), "made on the host").unwrap();
        fs::rename(source.join("dir/deep"), source.join("renamed")).unwrap();
        let edited = Instant::now();
        let expected = mounted.workspace.snapshot();
        if cache == Cache::Auto {
            // What was never there is never kept.
            assert_eq!(fs::read(mounted.path("dir/new")).unwrap(), b"made on the host");
            std::thread::sleep(
                (BOUND + Duration::from_millis(50)).saturating_sub(edited.elapsed()),
            );
        }
        assert_tree_eq(&expected, &TreeSnapshot::capture(mounted.mount.mount_point()));
    }
}

#[test]
fn a_restored_path_is_seen_at_once() {
    if !can_mount("a_restored_path_is_seen_at_once") {
        return;
    }
    for cache in ALL {
        let mounted = mounted(cache);
        mounted.step("echo a longer text > changed; rm removed");
        look_at_everything(&mounted);
        let step = mounted.engine().steps()[0].id;
        let paths = ["changed", "removed"]
            .map(|path| codeagent_common::RelPathBuf::new(path.as_bytes()).unwrap());
        mounted.engine().restore(step, &paths).unwrap();
        assert_eq!(fs::read(mounted.path("changed")).unwrap(), b"before", "{cache:?}");
        assert_eq!(fs::read(mounted.path("removed")).unwrap(), b"removed", "{cache:?}");
    }
}

#[test]
fn an_aborted_step_is_seen_at_once() {
    if !can_mount("an_aborted_step_is_seen_at_once") {
        return;
    }
    for cache in ALL {
        let mounted = mounted(cache);
        let before = mounted.workspace.snapshot();
        mounted.engine().open_step(StepRequest::command("aborted")).unwrap();
        mounted.sh("rm -r dir; echo a longer text > changed; echo new > new");
        look_at_everything(&mounted);
        mounted.engine().abort_step().unwrap();
        mounted.assert_seen_through_the_mount(&before);
    }
}
