//! The other process: it serves a folder and does what it is told over stdin and stdout, one word
//! a line. It ends when its stdin does, so that it never outlives whoever measures.

use std::io::{self, BufRead, Write};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, bail};
use codeagent_interceptor::{ClosedStep, EngineConfig, RollbackOptions, StepRequest, UndoEngine};
use codeagent_mount::{Mount, MountOptions, PlainMount, raise_descriptor_limit};

use super::settings::Settings;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    source: PathBuf,
    mount_point: PathBuf,
    /// Where undo data is kept; without one, nothing is intercepted
    #[arg(long)]
    undo_dir: Option<PathBuf>,
    #[command(flatten)]
    settings: Settings,
}

/// What the other side says when it is there, and when it has done what it was told.
pub(super) const DONE: &str = "done";

pub(crate) fn run(args: &Args) -> Result<()> {
    raise_descriptor_limit();
    let mut options = MountOptions::new(&args.source, &args.mount_point);
    args.settings.apply(&mut options);
    match &args.undo_dir {
        None => {
            let _mount = PlainMount::start(&options)?;
            obey(|word| bail!("cannot {word} without an engine"))
        }
        Some(undo_dir) => {
            let config = EngineConfig::new(&args.source, undo_dir);
            let engine = Arc::new(UndoEngine::open(config)?);
            let mount = Mount::start(&options, Arc::clone(&engine))?;
            let served = obey(|word| act(&engine, word));
            mount.unmount()?;
            served
        }
    }
}

fn obey(act: impl Fn(&str) -> Result<()>) -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{DONE}")?;
    for word in io::stdin().lock().lines() {
        match act(&word?) {
            Ok(()) => writeln!(out, "{DONE}")?,
            Err(error) => writeln!(out, "{error:#}")?,
        }
    }
    Ok(())
}

fn act(engine: &UndoEngine, word: &str) -> Result<()> {
    match word {
        "begin" => {
            engine.open_step(StepRequest::command("benchmark"))?;
        }
        "end" => match engine.close_step(Some(0))? {
            ClosedStep::Recorded { .. } => {}
            other => bail!("the step was not recorded: {other:?}"),
        },
        "undo" => {
            engine.rollback(1, RollbackOptions::default())?;
        }
        other => bail!("cannot {other}"),
    }
    Ok(())
}
