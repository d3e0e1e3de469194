//! Everything a guest has to know about its surroundings, as plain data. It reaches the guest
//! through QEMU, not on the kernel's command line, which is short and which every process can read.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestSettings {
    pub hostname: String,
    /// Who runs the commands.
    pub user: GuestUser,
    #[serde(default)]
    pub shares: Vec<GuestShare>,
    /// The root file system is on the first disk; without one it is the initial one, in memory.
    #[serde(default)]
    pub root_disk: bool,
    /// How the network card is set up, if there is one.
    #[serde(default)]
    pub network: Option<Link>,
    /// Such as `Europe/Berlin`.
    #[serde(default)]
    pub time_zone: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestUser {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: PathBuf,
}

/// A folder of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestShare {
    /// What its device is called.
    pub tag: String,
    /// Where it is mounted: the path it has on the host.
    pub path: PathBuf,
    pub read_only: bool,
    #[serde(default)]
    pub backend: Backend,
    /// Of 9P: the address on the bus of the device that has this folder to itself. Without one,
    /// it has a port of the device of all ports.
    #[serde(default)]
    pub device: Option<String>,
    /// More options of the mount, as `mount -o` takes them.
    #[serde(default)]
    pub options: String,
}

/// What carries a folder between the host and a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Backend {
    /// A device whose queues are in the memory of the guest, over vhost-user.
    #[default]
    #[serde(rename = "virtiofs")]
    Virtiofs,
    /// 9P2000.L over a serial device: for hosts that cannot share memory with QEMU.
    #[serde(rename = "9p")]
    NineP,
}

impl Backend {
    pub fn name(self) -> &'static str {
        match self {
            Self::Virtiofs => "virtiofs",
            Self::NineP => "9p",
        }
    }
}

/// The first network card.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    pub address: Address,
    pub gateway: Option<Ipv4Addr>,
    #[serde(default)]
    pub name_servers: Vec<Ipv4Addr>,
    /// Variables that point programs to a proxy, for all commands.
    #[serde(default)]
    pub variables: Vec<(String, String)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    pub ip: Ipv4Addr,
    pub prefix_length: u8,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix_length)
    }
}
