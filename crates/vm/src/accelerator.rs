//! Which accelerator works. They are tried, not assumed: a `/dev/kvm` can be there and hang every
//! guest, under nested or paravirtual virtualisation.
//!
//! What is tried is a machine of its own, without folders, disk and network: a real one would have
//! used up what cannot be used twice. The verdict is remembered for as long as the kernel of the
//! host runs, so that only the first session after a boot waits for it. An accelerator is blamed only
//! if the same machine then starts without it: otherwise memory may be short, or the host too busy,
//! and the next start tries again. One that worked when it was tried and then fails a real machine is
//! tried again, too.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::config::{AcceleratorChoice, Disk, MachineConfig, Network, Progress, Stage};
use crate::error::{Result, VmError};
use crate::hardware::{Accelerator, Architecture, HostSystem};
use crate::machine::Machine;
use crate::qemu::Qemu;

const TRIAL_MEMORY_MIB: u32 = 256;

/// What came of trying an accelerator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Works,
    Broken(String),
}

/// What is remembered, and for which circumstances it holds.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Memory {
    /// Changes with each boot of the host.
    boot: String,
    qemu: PathBuf,
    qemu_version: String,
    verdicts: BTreeMap<Accelerator, Verdict>,
}

/// The accelerator that a machine would have. The first time after a boot of the host, a guest is
/// started to find out.
pub fn accelerator(config: &MachineConfig) -> Result<Accelerator> {
    let qemu = Qemu::find(config.qemu.as_deref(), config.image.architecture())?;
    choose(config, &qemu, &mut |_| {})
}

pub(crate) fn choose(
    config: &MachineConfig,
    qemu: &Qemu,
    progress: &mut dyn FnMut(Progress),
) -> Result<Accelerator> {
    let candidates = match config.accelerator {
        AcceleratorChoice::Only(accelerator) => return Ok(accelerator),
        // The processor of the host is of no use to another kind.
        AcceleratorChoice::Auto if config.image.architecture() != Architecture::current() => {
            return Ok(Accelerator::Tcg);
        }
        AcceleratorChoice::Auto => HostSystem::current().accelerators(),
    };
    let mut memory = Memory::recall(&config.verdicts_dir, qemu);
    for accelerator in candidates {
        if *accelerator == Accelerator::Tcg {
            break;
        }
        // That costs nothing to find out, and may be otherwise tomorrow.
        let verdict = match (unavailable(*accelerator), memory.verdicts.get(accelerator)) {
            (Some(reason), _) => Verdict::Broken(reason),
            (None, Some(verdict)) => verdict.clone(),
            (None, None) => {
                progress(Progress::Stage(Stage::Trying(*accelerator)));
                let with = |deadline| try_out(*accelerator, config, deadline);
                let without = || try_out(Accelerator::Tcg, config, config.boot_deadline);
                match judge(config.trial_deadline, with, without)? {
                    Trial::Decided(verdict) => {
                        memory.verdicts.insert(*accelerator, verdict.clone());
                        memory.keep(&config.verdicts_dir);
                        verdict
                    }
                    Trial::Undecided(reason) => {
                        progress(Progress::Warning(format!(
                            "whether {accelerator} works here is not known yet ({reason}); the \
                             guest is emulated, which is slow"
                        )));
                        continue;
                    }
                }
            }
        };
        match verdict {
            Verdict::Works => return Ok(*accelerator),
            Verdict::Broken(reason) => progress(Progress::Warning(format!(
                "{accelerator} does not work here ({reason}); the guest is emulated, which is slow"
            ))),
        }
    }
    Ok(Accelerator::Tcg)
}

/// What is known from this boot of the host, without trying anything.
pub fn remembered(state_dir: &Path, qemu: &Qemu) -> BTreeMap<Accelerator, Verdict> {
    Memory::recall(state_dir, qemu).verdicts
}

/// A guest has not started with an accelerator that worked when it was tried: the next start tries it
/// again.
pub(crate) fn doubt(
    verdicts_dir: &Path,
    qemu: &Qemu,
    accelerator: Accelerator,
    failure: &VmError,
) -> VmError {
    let mut memory = Memory::recall(verdicts_dir, qemu);
    if memory.verdicts.remove(&accelerator).is_some() {
        memory.keep(verdicts_dir);
    }
    VmError::AcceleratorBroken { accelerator, reason: in_short(failure) }
}

