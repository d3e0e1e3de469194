//! The command line, and the process around a mount.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Parser;
use codeagent_fs::Cache;
use codeagent_interceptor::EngineEvent;
use codeagent_mount::{
    Claim, MountFrontEnd, MountOptions, Report, Signal, Supervised, SupervisedError, Unmounted,
    WORTHWHILE_BYTES, is_ours, recover,
};
use codeagent_worker::{Event, Settings, WorkerProcess, WorkerSpec, end_orphan};

use crate::arguments::{Arguments, CacheChoice, PassthroughChoice};

/// How a detached process tells the one that started it that the mount is there.
const READY: &str = "ready";

#[expect(clippy::print_stderr, reason = "errors are for people")]
pub(crate) fn main() -> ExitCode {
    if codeagent_worker::is_worker() {
        return codeagent_worker::run(Box::new(MountFrontEnd));
    }
    let arguments = Arguments::parse();
    let outcome = if arguments.daemon { start_daemon() } else { run(&arguments) };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("codeagent-mount: {error:#}");
            if let Some(hint) = hint(&error) {
                eprintln!("hint: {hint}");
            }
            ExitCode::FAILURE
        }
    }
}

fn hint(error: &anyhow::Error) -> Option<&str> {
    error.chain().find_map(|cause| match cause.downcast_ref()? {
        SupervisedError::Worker(failure) => failure.hint.as_deref(),
        SupervisedError::Io(_) => None,
    })
}

fn run(arguments: &Arguments) -> Result<()> {
    if arguments.detached {
        rustix::process::setsid().context("leaving the terminal")?;
    }
    let _claims = claim(arguments)?;
    if end_orphan(&arguments.undo_dir).context("ending an earlier worker")? {
        tell("ended a worker that had outlived its mount's process");
    }
    for path in [&arguments.source_dir, &arguments.mount_point] {
        if recover(path)
            .with_context(|| format!("taking away a dead mount at {}", path.display()))?
        {
            tell(&format!("took away a dead mount at {}", path.display()));
        }
    }
    // With another undo directory, or it would have been taken away.
    if is_ours(&arguments.mount_point)? {
        bail!("{} is mounted already; unmount it first", arguments.mount_point.display());
    }
    let options = options(arguments)?;
    let mut settings = Settings::new(&options.source, std::path::absolute(&arguments.undo_dir)?);
    settings.read_only = arguments.read_only;
    settings.cache = options.cache;
    settings.ambient_timeout = Duration::from_secs_f64(arguments.ambient_timeout);
    let mut spec = WorkerSpec::new(settings).context("opening the folder")?;
    spec.silent = arguments.detached;

    let (sender, signals) = mpsc::channel();
    let stop = sender.clone();
    let handler = move || {
        let _ = stop.send(Signal::Stop); // nobody listens any more: it ends already
    };
    ctrlc::set_handler(handler).context("listening to signals")?;
    let point = &options.mount_point;
    let mount = Supervised::new(spec, point, options.threads, sender)
        .with_passthrough(options.passthrough_from);
    let mut announced = false;
    let mut outcome = Ok(());
    let how = mount
        .run(&signals, &mut |report| match report {
            Report::Mounted(worker) if !announced => {
                announced = true;
                announce(&options, worker);
                if arguments.detached {
                    outcome = let_go_of_the_terminal();
                }
            }
            Report::Mounted(_) => tell("the worker has been started again"),
            Report::Recovered(_) => tell("took back what an earlier run had left unfinished"),
            Report::NoPassthrough(why)
                if arguments.passthrough == PassthroughChoice::On && !announced =>
            {
                tell(&format!("files are served without passthrough: {why}"));
            }
            Report::NoPassthrough(_) => {}
            Report::WorkerDied(why) => tell(&format!("the worker ended ({why})")),
            Report::Event(event) => tell_of(&event),
        })
        .with_context(|| format!("mounting at {}", point.display()))?;
    outcome?;
    if how == Unmounted::WhileInUse {
        tell("some program still had files open in the mount");
    }
    Ok(())
}

