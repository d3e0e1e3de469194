//! The confined worker can do whatever a filesystem has to.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use codeagent_interceptor::{OnConflict, StepRequest};
use codeagent_mount::unmount;
use codeagent_test_support::filesystems::{SmallDisk, skip};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq};
use codeagent_worker::Client;
use common::{Process, binary, can_mount, has, is_mount, sh, wait_for};
use rustix::process::{Pid, Signal, kill_process};

/// As many kinds of requests as there are, each of which has to succeed.
const REQUESTS: &str = r#"
import ctypes, fcntl, mmap, os, socket, stat
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    assert getattr(libc, name)(*arguments) == 0, (name, os.strerror(ctypes.get_errno()))
long = ctypes.c_long
f = os.open('file', os.O_RDWR)
assert os.read(f, 7) == b'content'
os.pwrite(f, b'x' * 200000, 5)
os.posix_fadvise(f, 0, 0, os.POSIX_FADV_DONTNEED)
for mode in (0, 1, 3):
    call('fallocate', f, mode, long(4096), long(8192))
os.lseek(f, 0, os.SEEK_DATA); os.lseek(f, 0, os.SEEK_HOLE)
os.fsync(f); os.fdatasync(f); call('syncfs', f); os.fstatvfs(f)
fcntl.flock(f, fcntl.LOCK_EX); fcntl.flock(f, fcntl.LOCK_UN); fcntl.lockf(f, fcntl.LOCK_EX)
m = mmap.mmap(f, 4096); m[10:14] = b'mmap'; m.flush()
g = os.open('copy', os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o640)
os.write(g, b'appended'); os.close(g)
g = os.open('copy', os.O_RDWR)
os.copy_file_range(f, g, 10000, 0, 3); os.sendfile(g, f, 0, 1000)
os.ftruncate(g, 123); os.truncate('copy', 77)
os.fchmod(g, 0o4711); os.chown('copy', 65534, 65534); os.utime('copy', ns=(1, 2)); os.utime('dir')
os.mkfifo('fifo'); os.mknod('device', 0o600 | stat.S_IFCHR, os.makedev(1, 3))
s = socket.socket(socket.AF_UNIX); s.bind('socket')
os.symlink('dir', 'link'); assert os.readlink('link') == 'dir'
os.chown('link', 1, 1, follow_symlinks=False); os.chown('fifo', 1, 1); os.chmod('fifo', 0o611)
for name in ('file', 'dir'):
    os.setxattr(name, 'user.a', b'1'); os.setxattr(name, 'user.b', b'2' * 1000)
    assert os.getxattr(name, 'user.a') == b'1' and 'user.b' in os.listxattr(name)
    os.removexattr(name, 'user.a')
for name in ('fifo', 'device', 'socket', 'link'):
    os.listxattr(name, follow_symlinks=False)
os.link('file', 'hard'); os.mkdir('made'); os.chmod('made', 0o1777); os.rename('hard', 'made/hard')
for flags, to in ((1, b'dir/new'), (2, b'file')):
    call('renameat2', -100, b'copy' if flags == 1 else b'dir/new', -100, to, flags)
os.access('dir', os.R_OK | os.W_OK | os.X_OK); os.statvfs('dir'); os.listdir('dir')
for number in range(300):
    with open('made/%d' % number, 'w') as new: new.write('x' * number * 10)
for number in range(100): os.unlink('made/%d' % number)
o = os.open('made/299', os.O_RDWR); os.unlink('made/299'); os.write(o, b'no name'); os.fstat(o)
os.unlink('fifo'); os.rmdir('empty'); os.close(os.open('made/200', os.O_WRONLY | os.O_TRUNC))
if os.fork() == 0:
    os.setgroups([1234]); os.setgid(65534); os.setuid(65534)
    with open('made/theirs', 'w') as new: new.write('of another user')
    os.chmod('made/theirs', 0o600); os.mkdir('made/their-dir'); os.rename('made/theirs', 'made/t')
    os._exit(0)
assert os.wait()[1] == 0 and os.stat('made/t').st_uid == 65534
"#;

#[test]
fn every_kind_of_request_passes_the_filter_of_system_calls() {
    let test = "every_kind_of_request_passes_the_filter_of_system_calls";
    if !can_mount(test) {
        return;
    }
    if !rustix::process::geteuid().is_root() || !has("python3") {
        return skip(test, "devices and other users need root, and this python3");
    }
    let workspace = TempWorkspace::with_fixture(|root| {
        fs::write(root.join("file"), "content").unwrap();
        fs::create_dir(root.join("dir")).unwrap();
        fs::create_dir(root.join("empty")).unwrap();
    });
    let point = tempfile::tempdir().unwrap();
    for dir in [point.path(), workspace.working().parent().unwrap()] {
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    }
    let mut process = Process(binary(&workspace, point.path(), &[]).spawn().unwrap());
    let client = client_of(&workspace, point.path());
    let before = workspace.snapshot();
    client.open_step(StepRequest::command("everything")).unwrap();
    fs::write(workspace.undo().with_extension("py"), REQUESTS).unwrap();
    sh(&format!("python3 {}", workspace.undo().with_extension("py").display()), point.path());
    client.close_step(Some(0)).unwrap();
    let after = workspace.snapshot();
    assert_tree_eq(&after, &TreeSnapshot::capture(point.path()));
    client.undo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&before, &workspace.snapshot());
    client.redo(1, OnConflict::Refuse).unwrap();
    assert_tree_eq(&after, &workspace.snapshot());
    kill_process(Pid::from_child(&process.0), Signal::TERM).unwrap();
    assert!(process.0.wait().unwrap().success());
    assert!(!is_mount(point.path()));
}

