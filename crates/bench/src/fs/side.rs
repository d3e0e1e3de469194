//! The things that are compared, each a folder to work in.

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
    /// Ours, and the kernel reads files itself.
    Passthrough,
}

impl Kind {
    /// What interception costs.
    const INTERCEPTION: [Self; 3] = [Self::Native, Self::Plain, Self::Ours];
    /// What the kernel gains by reading itself.
    const PASSTHROUGH: [Self; 3] = [Self::Native, Self::Ours, Self::Passthrough];

    fn is_served(self) -> bool {
        self != Self::Native
    }

    fn has_engine(self) -> bool {
        matches!(self, Self::Ours | Self::Passthrough)
    }
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
        let kinds = Kind::INTERCEPTION.map(|kind| (kind, bench.settings.clone()));
        Self::prepare_kinds(kinds, bench, needed_bytes, fill)
    }

    /// The same, to see what passthrough gains.
    pub(super) fn prepare_passthrough(
        bench: &Bench<'_>,
        needed_bytes: u64,
        fill: impl Fn(&Path) -> Result<()>,
    ) -> Result<[Self; 3]> {
        let settings = |kind| bench.settings.with_passthrough(kind == Kind::Passthrough);
        let kinds = Kind::PASSTHROUGH.map(|kind| (kind, settings(kind)));
        Self::prepare_kinds(kinds, bench, needed_bytes, fill)
    }

    fn prepare_kinds(
        kinds: [(Kind, Settings); 3],
        bench: &Bench<'_>,
        needed_bytes: u64,
        fill: impl Fn(&Path) -> Result<()>,
    ) -> Result<[Self; 3]> {
        let [one, two, three] = kinds.map(|(kind, settings)| -> Result<Self> {
            let scratch = bench.place.scratch(needed_bytes)?;
            fill(&scratch.work())?;
            let server = match kind.is_served() {
                true => Some(Server::start(&scratch, &settings, kind)?),
                false => None,
            };
            Ok(Self { server, scratch, kind })
        });
        Ok([one?, two?, three?])
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    /// Where the work is done.
    pub(super) fn dir(&self) -> PathBuf {
        if self.kind.is_served() { self.scratch.path(MOUNT_POINT) } else { self.scratch.work() }
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
        let mut engine = if self.kind.has_engine() { self.server.as_mut() } else { None };
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
        if kind.has_engine() {
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
