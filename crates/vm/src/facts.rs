//! What a machine offers to guests: what is there, what is lost without it, and the command that
//! brings it. Looking starts no guest: whether an accelerator works is known from the last time one
//! was tried.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::accelerator::{Verdict, remembered};
use crate::hardware::{Accelerator, Architecture, HostSystem};
use crate::image::GuestImage;
use crate::qemu::{Qemu, in_path};

/// Where to look.
#[derive(Debug, Clone)]
pub struct FactsRequest {
    pub qemu: Option<PathBuf>,
    /// The directory of the image that would be used.
    pub image: PathBuf,
    pub state_dir: PathBuf,
}

/// One thing a machine has or lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    pub id: FactId,
    pub presence: Presence,
    /// What was found, in one line.
    pub seen: String,
    /// What does not work without it, in one sentence.
    pub lost: String,
    /// One line for a shell, where something is missing and a command can change that.
    pub fix: Option<String>,
}

/// Stable: programs may depend on these names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FactId {
    Qemu,
    QemuImg,
    GuestImage,
    Accelerator,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Presence {
    Present,
    /// A part of it is lost.
    Partial,
    Missing,
    /// Something else that is missing keeps us from trying, or nobody has tried yet.
    Untried,
}

pub fn facts(request: &FactsRequest) -> Vec<Fact> {
    let qemu = Qemu::find(request.qemu.as_deref(), Architecture::current());
    let accelerator = accelerator_fact(qemu.as_ref().ok(), request);
    let qemu = match qemu {
        Ok(qemu) => fact(
            FactId::Qemu,
            Presence::Present,
            format!("{} {}", qemu.path.display(), qemu.version),
        ),
        Err(error) => fact(FactId::Qemu, Presence::Missing, error.to_string()),
    };
    let qemu_img = match in_path("qemu-img") {
        Some(path) => fact(FactId::QemuImg, Presence::Present, path.display().to_string()),
        None => fact(FactId::QemuImg, Presence::Missing, "not in PATH".to_owned()),
    };
    let image = match GuestImage::open(&request.image) {
        Ok(image) => fact(
            FactId::GuestImage,
            Presence::Present,
            format!(
                "{} ({}, 9P {} our module)",
                image.dir().display(),
                image.manifest().flavour.name(),
                if image.manifest().module_9p { "with" } else { "without" }
            ),
        ),
        Err(error) => fact(FactId::GuestImage, Presence::Missing, error.to_string()),
    };
    vec![qemu, qemu_img, image, accelerator]
}

fn accelerator_fact(qemu: Option<&Qemu>, request: &FactsRequest) -> Fact {
    let id = FactId::Accelerator;
    let wanted = HostSystem::current().accelerators()[0];
    let Some(qemu) = qemu else {
        return fact(id, Presence::Untried, "without QEMU nothing can be tried".to_owned());
    };
    if wanted == Accelerator::Kvm
        && let Err(error) = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm")
    {
        let mut fact = fact(id, Presence::Missing, format!("/dev/kvm: {error}"));
        let is_forbidden = error.kind() == std::io::ErrorKind::PermissionDenied;
        fact.fix = is_forbidden.then(|| "sudo usermod --append --groups kvm \"$USER\"".to_owned());
        return fact;
    }
    match remembered(&request.state_dir, qemu).get(&wanted) {
        None => {
            fact(id, Presence::Untried, format!("{wanted} is there, and nobody has tried it yet"))
        }
        Some(Verdict::Works) => fact(id, Presence::Present, format!("{wanted} works")),
        Some(Verdict::Broken(reason)) => {
            let seen = format!("{wanted} is there and does not work: {reason}");
            let fix = Some("sandbox doctor --try-again".to_owned());
            Fact { fix, ..fact(id, Presence::Missing, seen) }
        }
    }
}

fn fact(id: FactId, presence: Presence, seen: String) -> Fact {
    let (lost, fix) = match id {
        FactId::Qemu => {
            ("there are no virtual machines", Some("sudo apt-get install qemu-system-x86"))
        }
        FactId::QemuImg => ("guests have no disk", Some("sudo apt-get install qemu-utils")),
        FactId::GuestImage => ("there is nothing to start", Some("sandbox guest build")),
        FactId::Accelerator => ("guests are emulated, and several times slower", None),
    };
    let fix = fix.filter(|_| presence == Presence::Missing).map(str::to_owned);
    Fact { id, presence, seen, lost: lost.to_owned(), fix }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_said_with_what_brings_it() {
        let state_dir = tempfile::tempdir().unwrap();
        let request = FactsRequest {
            qemu: Some("/no/such/qemu".into()),
            image: "/no/such/image".into(),
            state_dir: state_dir.path().to_owned(),
        };
        let facts = facts(&request);
        let of = |id: FactId| facts.iter().find(|fact| fact.id == id).unwrap();
        assert_eq!(of(FactId::Qemu).presence, Presence::Missing);
        assert_eq!(of(FactId::GuestImage).fix.as_deref(), Some("sandbox guest build"));
        assert_eq!(of(FactId::Accelerator).presence, Presence::Untried);
        // Looking leaves nothing behind.
        assert_eq!(std::fs::read_dir(state_dir.path()).unwrap().count(), 0);
    }
}
