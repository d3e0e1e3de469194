//! A client that sends whatever it likes. Every test asserts that the world outside is untouched.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::CStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, RollbackOptions, StepRequest, UndoEngine};
use codeagent_test_support::{TempWorkspace, TreeSnapshot, assert_tree_eq};
use virtiofsd::filesystem::{
    Context, Entry, Extensions, FileSystem, SetattrValid, ZeroCopyReader, ZeroCopyWriter,
};
use virtiofsd::fuse::{ROOT_ID, SetattrIn};
use virtiofsd::oslib::{ReadvFlags, WritevFlags};

const HOSTILE: [&CStr; 11] = [
    c"",
    c".",
    c"..",
    c"/",
    c"/canary",
    c"../canary",
    c"../../canary",
    c"dir/../../canary",
    c"dir/inner",
    c"./file",
    c"file/",
];

struct Bytes(&'static [u8]);

impl ZeroCopyReader for Bytes {
    fn write_to_file_at(
        &mut self,
        file: &File,
        _count: usize,
        offset: u64,
        _flags: Option<WritevFlags>,
    ) -> io::Result<usize> {
        file.write_all_at(self.0, offset).map(|()| self.0.len())
    }
}

struct World {
    fs: InterceptedFs<UndoEngine>,
    workspace: TempWorkspace,
}

impl World {
    fn new(change: impl FnOnce(&mut FsConfig)) -> Self {
        let workspace = TempWorkspace::with_fixture(|root| {
            fs::create_dir(root.join("dir")).unwrap();
            fs::write(root.join("dir/inner"), "inner").unwrap();
            fs::write(root.join("file"), "file").unwrap();
        });
        fs::write(workspace.working().parent().unwrap().join("canary"), "alive").unwrap();
        let config = EngineConfig::new(workspace.working(), workspace.undo());
        let engine = Arc::new(UndoEngine::open(config).unwrap());
        let mut config = FsConfig::new(workspace.working());
        change(&mut config);
        Self { fs: InterceptedFs::new(&config, engine).unwrap(), workspace }
    }

    fn lookup(&self, parent: u64, name: &CStr) -> u64 {
        self.fs.lookup(ctx(), parent, name).unwrap().inode
    }

    fn assert_canary(&self) {
        let canary = self.workspace.working().parent().unwrap().join("canary");
        assert_eq!(fs::read_to_string(canary).unwrap(), "alive");
        let around = fs::read_dir(self.workspace.working().parent().unwrap()).unwrap();
        assert_eq!(around.count(), 3, "working, undo, canary");
    }

    fn snapshot(&self) -> TreeSnapshot {
        self.workspace.snapshot()
    }
}

fn ctx() -> Context {
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Context { uid: ids.0.into(), gid: ids.1.into(), pid: 1 }
}

fn errno<T>(outcome: io::Result<T>) -> Option<i32> {
    outcome.err().and_then(|error| error.raw_os_error())
}

fn extensions() -> Extensions {
    Extensions::default()
}

fn write(world: &World, inode: u64, handle: u64, bytes: &'static [u8]) -> io::Result<usize> {
    let (size, flags) = (bytes.len() as u32, libc::O_RDWR as u32);
    world.fs.write(ctx(), inode, handle, Bytes(bytes), size, 0, None, false, false, flags)
}

/// VF-03
#[test]
fn names_that_lead_outside_are_refused_by_every_operation() {
    let world = World::new(|_| {});
    let before = world.snapshot();
    let file = world.lookup(ROOT_ID, c"file");
    let dir = world.lookup(ROOT_ID, c"dir");
    let (fs, flags) = (&world.fs, libc::O_RDWR as u32);
    for parent in [ROOT_ID, dir] {
        for name in HOSTILE {
            let entry = |outcome: io::Result<Entry>| errno(outcome);
            let outcomes = [
                entry(fs.lookup(ctx(), parent, name)),
                entry(fs.mkdir(ctx(), parent, name, 0o755, 0, extensions())),
                entry(fs.mknod(ctx(), parent, name, libc::S_IFREG | 0o644, 0, 0, extensions())),
                entry(fs.symlink(ctx(), c"target", parent, name, extensions())),
                entry(fs.link(ctx(), file, parent, name)),
                errno(fs.unlink(ctx(), parent, name)),
                errno(fs.rmdir(ctx(), parent, name)),
                errno(fs.rename(ctx(), parent, name, ROOT_ID, c"stolen", 0)),
                errno(fs.rename(ctx(), ROOT_ID, c"file", parent, name, 0)),
                errno(fs.create(ctx(), parent, name, 0o644, false, flags, 0, extensions())),
            ];
            assert_eq!(outcomes, [Some(libc::EINVAL); 10], "{name:?}");
        }
    }
    world.assert_canary();
    assert_tree_eq(&before, &world.snapshot());
}

#[test]
fn inodes_and_handles_that_were_never_given_are_refused() {
    let world = World::new(|_| {});
    let before = world.snapshot();
    let fs = &world.fs;
    let file = world.lookup(ROOT_ID, c"file");
    let refused = [
        errno(fs.mkdir(ctx(), 999, c"x", 0o755, 0, extensions())),
        errno(fs.unlink(ctx(), 999, c"file")),
        errno(write(&world, file, 999, b"x")),
        errno(fs.fallocate(ctx(), file, 999, 0, 0, 10)),
        errno(fs.setattr(ctx(), 999, SetattrIn::default(), None, SetattrValid::MODE)),
        errno(fs.open(ctx(), 999, false, libc::O_RDWR as u32)),
        errno(fs.release(ctx(), file, 0, 999, false, false, None)),
    ];
    assert_eq!(refused, [Some(libc::EBADF); 7]);
    let strange = libc::RENAME_WHITEOUT;
    let renamed = fs.rename(ctx(), ROOT_ID, c"file", ROOT_ID, c"other", strange);
    assert_eq!(errno(renamed), Some(libc::EINVAL));
    world.assert_canary();
    assert_tree_eq(&before, &world.snapshot());
}

/// A symlink that leads outside is an entry like any other: nothing is done to its target.
#[test]
fn symlinks_are_never_followed() {
    let world = World::new(|_| {});
    let fs = &world.fs;
    let link = fs.symlink(ctx(), c"../canary", ROOT_ID, c"link", extensions()).unwrap().inode;
    let flags = (libc::O_RDWR | libc::O_TRUNC) as u32;
    assert!(fs.open(ctx(), link, false, flags).is_err());
    assert!(fs.create(ctx(), ROOT_ID, c"link", 0o644, false, flags, 0, extensions()).is_err());
    assert!(fs.mkdir(ctx(), link, c"below", 0o755, 0, extensions()).is_err());
    assert!(fs.lookup(ctx(), link, c"below").is_err());
    let attr = SetattrIn { size: 0, ..SetattrIn::default() };
    assert!(fs.setattr(ctx(), link, attr, None, SetattrValid::SIZE).is_err());
    fs.unlink(ctx(), ROOT_ID, c"link").unwrap();
    world.assert_canary();
}

#[test]
fn a_directory_swapped_for_a_symlink_leads_nowhere() {
    let world = World::new(|_| {});
    let dir = world.lookup(ROOT_ID, c"dir");
    let outside = world.workspace.working().parent().unwrap();
    fs::rename(world.workspace.path("dir"), world.workspace.path("away")).unwrap();
    std::os::unix::fs::symlink(outside, world.workspace.path("dir")).unwrap();
    let fs = &world.fs;
    let _ = fs.unlink(ctx(), dir, c"canary");
    let _ = fs.mkdir(ctx(), dir, c"made", 0o755, 0, extensions());
    world.assert_canary();
}

#[test]
fn a_read_only_filesystem_refuses_every_mutation() {
    let world = World::new(|config| config.read_only = true);
    let before = world.snapshot();
    let fs = &world.fs;
    let (file, rw) = (world.lookup(ROOT_ID, c"file"), libc::O_RDWR as u32);
    let truncating = libc::O_TRUNC as u32;
    let refused = [
        errno(fs.mkdir(ctx(), ROOT_ID, c"x", 0o755, 0, extensions())),
        errno(fs.unlink(ctx(), ROOT_ID, c"file")),
        errno(fs.rmdir(ctx(), ROOT_ID, c"dir")),
        errno(fs.rename(ctx(), ROOT_ID, c"file", ROOT_ID, c"x", 0)),
        errno(fs.link(ctx(), file, ROOT_ID, c"x")),
        errno(fs.open(ctx(), file, false, rw)),
        errno(fs.open(ctx(), file, false, truncating)),
        errno(fs.create(ctx(), ROOT_ID, c"x", 0o644, false, rw, 0, extensions())),
        errno(fs.create(ctx(), ROOT_ID, c"file", 0o644, false, rw, 0, extensions())),
        errno(fs.setattr(ctx(), file, SetattrIn::default(), None, SetattrValid::MODE)),
        errno(fs.access(ctx(), file, libc::W_OK as u32)),
    ];
    assert_eq!(refused, [Some(libc::EROFS); 11]);
    assert!(fs.open(ctx(), file, false, libc::O_RDONLY as u32).is_ok());
    assert_tree_eq(&before, &world.snapshot());
}

#[test]
fn open_handles_are_bounded() {
    let world = World::new(|config| config.max_handles = 3);
    let fs = &world.fs;
    let file = world.lookup(ROOT_ID, c"file");
    let open = || fs.open(ctx(), file, false, libc::O_RDONLY as u32);
    let first = open().unwrap().0.unwrap();
    fs.opendir(ctx(), ROOT_ID, 0).unwrap();
    open().unwrap();
    assert_eq!(errno(open()), Some(libc::ENFILE));
    let rw = libc::O_RDWR as u32;
    let created = fs.create(ctx(), ROOT_ID, c"new", 0o644, false, rw, 0, extensions());
    assert_eq!(errno(created), Some(libc::ENFILE));
    assert!(!world.workspace.path("new").exists());
    fs.release(ctx(), file, 0, first, false, false, None).unwrap();
    assert!(open().is_ok());
}

/// Open flags are the client's; none of them may create, truncate or hide something unseen.
#[test]
fn an_open_does_nothing_but_open() {
    let world = World::new(|_| {});
    let fs = &world.fs;
    let before = world.snapshot();
    fs.interceptor().open_step(StepRequest::command("open")).unwrap();
    let dir = world.lookup(ROOT_ID, c"dir");
    let file = world.lookup(ROOT_ID, c"file");
    let _ = fs.open(ctx(), dir, false, (libc::O_TMPFILE | libc::O_RDWR) as u32);
    let _ = fs.open(ctx(), file, false, (libc::O_CREAT | libc::O_EXCL | libc::O_PATH) as u32);
    let truncating = (libc::O_TRUNC | libc::O_WRONLY) as u32;
    let handle = fs.open(ctx(), file, false, truncating).unwrap().0.unwrap();
    write(&world, file, handle, b"new").unwrap();
    assert_eq!(fs::read_to_string(world.workspace.path("file")).unwrap(), "new");
    assert_eq!(fs.in_flight(), 0);
    fs.interceptor().close_step(Some(0)).unwrap();
    fs.interceptor().rollback(1, RollbackOptions::default()).unwrap();
    assert_tree_eq(&before, &world.snapshot());
}

/// Memory is set aside for what is asked for.
#[test]
fn sizes_that_no_kernel_asks_for_are_cut() {
    struct Counter<'a>(&'a mut usize);
    impl ZeroCopyWriter for Counter<'_> {
        fn read_from_file_at(
            &mut self,
            _file: &File,
            count: usize,
            _offset: u64,
            _flags: Option<ReadvFlags>,
        ) -> io::Result<usize> {
            *self.0 = count;
            Ok(0)
        }
    }
    let world = World::new(|_| {});
    let file = world.lookup(ROOT_ID, c"file");
    let (handle, _) = world.fs.open(ctx(), file, false, libc::O_RDONLY as u32).unwrap();
    let mut asked_for = 0;
    let into = Counter(&mut asked_for);
    world.fs.read(ctx(), file, handle.unwrap(), into, u32::MAX, 0, None, 0).unwrap();
    assert!((1..=16 << 20).contains(&asked_for), "{asked_for}");

    let before = memory_peak_kib();
    let _ = world.fs.getxattr(ctx(), file, c"user.none", u32::MAX);
    let _ = world.fs.listxattr(ctx(), file, u32::MAX);
    let (dir, _) = world.fs.opendir(ctx(), ROOT_ID, 0).unwrap();
    world.fs.readdir(ctx(), ROOT_ID, dir.unwrap(), u32::MAX, 0).map(drop).unwrap();
    let grown = memory_peak_kib() - before;
    assert!(grown < 64 << 10, "{grown} KiB more");
}

/// Virtual memory, too: what is reserved counts.
fn memory_peak_kib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    peak.trim().trim_end_matches(" kB").parse().unwrap()
}
