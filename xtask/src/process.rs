//! Where the repository is, and how a task runs other programs.

use std::env;
use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Lets Ctrl-C end the program a task is running, but not the task: it still has to clean up.
pub(crate) fn survive_interrupts() -> Result<()> {
    ctrlc::set_handler(|| INTERRUPTED.store(true, Ordering::Relaxed))
        .context("cannot handle interrupts")
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    let xtask = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask.parent().map_or(xtask.clone(), Path::to_path_buf)
}

/// A directory below `target/`, where a task may leave things behind.
pub(crate) fn scratch(name: &str) -> PathBuf {
    root().join("target").join(name)
}

/// A program, started in the root of the repository.
pub(crate) fn program(name: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(name);
    command.current_dir(root());
    // What `cargo run` said about xtask is not true of the program. Build scripts that watch these
    // variables would otherwise run again each time.
    for (name, _) in env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("CARGO_PKG_") || text.starts_with("CARGO_MANIFEST_") {
            command.env_remove(&name);
        }
    }
    command
}

/// The cargo that runs this task.
pub(crate) fn cargo() -> Command {
    program(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
}

/// Runs a program on this terminal and returns how it ended.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    stop_if_interrupted()?;
    let status = command.status().with_context(|| format!("cannot start {}", name_of(command)))?;
    stop_if_interrupted()?;
    Ok(status)
}

/// Runs a program on this terminal; an error unless it succeeds.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("{} failed ({status})", name_of(command));
    }
    Ok(())
}

/// Runs a program silently; an error with what it wrote to stderr unless it succeeds. Works after
/// an interrupt as well, because cleaning up needs it.
pub(crate) fn run_silently(command: &mut Command) -> Result<String> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {}", name_of(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("{} failed ({}): {}", name_of(command), output.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program on this terminal, and hands every line of its stdout to `line` as well.
pub(crate) fn run_watching(
    command: &mut Command,
    mut line: impl FnMut(&str),
) -> Result<ExitStatus> {
    stop_if_interrupted()?;
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", name_of(command)))?;
    if let Some(stdout) = child.stdout.take() {
        for bytes in BufReader::new(stdout).split(b'\n') {
            let bytes = bytes.context("cannot read the program's output")?;
            let text = String::from_utf8_lossy(&bytes);
            println!("{text}");
            line(&text);
        }
    }
    let status = child.wait().with_context(|| format!("lost {}", name_of(command)))?;
    stop_if_interrupted()?;
    Ok(status)
}

/// Where a program is, looking also where system programs are when `PATH` leaves that out.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .flat_map(|folder| [folder.join(name), folder.join(format!("{name}.exe"))])
        .find(|candidate| candidate.is_file())
}

/// Whether this process may mount filesystems and install packages.
pub(crate) fn is_root() -> bool {
    #[cfg(unix)]
    return rustix::process::geteuid().is_root();
    #[cfg(not(unix))]
    return false;
}

/// An error once the person has pressed Ctrl-C.
pub(crate) fn stop_if_interrupted() -> Result<()> {
    if INTERRUPTED.load(Ordering::Relaxed) {
        bail!("interrupted");
    }
    Ok(())
}

/// The program and its first arguments, as a person would name it.
fn name_of(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut words = vec![program.file_name().unwrap_or(program.as_os_str()).to_string_lossy()];
    words.extend(
        command
            .get_args()
            .map(OsStr::to_string_lossy)
            .take_while(|arg| !arg.starts_with('-'))
            .take(2),
    );
    format!("`{}`", words.join(" "))
}