/// The next start tries everything again.
pub fn forget_verdicts(state_dir: &Path) -> std::io::Result<()> {
    match fs::remove_file(file_in(state_dir)) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Why it cannot even be tried.
pub(crate) fn unavailable(accelerator: Accelerator) -> Option<String> {
    let opened = match accelerator {
        Accelerator::Kvm => fs::OpenOptions::new().read(true).write(true).open("/dev/kvm"),
        _ => return None,
    };
    opened.err().map(|error| format!("/dev/kvm: {error}"))
}

/// What a trial shows.
#[derive(Debug, PartialEq, Eq)]
enum Trial {
    Decided(Verdict),
    /// No guest starts, whatever runs it.
    Undecided(String),
}

/// Tries a guest with an accelerator, which has so long at first, and if need be the same guest without
/// it; both say how long it took.
fn judge(
    deadline: Duration,
    with: impl Fn(Duration) -> Result<Duration>,
    without: impl FnOnce() -> Result<Duration>,
) -> Result<Trial> {
    let failure = match with(deadline) {
        Ok(_) => return Ok(Trial::Decided(Verdict::Works)),
        // Nobody could make a guest of that.
        Err(error @ (VmError::Cancelled | VmError::ImageBroken { .. })) => return Err(error),
        Err(failure) => failure,
    };
    let emulated_in = match without() {
        Ok(took) => took,
        Err(VmError::Cancelled) => return Err(VmError::Cancelled),
        Err(error) => {
            let (with, without) = (in_short(&failure), in_short(&error));
            return Ok(Trial::Undecided(format!("{with}; without it: {without}")));
        }
    };
    let was_late = matches!(failure, VmError::BootDeadline { .. });
    let failure = match was_late && emulated_in <= deadline {
        // What accelerates is ready before what emulates.
        true => failure,
        // A busy machine, or something that has passed since.
        false => match with(deadline.max(emulated_in)) {
            Ok(_) => return Ok(Trial::Decided(Verdict::Works)),
            Err(VmError::Cancelled) => return Err(VmError::Cancelled),
            Err(failure) => failure,
        },
    };
    Ok(Trial::Decided(Verdict::Broken(in_short(&failure))))
}

/// Without what it said meanwhile.
fn in_short(error: &VmError) -> String {
    match error {
        VmError::BootDeadline { deadline, .. } => {
            format!("a guest was not ready after {} s", deadline.as_secs())
        }
        error => error.to_string(),
    }
}

fn try_out(
    accelerator: Accelerator,
    config: &MachineConfig,
    deadline: Duration,
) -> Result<Duration> {
    let started = Instant::now();
    let trial = MachineConfig {
        program: config.program.clone(),
        qemu: config.qemu.clone(),
        image: config.image.clone(),
        accelerator: AcceleratorChoice::Only(accelerator),
        memory_mib: TRIAL_MEMORY_MIB,
        cpus: config.cpus,
        disk: Disk::None,
        shares: Vec::new(),
        module_9p: false,
        network: Network::Disabled,
        hostname: "trial".to_owned(),
        user: config.user.clone(),
        time_zone: None,
        boot_deadline: deadline,
        trial_deadline: config.trial_deadline,
        state_dir: config.state_dir.clone(),
        verdicts_dir: config.verdicts_dir.clone(),
        cancel: config.cancel.clone(),
    };
    let machine = Machine::start(trial, &mut |_| {})?;
    let took = started.elapsed();
    drop(machine);
    Ok(took)
}

impl Memory {
    /// Empty, unless everything is as it was.
    fn recall(state_dir: &Path, qemu: &Qemu) -> Self {
        let fresh = Self {
            boot: fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default(),
            qemu: qemu.path.clone(),
            qemu_version: qemu.version.clone(),
            verdicts: BTreeMap::new(),
        };
        let kept: Option<Self> =
            fs::read(file_in(state_dir)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        match kept {
            Some(kept) if kept.is_of_the_same_circumstances(&fresh) => kept,
            _ => fresh,
        }
    }

    fn is_of_the_same_circumstances(&self, other: &Self) -> bool {
        (&self.boot, &self.qemu, &self.qemu_version)
            == (&other.boot, &other.qemu, &other.qemu_version)
    }

    /// If it cannot be kept, the next start tries again.
    fn keep(&self, state_dir: &Path) {
        let keep = || -> std::io::Result<()> {
            fs::create_dir_all(state_dir)?;
            let file = tempfile::NamedTempFile::new_in(state_dir)?;
            serde_json::to_writer(&file, self)?;
            file.persist(file_in(state_dir))?;
            Ok(())
        };
        let _ = keep();
    }
}

fn file_in(state_dir: &Path) -> PathBuf {
    state_dir.join("accelerators.json")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_holds_for_one_boot_and_one_qemu() {
        let dir = tempfile::tempdir().unwrap();
        let qemu = |version: &str| Qemu { path: "/q".into(), version: version.to_owned() };
        let mut memory = Memory::recall(dir.path(), &qemu("7.2"));
        memory.verdicts.insert(Accelerator::Kvm, Verdict::Broken("it hangs".into()));
        memory.keep(dir.path());
        assert_eq!(remembered(dir.path(), &qemu("7.2")).len(), 1);
        assert_eq!(remembered(dir.path(), &qemu("9.0")).len(), 0);

        memory.boot = "another".into();
        memory.keep(dir.path());
        assert_eq!(remembered(dir.path(), &qemu("7.2")).len(), 0);
    }

    #[test]
    fn an_accelerator_that_fails_a_guest_is_tried_again() {
        let dir = tempfile::tempdir().unwrap();
        let qemu = Qemu { path: "/q".into(), version: "7.2".into() };
        let mut memory = Memory::recall(dir.path(), &qemu);
        memory.verdicts.insert(Accelerator::Kvm, Verdict::Works);
        memory.keep(dir.path());
        let failure = VmError::DiedAtBoot("an assertion failed".into());
        let doubted = doubt(dir.path(), &qemu, Accelerator::Kvm, &failure);
        assert!(doubted.to_string().starts_with("kvm does not work here"), "{doubted}");
        assert!(remembered(dir.path(), &qemu).is_empty());
    }

    const DEADLINE: Duration = Duration::from_secs(10);

    fn late(deadline: Duration) -> Result<Duration> {
        Err(VmError::BootDeadline { deadline, console: String::new() })
    }

    fn short_of_memory() -> Result<Duration> {
        Err(VmError::DiedAtBoot("cannot set up guest memory".into()))
    }

    #[test]
    fn an_accelerator_is_blamed_only_if_the_same_guest_starts_without_it() {
        let quick = || Ok(Duration::from_secs(3));
        let reason = "a guest was not ready after 10 s".to_owned();
        let blamed = judge(DEADLINE, late, quick).unwrap();
        assert_eq!(blamed, Trial::Decided(Verdict::Broken(reason)));
        let full = judge(DEADLINE, |_| short_of_memory(), short_of_memory).unwrap();
        assert!(matches!(full, Trial::Undecided(_)), "{full:?}");
        let works = judge(DEADLINE, |_| quick(), || panic!("it works")).unwrap();
        assert_eq!(works, Trial::Decided(Verdict::Works));
    }

    #[test]
    fn what_has_passed_when_it_is_tried_again_is_no_reason() {
        let tries = std::cell::Cell::new(0);
        let once_short = |_| {
            tries.set(tries.get() + 1);
            if tries.get() == 1 { short_of_memory() } else { Ok(Duration::from_secs(1)) }
        };
        let trial = judge(DEADLINE, once_short, || Ok(Duration::from_secs(3))).unwrap();
        assert_eq!(trial, Trial::Decided(Verdict::Works));
    }

    #[test]
    fn on_a_busy_machine_it_has_as_long_as_an_emulation_takes() {
        let slow = || Ok(Duration::from_secs(30));
        let busy = |deadline| match deadline > DEADLINE {
            true => Ok(Duration::from_secs(12)),
            false => late(deadline),
        };
        assert_eq!(judge(DEADLINE, busy, slow).unwrap(), Trial::Decided(Verdict::Works));
        let reason = "a guest was not ready after 30 s".to_owned();
        let hangs = judge(DEADLINE, late, slow).unwrap();
        assert_eq!(hangs, Trial::Decided(Verdict::Broken(reason)));
    }

    #[test]
    fn a_trial_that_is_cancelled_shows_nothing() {
        let cancelled = || Err(VmError::Cancelled);
        let unneeded = || panic!("nobody wants to know any more");
        let trial = judge(DEADLINE, |_| cancelled(), unneeded);
        assert!(matches!(trial, Err(VmError::Cancelled)), "{trial:?}");
        let trial = judge(DEADLINE, late, cancelled);
        assert!(matches!(trial, Err(VmError::Cancelled)), "{trial:?}");
    }

    #[test]
    fn a_memory_that_cannot_be_read_is_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(file_in(dir.path()), "{").unwrap();
        let qemu = Qemu { path: "/q".into(), version: "7.2".into() };
        assert!(remembered(dir.path(), &qemu).is_empty());
    }
}
