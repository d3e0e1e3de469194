//! A minimal front end: asks the engine, then does it. Both sides of every comparison run the same
//! system calls, because one is made of the other.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Result, bail};
use codeagent_common::{EntryKind, RelPath, StepInfo};
use codeagent_interceptor::{
    ClosedStep, FileId, FileRef, Mutation, Permit, RenameMode, StepRequest, UndoEngine,
    WriteInterceptor,
};
use rustix::fs::{AtFlags, Mode, OFlags};

/// What the workloads do to a tree.
pub(crate) trait FrontEnd {
    fn create(&self, path: RelPath<'_>, content: &[u8]) -> Result<()>;
    /// Writes to an existing file.
    fn write(&self, path: RelPath<'_>, offset: u64, bytes: &[u8]) -> Result<()>;
    fn unlink(&self, path: RelPath<'_>) -> Result<()>;
    fn rmdir(&self, path: RelPath<'_>) -> Result<()>;
    fn rename(&self, from: RelPath<'_>, to: RelPath<'_>) -> Result<()>;
}

/// The host alone; everything relative to one descriptor.
#[derive(Debug)]
pub(crate) struct Bare {
    root: OwnedFd,
}

impl Bare {
    pub(crate) fn open(root: &Path) -> Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(Self { root: rustix::fs::open(root, flags, Mode::empty())? })
    }

    fn create_file(&self, path: RelPath<'_>) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        Ok(File::from(rustix::fs::openat(&self.root, path.as_bytes(), flags, mode)?))
    }

    pub(crate) fn open_file(&self, path: RelPath<'_>) -> Result<File> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(rustix::fs::openat(&self.root, path.as_bytes(), flags, Mode::empty())?))
    }
}

impl FrontEnd for Bare {
    fn create(&self, path: RelPath<'_>, content: &[u8]) -> Result<()> {
        Ok(self.create_file(path)?.write_all_at(content, 0)?)
    }

    fn write(&self, path: RelPath<'_>, offset: u64, bytes: &[u8]) -> Result<()> {
        Ok(self.open_file(path)?.write_all_at(bytes, offset)?)
    }

    fn unlink(&self, path: RelPath<'_>) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, path.as_bytes(), AtFlags::empty())?)
    }

    fn rmdir(&self, path: RelPath<'_>) -> Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, path.as_bytes(), AtFlags::REMOVEDIR)?)
    }

    fn rename(&self, from: RelPath<'_>, to: RelPath<'_>) -> Result<()> {
        Ok(rustix::fs::renameat(&self.root, from.as_bytes(), &self.root, to.as_bytes())?)
    }
}

/// The host behind the engine.
#[derive(Debug)]
pub(crate) struct Guarded<'e> {
    pub(crate) engine: &'e UndoEngine,
    pub(crate) bare: Bare,
}

impl<'e> Guarded<'e> {
    pub(crate) fn open(engine: &'e UndoEngine, root: &Path) -> Result<Self> {
        Ok(Self { engine, bare: Bare::open(root)? })
    }

    /// Runs `work` as one step.
    pub(crate) fn step(&self, work: impl FnOnce() -> Result<()>) -> Result<StepInfo> {
        self.engine.open_step(StepRequest::command("benchmark"))?;
        work()?;
        match self.engine.close_step(Some(0))? {
            ClosedStep::Recorded { step, .. } => Ok(step),
            other => bail!("the step was not recorded: {other:?}"),
        }
    }

    fn apply(&self, mutation: &Mutation<'_>, host: impl FnOnce() -> Result<()>) -> Result<()> {
        let permit = self.engine.before(mutation)?;
        if permit.performed() {
            return Ok(());
        }
        finish(permit, host())
    }
}

impl FrontEnd for Guarded<'_> {
    fn create(&self, path: RelPath<'_>, content: &[u8]) -> Result<()> {
        let permit = self.engine.before(&Mutation::Create { path, kind: EntryKind::File })?;
        let file = match self.bare.create_file(path) {
            Ok(file) => file,
            Err(error) => {
                permit.failed();
                return Err(error);
            }
        };
        // A front end knows the identity of each of its handles: it has answered the guest with it.
        let id = FileId::of(&file)?;
        permit.created(id);
        let host = || Ok(file.write_all_at(content, 0)?);
        let length = content.len() as u64;
        if let Some(permit) = self.engine.repeat_write(id, 0, length) {
            return finish(permit, host());
        }
        let file_ref = FileRef { path, open: Some(&file) };
        self.apply(&Mutation::Write { file: file_ref, offset: 0, length }, host)
    }

    fn write(&self, path: RelPath<'_>, offset: u64, bytes: &[u8]) -> Result<()> {
        let file = self.bare.open_file(path)?;
        let host = || Ok(file.write_all_at(bytes, offset)?);
        let length = bytes.len() as u64;
        if let Some(permit) = self.engine.repeat_write(FileId::of(&file)?, offset, length) {
            return finish(permit, host());
        }
        let file_ref = FileRef { path, open: Some(&file) };
        self.apply(&Mutation::Write { file: file_ref, offset, length }, host)
    }

    fn unlink(&self, path: RelPath<'_>) -> Result<()> {
        self.apply(&Mutation::Unlink { path }, || self.bare.unlink(path))
    }

    fn rmdir(&self, path: RelPath<'_>) -> Result<()> {
        self.apply(&Mutation::Rmdir { path }, || self.bare.rmdir(path))
    }

    fn rename(&self, from: RelPath<'_>, to: RelPath<'_>) -> Result<()> {
        let mutation = Mutation::Rename { from, to, mode: RenameMode::Replace };
        self.apply(&mutation, || self.bare.rename(from, to))
    }
}

fn finish(permit: Permit<'_>, outcome: Result<()>) -> Result<()> {
    match outcome {
        Ok(()) => permit.done(),
        Err(_) => permit.failed(),
    }
    outcome
}
