//! The machine as QEMU is to build it: plain data, the same for every host. `command_line` turns it
//! into arguments.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The system QEMU runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostSystem {
    Linux,
    MacOs,
    Windows,
}

impl HostSystem {
    /// This one.
    pub const fn current() -> Self {
        if cfg!(windows) {
            Self::Windows
        } else if cfg!(target_os = "macos") {
            Self::MacOs
        } else {
            Self::Linux
        }
    }

    /// The accelerators to try, best first. The last one always works.
    pub fn accelerators(self) -> &'static [Accelerator] {
        match self {
            Self::Linux => &[Accelerator::Kvm, Accelerator::Tcg],
            Self::MacOs => &[Accelerator::Hvf, Accelerator::Tcg],
            Self::Windows => &[Accelerator::Whpx, Accelerator::Tcg],
        }
    }
}

/// The processor of the guest. One that is not that of its host is emulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    /// That of this machine.
    pub const fn current() -> Self {
        if cfg!(target_arch = "aarch64") { Self::Aarch64 } else { Self::X86_64 }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// The program that is QEMU for it.
    pub fn qemu(self) -> &'static str {
        match self {
            Self::X86_64 => "qemu-system-x86_64",
            Self::Aarch64 => "qemu-system-aarch64",
        }
    }
}

/// What makes a guest fast; `Tcg` is emulation, and works everywhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Accelerator {
    Kvm,
    Hvf,
    Whpx,
    Tcg,
}

impl Accelerator {
    pub fn name(self) -> &'static str {
        match self {
            Self::Kvm => "kvm",
            Self::Hvf => "hvf",
            Self::Whpx => "whpx",
            Self::Tcg => "tcg",
        }
    }
}

impl std::fmt::Display for Accelerator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    pub host: HostSystem,
    pub architecture: Architecture,
    pub accelerator: Accelerator,
    pub kernel: PathBuf,
    pub initramfs: PathBuf,
    pub memory_mib: u32,
    pub cpus: u32,
    /// The other ends of these are the owner's.
    pub control: Endpoint,
    pub qmp: Endpoint,
    /// What the kernel says.
    pub console: Endpoint,
    /// The file with the settings of the guest.
    pub settings: FileSource,
    pub root_disk: Option<FileSource>,
    pub shares: Vec<ShareDevice>,
    pub network: NetworkDevice,
}

/// One end of a stream, as QEMU gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// A connected socket that QEMU inherits: nothing is on disk, and nobody else can connect.
    Descriptor(i32),
    /// A Unix socket to connect to.
    Socket(PathBuf),
}

/// A file, as QEMU gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileSource {
    /// A descriptor that QEMU inherits.
    Descriptor(i32),
    Path(PathBuf),
}

/// How a folder of the host reaches the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShareDevice {
    /// What the guest finds it by.
    pub tag: String,
    pub transport: ShareTransport,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ShareTransport {
    /// A process that speaks vhost-user serves it. Not on Windows, which cannot hand over memory.
    VhostUser(Endpoint),
    /// 9P over a port of the device that has the control port, too.
    Port(Endpoint),
    /// 9P over a device of its own, for guests that have our module.
    Console { slot: u8, endpoint: Endpoint },
}

/// The places on the bus that devices of their own have; others begin at the first.
const FIRST_SLOT: u8 = 0x10;
const LAST_SLOT: u8 = 0x1d;

/// Where the device of a share is, if there is room for one.
pub(crate) fn share_slot(number: usize) -> Option<u8> {
    let slot = u8::try_from(number).ok()?.checked_add(FIRST_SLOT)?;
    (slot <= LAST_SLOT).then_some(slot)
}

/// The same, as the guest calls it.
pub(crate) fn slot_address(slot: u8) -> String {
    format!("0000:00:{slot:02x}.0")
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NetworkDevice {
    /// There is no card.
    Absent,
    /// QEMU's own network: everything the host reaches.
    User,
    /// Ethernet frames over a stream, each after its length in four bytes: who is at the other end
    /// decides what gets through.
    Stream(Endpoint),
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn shares_have_places_on_the_bus_until_there_is_no_more_room() {
        let slots: Vec<_> = (0..100).map_while(share_slot).collect();
        assert_eq!(slots.len(), 14);
        assert_eq!(slot_address(slots[0]), "0000:00:10.0");
        assert_eq!(slot_address(*slots.last().unwrap()), "0000:00:1d.0");
        assert_eq!(share_slot(usize::MAX), None);
    }
}
