//! Which accelerator works. They are tried, not assumed: a `/dev/kvm` can be there and hang every
//! guest, under nested or paravirtual virtualisation.
//!
//! What is tried is a machine of its own, without folders, disk and network: a real one would have
//! used up what cannot be used twice. The verdict is remembered for as long as the kernel of the
//! host runs, so that only the first session after a boot waits for it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

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
                let verdict = try_out(*accelerator, config)?;
                memory.verdicts.insert(*accelerator, verdict.clone());
                memory.keep(&config.verdicts_dir);
                verdict
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

fn try_out(accelerator: Accelerator, config: &MachineConfig) -> Result<Verdict> {
    let trial = MachineConfig {
        program: config.program.clone(),
        qemu: config.qemu.clone(),
        image: config.image.clone(),
        accelerator: AcceleratorChoice::Only(accelerator),
        memory_mib: TRIAL_MEMORY_MIB,
        cpus: config.cpus,
        disk: Disk::None,
        shares: Vec::new(),
        network: Network::Disabled,
        hostname: "trial".to_owned(),
        user: config.user.clone(),
        time_zone: None,
        boot_deadline: config.trial_deadline,
        trial_deadline: config.trial_deadline,
        state_dir: config.state_dir.clone(),
        verdicts_dir: config.verdicts_dir.clone(),
        cancel: config.cancel.clone(),
    };
    Ok(match Machine::start(trial, &mut |_| {}) {
        Ok(_machine) => Verdict::Works,
        Err(VmError::BootDeadline { deadline, .. }) => {
            Verdict::Broken(format!("a guest was not ready after {} s", deadline.as_secs()))
        }
        Err(VmError::Cancelled) => return Err(VmError::Cancelled),
        Err(error) => Verdict::Broken(error.to_string()),
    })
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
    fn a_memory_that_cannot_be_read_is_none() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(file_in(dir.path()), "{").unwrap();
        let qemu = Qemu { path: "/q".into(), version: "7.2".into() };
        assert!(remembered(dir.path(), &qemu).is_empty());
    }
}
