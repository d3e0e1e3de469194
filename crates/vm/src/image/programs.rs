//! Programs that a build has work for it. They end when the build is not wanted any more.

use std::ffi::OsString;
use std::io;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use codeagent_common::CancelToken;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::error::VmError;

/// How soon a program hears that nobody wants its result any more.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Runs a program; what it wrote to stderr is the error unless it succeeds.
pub(crate) fn run(command: &mut Command, cancel: &CancelToken) -> io::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = start(command, cancel)?;
    let output = while_wanted(child, cancel, Child::wait_with_output)?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        let last: Vec<_> = said.lines().rev().take(3).collect();
        return Err(io::Error::other(format!(
            "{name}: {}",
            last.into_iter().rev().collect::<Vec<_>>().join(" / ")
        )));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Says which packages of Debian have what is not here, of these programs and their packages.
pub(crate) fn expect_all(needed: &[(&str, &str)]) -> io::Result<()> {
    let path = search_path();
    let is_here = |name: &str| std::env::split_paths(&path).any(|dir| dir.join(name).is_file());
    let missing: Vec<_> = needed.iter().filter(|(name, _)| !is_here(name)).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    let packages: Vec<_> = missing.iter().map(|(_, package)| *package).collect();
    Err(io::Error::other(format!(
        "it takes {}; on Debian and Ubuntu: sudo apt-get install {}",
        names.join(", "),
        packages.join(" ")
    )))
}

/// Also where ordinary users do not look.
fn search_path() -> OsString {
    let mut path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/usr/bin:/bin"));
    path.push(":/usr/sbin:/sbin");
    path
}

/// Starts one.
pub(crate) fn start(command: &mut Command, cancel: &CancelToken) -> io::Result<Child> {
    expect_wanted(cancel)?;
    let name = command.get_program().to_string_lossy().into_owned();
    command
        .env("PATH", search_path())
        .spawn()
        .map_err(|error| io::Error::new(error.kind(), format!("{name}: {error}")))
}

/// Waits for a program, which is told to end if the build is not wanted any more.
pub(crate) fn while_wanted<T>(
    child: Child,
    cancel: &CancelToken,
    wait: impl FnOnce(Child) -> io::Result<T>,
) -> io::Result<T> {
    // Not by its number: that may be another's by then.
    let handle = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    let (done, is_done) = channel::<()>();
    let waited = std::thread::scope(|scope| {
        scope.spawn(move || {
            while is_done.recv_timeout(LOOK_EVERY) == Err(RecvTimeoutError::Timeout) {
                if cancel.is_cancelled() {
                    let _ = pidfd_send_signal(&handle, Signal::TERM); // it has ended by itself
                    return;
                }
            }
        });
        let waited = wait(child);
        drop(done);
        waited
    });
    expect_wanted(cancel)?;
    waited
}

fn expect_wanted(cancel: &CancelToken) -> io::Result<()> {
    match cancel.is_cancelled() {
        true => Err(io::Error::other(VmError::Cancelled)),
        false => Ok(()),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_packages() {
        assert!(expect_all(&[("sh", "dash")]).is_ok());
        let needed = [("sh", "dash"), ("no-such-tool", "tools"), ("none-either", "more-tools")];
        let said = expect_all(&needed).unwrap_err().to_string();
        assert!(said.contains("no-such-tool, none-either"), "{said}");
        assert!(said.ends_with("apt-get install tools more-tools"), "{said}");
    }

    #[test]
    fn a_program_ends_when_the_build_is_not_wanted_any_more() {
        let cancel = CancelToken::new();
        let other = cancel.clone();
        let canceller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            other.cancel();
        });
        let started = Instant::now();
        let error = run(Command::new("sleep").arg("1000"), &cancel).unwrap_err();
        canceller.join().unwrap();
        assert!(started.elapsed() < Duration::from_secs(60));
        assert!(matches!(error.downcast::<VmError>(), Ok(VmError::Cancelled)));
    }
}
