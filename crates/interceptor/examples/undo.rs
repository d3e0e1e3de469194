//! Destroys a scratch project and takes it back: `cargo run --release --example undo`.

#![allow(clippy::print_stdout)] // an example talks

use std::error::Error;
use std::fs;
use std::path::Path;

use codeagent_common::RelPath;
use codeagent_interceptor::{
    EngineConfig, Mutation, RollbackOptions, StepRequest, UndoEngine, WriteInterceptor,
};

fn main() -> Result<(), Box<dyn Error>> {
    let scratch = tempfile::tempdir()?;
    let (working, undo) = (scratch.path().join("project"), scratch.path().join("undo"));
    for n in 0..1000 {
        let dir = working.join(format!("src/module{}", n % 10));
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(format!("file{n}.rs")), format!("// file {n}\n"))?;
    }
    let engine = UndoEngine::open(EngineConfig::new(&working, undo))?;
    println!("a project with {} files", count(&working)?);

    engine.open_step(StepRequest::command("rm -rf src"))?;
    remove_all(&engine, &working, RelPath::new(b"src")?)?;
    engine.close_step(Some(0))?;
    println!("after `rm -rf src`: {} files", count(&working)?);

    for step in engine.steps() {
        println!("history: step {}, `{}`, {} deleted", step.id, step.command, step.deleted);
    }
    println!("undo would change {} paths", engine.preview(1)?.changes.len());
    let report = engine.rollback(1, RollbackOptions::default())?;
    println!("after undo: {} files ({} restored)", count(&working)?, report.restored);
    engine.redo(1, RollbackOptions::default())?;
    println!("after redo: {} files", count(&working)?);
    engine.rollback(1, RollbackOptions::default())?;
    println!("after undo: {} files", count(&working)?);
    Ok(())
}

/// What a filesystem front end does for each system call: ask, act, report.
fn remove_all(
    engine: &UndoEngine,
    working: &Path,
    path: RelPath<'_>,
) -> Result<(), Box<dyn Error>> {
    let full = working.join(path.display().as_ref());
    for entry in fs::read_dir(&full)? {
        let entry = entry?;
        let below = path.join(entry.file_name().as_encoded_bytes())?;
        if entry.file_type()?.is_dir() {
            remove_all(engine, working, below.as_path())?;
            continue;
        }
        let permit = engine.before(&Mutation::Unlink { path: below.as_path() })?;
        if !permit.performed() {
            fs::remove_file(entry.path())?;
        }
        permit.done();
    }
    let permit = engine.before(&Mutation::Rmdir { path })?;
    fs::remove_dir(full)?;
    permit.done();
    Ok(())
}

fn count(dir: &Path) -> std::io::Result<usize> {
    let mut files = 0;
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        files += if entry.file_type()?.is_dir() { count(&entry.path())? } else { 1 };
    }
    Ok(files)
}
