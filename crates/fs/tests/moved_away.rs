//! Names that lead somewhere else by now: an undo has renamed, or somebody outside.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::fs;
use std::sync::Arc;

use codeagent_common::{PathUse, PathVerdict, RelPath};
use codeagent_fs::{FsConfig, InterceptedFs};
use codeagent_interceptor::{EngineConfig, PathPolicy, RollbackOptions, StepRequest, UndoEngine};
use codeagent_test_support::{TempWorkspace, assert_tree_eq};
use virtiofsd::filesystem::{Context, Extensions, FileSystem, SetattrValid};
use virtiofsd::fuse::{ROOT_ID, SetattrIn};

fn ctx() -> Context {
    let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    Context { uid: ids.0.into(), gid: ids.1.into(), pid: 1 }
}

type Fs = InterceptedFs<UndoEngine>;

/// `dir` with `inner` and `sub` in it, and a client that works in `dir`.
struct Bench {
    workspace: TempWorkspace,
    engine: Arc<UndoEngine>,
    fs: Fs,
    dir: u64,
}

impl Bench {
    fn new(policy: Option<Arc<dyn PathPolicy>>) -> Self {
        let workspace = TempWorkspace::with_fixture(|root| {
            fs::create_dir_all(root.join("dir/sub")).unwrap();
            fs::write(root.join("dir/inner"), "inner").unwrap();
            std::os::unix::fs::symlink("inner", root.join("dir/link")).unwrap();
        });
        let mut config = EngineConfig::new(workspace.working(), workspace.undo());
        if let Some(policy) = policy {
            config.paths = policy;
        }
        let engine = Arc::new(UndoEngine::open(config).unwrap());
        let fs =
            InterceptedFs::new(&FsConfig::new(workspace.working()), Arc::clone(&engine)).unwrap();
        let dir = fs.lookup(ctx(), ROOT_ID, c"dir").unwrap().inode;
        Self { workspace, engine, fs, dir }
    }

    fn step(&self, work: impl FnOnce()) {
        self.engine.open_step(StepRequest::command("x")).unwrap();
        work();
        self.engine.close_step(Some(0)).unwrap();
    }

    fn undo(&self) {
        self.engine.rollback(1, RollbackOptions::default()).unwrap();
    }

    /// Everything a client can do in a directory it has, to names that are there and new ones.
    fn everything_in(&self, dir: u64, link: u64, inner: u64) -> Vec<i32> {
        let (fs, none) = (&self.fs, Extensions::default);
        let create = libc::O_CREAT as u32 | libc::O_WRONLY as u32;
        let times = SetattrValid::MTIME;
        let outcomes = [
            fs.mkdir(ctx(), dir, c"new", 0o755, 0, none()).err(),
            fs.create(ctx(), dir, c"file", 0o644, false, create, 0, none()).err(),
            fs.symlink(ctx(), c"x", dir, c"symlink", none()).err(),
            fs.mknod(ctx(), dir, c"fifo", libc::S_IFIFO | 0o644, 0, 0, none()).err(),
            fs.link(ctx(), inner, dir, c"second").err(),
            fs.unlink(ctx(), dir, c"inner").err(),
            fs.rmdir(ctx(), dir, c"sub").err(),
            fs.rename(ctx(), dir, c"inner", dir, c"other", 0).err(),
            fs.rename(ctx(), dir, c"inner", ROOT_ID, c"outside", 0).err(),
            fs.rename(ctx(), ROOT_ID, c"elsewhere", dir, c"inside", 0).err(),
            fs.rename(ctx(), dir, c"inner", dir, c"link", libc::RENAME_EXCHANGE).err(),
            fs.setattr(ctx(), link, SetattrIn::default(), None, times).err(),
        ];
        outcomes.into_iter().map(|error| error.map_or(0, |e| e.raw_os_error().unwrap())).collect()
    }
}

/// Makes `moved` again, as it was when the client saw it, with other things in it.
fn impostor(at: &std::path::Path) {
    fs::create_dir_all(at.join("sub")).unwrap();
    fs::write(at.join("inner"), "of somebody else").unwrap();
    fs::write(at.join("link"), "no symlink").unwrap();
}

