//! The three things that are compared, each a folder to work in.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::Bench;
use super::serve::DONE;
use super::settings::Settings;
use crate::place::{MOUNT_POINT, Scratch};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// The filesystem itself.
    Native,
    /// FUSE without interception, otherwise the same.
    Plain,
    Ours,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Native, Self::Plain, Self::Ours];
}

/// A folder, and maybe a process that serves it.
#[derive(Debug)]
pub(super) struct Side {
    // Dropped in this order: the mount before what it shows.
    server: Option<Server>,
    scratch: Scratch,
    kind: Kind,
}

impl Side {
    /// All three, each with a folder that `fill` has filled before it is served, so that nothing
    /// of it is cached.
    pub(super) fn prepare(
        bench: &Bench<'_>,
        needed_bytes: u64,
        fill: impl Fn(&Path) -> Result<()>,
    ) -> Result<[Self; 3]> {
        let [native, plain, ours] = Kind::ALL.map(|kind| -> Result<Self> {
            let scratch = bench.place.scratch(needed_bytes)?;
            fill(&scratch.work())?;
            let server = match kind {
                Kind::Native => None,
                Kind::Plain | Kind::Ours => Some(Server::start(&scratch, bench.settings, kind)?),
            };
            Ok(Self { server, scratch, kind })
        });
        Ok([native?, plain?, ours?])
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Where the work is done.
    pub(super) fn dir(&self) -> PathBuf {
        match self.kind {
            Kind::Native => self.scratch.work(),
            Kind::Plain | Kind::Ours => self.scratch.path(MOUNT_POINT),
        }
    }

    /// The folder as the host has it.
    pub(super) fn host_dir(&self) -> PathBuf {
        self.scratch.work()
    }

    /// Room beside the folder.
    pub(super) fn beside(&self, name: &str) -> PathBuf {
        self.scratch.path(name)
    }

    /// How long `work` takes as one step, its beginning and end included.
    pub(super) fn step(&mut self, work: impl FnOnce(&Path) -> Result<()>) -> Result<Duration> {
        let dir = self.dir();
        let mut engine = if self.kind == Kind::Ours { self.server.as_mut() } else { None };
        let started = Instant::now();
        if let Some(engine) = &mut engine {
            engine.tell("begin")?;
        }
        work(&dir)?;
        if let Some(engine) = &mut engine {
            engine.tell("end")?;
        }
        Ok(started.elapsed())
    }

    /// Takes the last step back.
    pub(super) fn undo(&mut self) -> Result<Duration> {
        let started = Instant::now();
        self.server.as_mut().context("only ours can undo")?.tell("undo")?;
        Ok(started.elapsed())
    }
}

/// A process that serves a folder: ours here, as clients and servers do not share a process.
#[derive(Debug)]
struct Server {
    child: Child,
    /// Closed to end it.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Server {
    fn start(scratch: &Scratch, settings: &Settings, kind: Kind) -> Result<Self> {
        let mount_point = scratch.path(MOUNT_POINT);
        std::fs::create_dir(&mount_point)?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("serve").arg(scratch.work()).arg(mount_point);
        if kind == Kind::Ours {
            command.arg("--undo-dir").arg(scratch.path("undo"));
        }
        settings.pass_on(&mut command);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let orders = child.stdin.take();
        let answers = child.stdout.take().context("the server has no output")?;
        let mut server = Self { child, orders, answers: BufReader::new(answers) };
        server.hear()?;
        Ok(server)
    }

    fn tell(&mut self, word: &str) -> Result<()> {
        let orders = self.orders.as_mut().context("the server has ended")?;
        writeln!(orders, "{word}")?;
        self.hear()
    }

    fn hear(&mut self) -> Result<()> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        ensure!(line.trim_end() == DONE, "the mount failed: {}", line.trim_end());
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.orders = None;
        let _ = self.child.wait();
    }
}