fn client_of(workspace: &TempWorkspace, point: &Path) -> Client {
    wait_for("it is mounted", || point.join("file").exists());
    let client = Client::connect(workspace.undo()).unwrap();
    assert!(client.hello().unwrap().confinement.unwrap().is_complete());
    client
}

/// Within its enclosure the worker still has both directories on one mount, or it would copy.
#[test]
fn what_is_removed_is_moved_into_the_undo_directory_and_back() {
    let test = "what_is_removed_is_moved_into_the_undo_directory_and_back";
    if !can_mount(test) {
        return;
    }
    let workspace =
        TempWorkspace::with_fixture(|root| fs::write(root.join("file"), "content").unwrap());
    let point = tempfile::tempdir().unwrap();
    let _process = Process(binary(&workspace, point.path(), &[]).spawn().unwrap());
    let client = client_of(&workspace, point.path());
    let inode = fs::metadata(workspace.path("file")).unwrap().ino();
    client.open_step(StepRequest::command("rm")).unwrap();
    fs::remove_file(point.path().join("file")).unwrap();
    client.close_step(Some(0)).unwrap();
    sh(&format!("find {} -inum {inode} | grep -q .", workspace.undo().display()), Path::new("/"));
    client.undo(1, OnConflict::Refuse).unwrap();
    assert_eq!(fs::metadata(workspace.path("file")).unwrap().ino(), inode);
    unmount(point.path(), false).unwrap();
}

#[test]
fn a_filesystem_that_is_mounted_within_the_folder_is_served_with_it() {
    let test = "a_filesystem_that_is_mounted_within_the_folder_is_served_with_it";
    if !can_mount(test) {
        return;
    }
    let workspace =
        TempWorkspace::with_fixture(|root| fs::write(root.join("file"), "content").unwrap());
    let Some(disk) = SmallDisk::mount(&workspace.path("disk"), "1M") else {
        return skip(test, "mounting a filesystem in memory needs root");
    };
    fs::write(disk.path().join("there"), "before").unwrap();
    let point = tempfile::tempdir().unwrap();
    let _process = Process(binary(&workspace, point.path(), &[]).spawn().unwrap());
    let client = client_of(&workspace, point.path());
    client.open_step(StepRequest::command("write")).unwrap();
    fs::write(point.path().join("disk/there"), "after").unwrap();
    client.close_step(Some(0)).unwrap();
    assert_eq!(fs::read_to_string(disk.path().join("there")).unwrap(), "after");
    client.undo(1, OnConflict::Refuse).unwrap();
    assert_eq!(fs::read_to_string(disk.path().join("there")).unwrap(), "before");
    unmount(point.path(), false).unwrap();
}

/// As below, or the safe side: the worker sees one group of a caller, and has none of its own.
#[test]
fn set_group_id_bits_are_not_kept_by_the_groups_of_whoever_mounted() {
    let test = "set_group_id_bits_are_not_kept_by_the_groups_of_whoever_mounted";
    if !can_mount(test) {
        return;
    }
    if !rustix::process::geteuid().is_root() || !has("setpriv") || !has("setfacl") {
        return skip(test, "acting as somebody else needs root, setpriv and setfacl");
    }
    const GROUP: u32 = 34_567;
    const OWNER: u32 = 54_321;
    let workspace = TempWorkspace::with_fixture(|root| {
        for name in ["file", "written", "acl", "acl-of-member", "acl-of-other-member"] {
            fs::write(root.join(name), name).unwrap();
            std::os::unix::fs::chown(root.join(name), Some(OWNER), Some(GROUP)).unwrap();
            fs::set_permissions(root.join(name), Permissions::from_mode(0o2766)).unwrap();
        }
    });
    let point = tempfile::tempdir().unwrap();
    for dir in [point.path(), workspace.working(), workspace.working().parent().unwrap()] {
        fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    }
    let inner = binary(&workspace, point.path(), &[]);
    let mut command = Command::new("setpriv");
    command.arg("--groups").arg(GROUP.to_string()).arg(inner.get_program());
    command.args(inner.get_args()).stdout(Stdio::null()).stderr(Stdio::null());
    let _process = Process(command.spawn().unwrap());
    let _client = client_of(&workspace, point.path());

    let as_owner = |group: u32, others: &str, script: &str| {
        let who = format!("setpriv --reuid {OWNER} --regid {group} {others}");
        sh(&format!("{who} sh -c '{script}'"), point.path());
    };
    as_owner(OWNER, "--clear-groups", "echo x >> written");
    as_owner(OWNER, "--clear-groups", "setfacl -m u:12345:r acl");
    as_owner(GROUP, "--clear-groups", "setfacl -m u:12345:r acl-of-member");
    as_owner(OWNER, &format!("--groups {GROUP}"), "setfacl -m u:12345:r acl-of-other-member");
    let keeps = |name| fs::metadata(workspace.path(name)).unwrap().mode() & 0o2000 != 0;
    assert!(!keeps("written"), "by the groups of whoever mounted it would");
    assert!(!keeps("acl"));
    assert!(keeps("acl-of-member"));
    assert!(!keeps("acl-of-other-member"), "below it would; from here that cannot be seen");
    unmount(point.path(), false).unwrap();
}