/// What the client does would be recorded and judged by a name that is another directory's.
#[test]
fn in_a_directory_that_an_undo_has_moved_nothing_happens_by_its_former_name() {
    let bench = Bench::new(None);
    let link = bench.fs.lookup(ctx(), bench.dir, c"link").unwrap().inode;
    let inner = bench.fs.lookup(ctx(), bench.dir, c"inner").unwrap().inode;
    bench.step(|| bench.fs.rename(ctx(), ROOT_ID, c"dir", ROOT_ID, c"moved", 0).unwrap());
    bench.undo();
    impostor(&bench.workspace.path("moved"));
    fs::write(bench.workspace.path("elsewhere"), "elsewhere").unwrap();
    let before = bench.workspace.snapshot();
    bench.step(|| {
        let outcomes = bench.everything_in(bench.dir, link, inner);
        assert_eq!(outcomes, vec![libc::ESTALE; outcomes.len()]);
    });
    assert_tree_eq(&before, &bench.workspace.snapshot());
    // Who looks again finds it, and is recorded.
    let dir = bench.fs.lookup(ctx(), ROOT_ID, c"dir").unwrap().inode;
    assert_eq!(dir, bench.dir);
    bench.step(|| {
        bench.fs.mkdir(ctx(), dir, c"new", 0o755, 0, Extensions::default()).unwrap();
        bench.fs.unlink(ctx(), dir, c"inner").unwrap();
    });
    assert!(bench.workspace.path("dir/new").is_dir());
    bench.undo();
    assert_tree_eq(&before, &bench.workspace.snapshot());
}

/// `rm inner` there must not take the file of that name from the directory that is called so now.
#[test]
fn in_a_directory_that_somebody_outside_has_moved_nothing_happens_by_its_former_name() {
    let bench = Bench::new(None);
    let link = bench.fs.lookup(ctx(), bench.dir, c"link").unwrap().inode;
    let inner = bench.fs.lookup(ctx(), bench.dir, c"inner").unwrap().inode;
    let (here, there) = (bench.workspace.path("dir"), bench.workspace.path("there"));
    fs::rename(&here, &there).unwrap();
    impostor(&here);
    fs::write(bench.workspace.path("elsewhere"), "elsewhere").unwrap();
    let before = bench.workspace.snapshot();
    bench.step(|| {
        let outcomes = bench.everything_in(bench.dir, link, inner);
        assert_eq!(outcomes, vec![libc::ESTALE; outcomes.len()]);
    });
    assert_tree_eq(&before, &bench.workspace.snapshot());
}

/// Only `config` is protected.
#[derive(Debug)]
struct OneName;

impl PathPolicy for OneName {
    fn judge(&self, path: RelPath<'_>, usage: PathUse) -> PathVerdict {
        match usage == PathUse::Write && path.as_bytes() == b"config" {
            true => PathVerdict::Deny("config".into()),
            false => PathVerdict::Allow,
        }
    }
}

/// Who had the file open by another name goes on writing to it.
#[test]
fn a_file_that_an_undo_brings_back_to_a_protected_name_is_protected() {
    let bench = Bench::new(Some(Arc::new(OneName)));
    fs::write(bench.workspace.path("config"), "as it was").unwrap();
    let mut open = None;
    bench.step(|| {
        bench.fs.rename(ctx(), ROOT_ID, c"config", ROOT_ID, c"z", 0).unwrap();
        let node = bench.fs.lookup(ctx(), ROOT_ID, c"z").unwrap().inode;
        let write = libc::O_WRONLY as u32;
        open = Some((node, bench.fs.open(ctx(), node, false, write).unwrap().0.unwrap()));
    });
    bench.undo();
    let before = bench.workspace.snapshot();
    let (node, handle) = open.unwrap();
    let size = SetattrValid::SIZE;
    bench.step(|| {
        let cut = bench.fs.setattr(ctx(), node, SetattrIn::default(), Some(handle), size);
        assert_eq!(cut.unwrap_err().raw_os_error(), Some(libc::EPERM));
    });
    assert_tree_eq(&before, &bench.workspace.snapshot());
}
