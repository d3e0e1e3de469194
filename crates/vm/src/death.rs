//! How a machine came to its end.

use std::fmt;
use std::os::unix::process::ExitStatusExt;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::guard::QemuEnd;
use crate::qmp::Seen;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Death {
    /// The guest switched itself off: it was asked to, or its process 1 gave up.
    SwitchedOff { said: String },
    /// The kernel of the guest panicked, or it asked for a reboot.
    Panicked { said: String },
    /// We ended QEMU.
    Ended,
    /// Somebody else did.
    Killed { signal: i32 },
    /// The machine stopped in the middle, and QEMU could not go on with it.
    Stalled { said: String },
    /// QEMU gave up.
    Failed { said: String },
}

impl fmt::Display for Death {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchedOff { said } => write!(f, "the guest switched itself off{}", tail(said)),
            Self::Panicked { said } => write!(f, "the kernel of the guest panicked{}", tail(said)),
            Self::Ended => f.write_str("QEMU was ended"),
            // The kernel says so to nobody else.
            Self::Killed { signal: 9 } => f.write_str(
                "QEMU was killed by signal 9: by somebody, or by the kernel because memory ran out",
            ),
            Self::Killed { signal } => write!(f, "QEMU was killed by signal {signal}"),
            Self::Stalled { said } => write!(f, "QEMU could not go on{}", tail(said)),
            Self::Failed { said } => write!(f, "QEMU gave up{}", tail(said)),
        }
    }
}

/// The line that tells most.
fn tail(said: &str) -> String {
    let with = |word: &str| said.lines().find(|line| line.contains(word));
    let line = with("Kernel panic").or_else(|| with("codeagent-guest:"));
    // The registers follow.
    let line = line.or_else(|| with("internal error"));
    let line = line.or_else(|| said.lines().next_back());
    line.map_or_else(String::new, |line| format!(": {}", line.trim()))
}

/// From what was seen to what it means.
pub(crate) fn judge(end: QemuEnd, seen: &Seen, console: String, stderr: String) -> Death {
    let status = match end {
        QemuEnd::WithItsGuard => return Death::Killed { signal: 9 },
        QemuEnd::Status(status) => status,
    };
    if let Some(signal) = status.signal() {
        // An abort is a mistake of QEMU, and it says which.
        let is_own = signal == rustix::process::Signal::ABORT.as_raw() && !stderr.is_empty();
        return if is_own { Death::Failed { said: stderr } } else { Death::Killed { signal } };
    }
    if seen.stalled {
        return Death::Stalled { said: stderr };
    }
    match seen.shutdown.as_deref() {
        Some("guest-reset" | "guest-panic") => Death::Panicked { said: console },
        Some("guest-shutdown") => Death::SwitchedOff { said: console },
        Some("host-qmp-quit") => Death::Ended,
        _ => Death::Failed { said: stderr },
    }
}

/// Waits for the end of a machine, from any thread.
#[derive(Debug, Clone, Default)]
pub struct DeathWatch(Arc<Notice>);

#[derive(Debug, Default)]
struct Notice {
    death: Mutex<Option<Death>>,
    came: Condvar,
}

impl DeathWatch {
    /// How it ended, if it has.
    pub fn death(&self) -> Option<Death> {
        self.0.death.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until it has ended.
    pub fn wait(&self) -> Death {
        let mut death = self.0.death.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(death) = &*death {
                return death.clone();
            }
            death = self.0.came.wait(death).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until it has ended, but not for longer than this.
    pub fn wait_for(&self, patience: Duration) -> Option<Death> {
        let give_up_at = Instant::now() + patience;
        let mut death = self.0.death.lock().unwrap_or_else(PoisonError::into_inner);
        while death.is_none() {
            let left = give_up_at.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.0.came.wait_timeout(death, left);
            death = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        death.clone()
    }

    pub(crate) fn announce(&self, how: Death) {
        *self.0.death.lock().unwrap_or_else(PoisonError::into_inner) = Some(how);
        self.0.came.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::process::ExitStatus;

    use super::*;

    fn judged(raw_status: i32, reason: Option<&str>, console: &str, stderr: &str) -> String {
        let stalled = stderr.contains("internal error");
        let seen = Seen { shutdown: reason.map(str::to_owned), stalled, pausing: false };
        let end = QemuEnd::Status(ExitStatus::from_raw(raw_status));
        judge(end, &seen, console.to_owned(), stderr.to_owned()).to_string()
    }

    #[test]
    fn each_end_is_told_with_its_reason() {
        let panic = "one\nKernel panic - not syncing: Attempted to kill init!\n---[ end ]---";
        let told = [
            judged(0, Some("guest-shutdown"), "codeagent-guest: cannot mount folder0", ""),
            judged(0, Some("guest-reset"), panic, ""),
            judged(9, None, "", ""),
            judged(6, None, "", "error: failed to set MSR 0x10a"),
            judged(256, None, "", "could not load kernel"),
            judged(0, Some("host-qmp-quit"), "", "KVM internal error. Suberror: 1\nEAX=0"),
        ];
        let expected = [
            "the guest switched itself off: codeagent-guest: cannot mount folder0",
            "the kernel of the guest panicked: Kernel panic - not syncing: Attempted to kill init!",
            "QEMU was killed by signal 9: by somebody, or by the kernel because memory ran out",
            "QEMU gave up: error: failed to set MSR 0x10a",
            "QEMU gave up: could not load kernel",
            "QEMU could not go on: KVM internal error. Suberror: 1",
        ];
        assert_eq!(told, expected);
    }
}
