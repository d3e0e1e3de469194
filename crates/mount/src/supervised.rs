//! A mount whose filesystem lives in a worker process, which is started again when it dies.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use codeagent_interceptor::RecoveryReport;
use codeagent_worker::{Event, Failure, Patience, WorkerProcess, WorkerSpec};

use crate::attach::attach;
use crate::front_end::Options;
use crate::mounted::Unmounted;
use crate::passthrough::{Broker, Device, why_not};
use crate::stale;

/// Workers that did not even start, one after the other, before nobody tries any more.
const MAX_FAILED_STARTS: u32 = 5;

/// How long requests that are on their way may take after an unmount.
const PATIENCE: Duration = Duration::from_secs(10);

/// What a supervised mount waits for.
#[derive(Debug)]
pub enum Signal {
    /// Somebody wants the mount to end.
    Stop,
    Worker(Event),
}

/// What those who watch a supervised mount get to know.
#[derive(Debug)]
pub enum Report<'a> {
    Mounted(&'a WorkerProcess),
    Recovered(&'a RecoveryReport),
    /// The worker died for this reason; a new one is started.
    WorkerDied(String),
    /// The kernel does not read files itself, for this reason.
    NoPassthrough(String),
    Event(Event),
}

#[derive(Debug, thiserror::Error)]
pub enum SupervisedError {
    #[error(transparent)]
    Worker(#[from] Failure),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A mount that survives the process that serves it.
#[derive(Debug)]
pub struct Supervised {
    spec: WorkerSpec,
    point: PathBuf,
    options: Options,
    sender: Sender<Signal>,
}

/// A worker, and the thread that does what it may not. Dropped in this order.
#[derive(Debug)]
struct Serving {
    worker: WorkerProcess,
    broker: Option<Broker>,
    /// Ours among those that the worker serves.
    attachment: u64,
}

impl Supervised {
    /// `sender` belongs to the receiver that [`run`](Self::run) gets.
    pub fn new(spec: WorkerSpec, point: &Path, threads: usize, sender: Sender<Signal>) -> Self {
        let options = Options { threads, passthrough_from: None };
        Self { spec, point: point.into(), options, sender }
    }

    /// Files of so many bytes are read by the kernel itself, where it can.
    #[must_use]
    pub fn with_passthrough(mut self, from_bytes: Option<u64>) -> Self {
        self.options.passthrough_from = from_bytes;
        self
    }

    /// Mounts, and serves until somebody stops or unmounts it. No worker ever opens a path: the
    /// folder may lie below its own mount.
    pub fn run(
        &self,
        signals: &Receiver<Signal>,
        report: &mut dyn FnMut(Report<'_>),
    ) -> Result<Unmounted, SupervisedError> {
        let begun = self.begin(report);
        if begun.is_err() {
            stale::recover(&self.point)?;
        }
        let mut serving = begun?;
        let mut born = Instant::now();
        let mut patience = Patience::default();
        loop {
            match signals.recv() {
                Ok(Signal::Stop) | Err(_) => return Ok(self.stop(serving)?),
                Ok(Signal::Worker(Event::Detached { attachment }))
                    if attachment == serving.attachment =>
                {
                    serving.worker.end(PATIENCE)?;
                    return Ok(Unmounted::Cleanly);
                }
                // One that did not even come to be served may say so later.
                Ok(Signal::Worker(Event::Gone)) if !serving.worker.client().is_gone() => {}
                Ok(Signal::Worker(Event::Gone)) => {
                    // The mount is dead only once nobody has the kernel's end of it any more.
                    drop(serving.broker.take());
                    report(Report::WorkerDied(serving.worker.wait()?.to_string()));
                    std::thread::sleep(patience.after_a_life_of(born.elapsed()));
                    match self.begin_again(signals, report)? {
                        Some(next) => serving = next,
                        None => return Ok(Unmounted::Cleanly),
                    }
                    born = Instant::now();
                }
                Ok(Signal::Worker(event)) => report(Report::Event(event)),
            }
        }
    }

    fn begin(&self, report: &mut dyn FnMut(Report<'_>)) -> Result<Serving, SupervisedError> {
        let sender = self.sender.clone();
        let worker = WorkerProcess::start(&self.spec, move |event| {
            let _ = sender.send(Signal::Worker(event)); // nobody waits any more: it ends already
        })??;
        if let Some(recovery) = &worker.ready().recovery {
            report(Report::Recovered(recovery));
        }
        worker.client().subscribe().map_err(io::Error::other)?;
        let channel = attach(&self.point, self.spec.settings.read_only)?;
        let folder = self.spec.working_dir.as_fd();
        let (mut broker, helper) = match self.options.passthrough_from {
            Some(_) => {
                let (broker, helper) = Broker::start(Device(channel.try_clone()?), folder)?;
                (Some(broker), Some(helper))
            }
            None => (None, None),
        };
        let helper = helper.as_ref().map(AsFd::as_fd);
        let attached = worker.client().attach(&channel, helper, self.options.encode());
        let why_not = broker.as_ref().and_then(|_| why_not(&channel, folder));
        drop(channel); // or the mount would not end with the worker
        let attachment = attached.map_err(io::Error::other)?;
        if let Some(reason) = why_not {
            broker = None;
            report(Report::NoPassthrough(reason));
        }
        report(Report::Mounted(&worker));
        Ok(Serving { worker, broker, attachment })
    }

    /// A new worker in place of one that died; `None` if somebody wants the mount to end.
    fn begin_again(
        &self,
        signals: &Receiver<Signal>,
        report: &mut dyn FnMut(Report<'_>),
    ) -> Result<Option<Serving>, SupervisedError> {
        let mut failed = 0;
        loop {
            // What the last one had to say is of no interest any more.
            while let Ok(signal) = signals.try_recv() {
                if matches!(signal, Signal::Stop) {
                    stale::recover(&self.point)?;
                    return Ok(None);
                }
            }
            match self.begin(report) {
                Ok(serving) => return Ok(Some(serving)),
                Err(error) => {
                    failed += 1;
                    if failed >= MAX_FAILED_STARTS {
                        stale::recover(&self.point)?;
                        return Err(error);
                    }
                    report(Report::WorkerDied(error.to_string()));
                    std::thread::sleep(Duration::from_millis(100) * failed);
                }
            }
        }
    }

    fn stop(&self, serving: Serving) -> io::Result<Unmounted> {
        let how = match stale::take_away(&self.point) {
            // Somebody else was quicker.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Unmounted::Cleanly,
            how => how?,
        };
        let patience = if how == Unmounted::Cleanly { PATIENCE } else { Duration::ZERO };
        serving.worker.end(patience)?;
        Ok(how)
    }
}