/// Nobody else may look for dead mounts there while we do, and mount while we do.
fn claim(arguments: &Arguments) -> Result<[Claim; 2]> {
    let take = |purpose, path: &Path| {
        Claim::take(purpose, path)?.with_context(|| {
            format!("another codeagent-mount is at work with the {purpose} {}", path.display())
        })
    };
    Ok([take("mount point", &arguments.mount_point)?, take("undo directory", &arguments.undo_dir)?])
}

fn announce(options: &MountOptions, worker: &WorkerProcess) {
    tell(&format!("{} is mounted at {}", options.source.display(), options.mount_point.display()));
    let ready = worker.ready();
    if !ready.confinement.is_complete() {
        tell(&format!(
            "warning: the worker is not confined as it should be: {:?}",
            ready.confinement
        ));
    }
    if let Some(reason) = &ready.unreachable {
        tell(&format!("warning: other programs cannot reach the undo log meanwhile: {reason}"));
    }
}

/// What people should know even if they did not ask.
fn tell_of(event: &Event) {
    match event {
        Event::Engine(EngineEvent::Warning(text)) => tell(&format!("warning: {text}")),
        Event::Engine(EngineEvent::StepUnprotected { step, reason }) => {
            tell(&format!("warning: step {step} cannot be undone: {reason}"));
        }
        Event::Engine(EngineEvent::VersionMismatch { found, .. }) => tell(&format!(
            "warning: nothing is recorded: the undo log has the format {found} of another version"
        )),
        Event::Engine(EngineEvent::Evicted { steps }) => {
            tell(&format!("{} old steps were dropped to stay within the limits", steps.len()));
        }
        Event::Lagged { missed } => tell(&format!("{missed} messages of the worker were lost")),
        _ => {}
    }
}

fn options(arguments: &Arguments) -> Result<MountOptions> {
    let canonical = |path: &Path, flag: &str| {
        let what = || {
            let path = path.display();
            format!("{path} cannot be used; make it first, or give another directory with {flag}")
        };
        path.canonicalize().with_context(what)
    };
    let source = canonical(&arguments.source_dir, "--source-dir")?;
    let mount_point = canonical(&arguments.mount_point, "--mount-point")?;
    if mount_point != source {
        if mount_point.starts_with(&source) {
            bail!("the mount point lies inside the folder it would show");
        }
        if source.starts_with(&mount_point) {
            bail!("the mount would hide the folder it shows");
        }
    }
    let undo = std::path::absolute(&arguments.undo_dir)?;
    let undo_parent = undo.ancestors().find_map(|path| path.canonicalize().ok());
    if undo_parent.is_some_and(|parent| parent.starts_with(&mount_point)) {
        bail!("the mount would hide the undo directory; choose one outside the mount point");
    }
    let mut options = MountOptions::new(source, mount_point);
    options.read_only = arguments.read_only;
    let passthrough = arguments.passthrough != PassthroughChoice::Off;
    options.passthrough_from = passthrough.then_some(WORTHWHILE_BYTES);
    options.cache = match arguments.cache {
        CacheChoice::Never => Cache::Never,
        CacheChoice::Coherent => Cache::Coherent,
        CacheChoice::Auto => Cache::Auto,
    };
    Ok(options)
}

/// Runs the same command in the background, and waits until it has mounted.
fn start_daemon() -> Result<()> {
    let arguments = std::env::args_os().skip(1).filter(|argument| argument != "--daemon");
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .args(["--foreground", "--detached"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting in the background")?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout).read_line(&mut line)?;
    }
    if line.trim_end() == READY {
        return Ok(());
    }
    let status = child.wait()?;
    bail!("the mount did not start ({status})")
}

fn let_go_of_the_terminal() -> Result<()> {
    let mut stdout = std::io::stdout();
    writeln!(stdout, "{READY}")?;
    stdout.flush()?;
    let nothing = std::fs::OpenOptions::new().write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdout(&nothing)?;
    rustix::stdio::dup2_stderr(&nothing)?;
    Ok(())
}

#[expect(clippy::print_stderr, reason = "it is for people")]
fn tell(message: &str) {
    eprintln!("codeagent-mount: {message}");
}
