//! What the host tells a guest, and process 1 of the guest, which makes it so.
//!
//! ```text
//! kernel ── process 1: modules, settings, root disk, shares ── the same process: shim ── commands …
//!              ▲ settings (fw_cfg)                                    ▲ control port
//!            host                                                   host
//! ```
//!
//! The same binary is process 1, the shim, and the supervisor of each command: one static file in
//! the initial file system, and the shim always fits what started it.

#![forbid(unsafe_code)]

#[cfg(target_os = "linux")]
mod init;
mod settings;

#[cfg(target_os = "linux")]
pub use init::{InitError, live};
pub use settings::{Address, Backend, GuestSettings, GuestShare, GuestUser, Link};

/// The name of the virtio-serial port between the shim and the host.
pub const CONTROL_PORT: &str = "codeagent.control";

/// The name of the virtio-serial port through which a folder is served over 9P.
pub fn share_port(tag: &str) -> String {
    format!("codeagent.share.{tag}")
}

/// What the settings are called among those that QEMU gives its guest (`-fw_cfg`).
pub const SETTINGS_NAME: &str = "opt/codeagent/settings";

/// Where the initial file system has its kernel modules: one directory for each purpose, whose
/// files are loaded in the order of their names.
pub const MODULES_DIR: &str = "/modules";

/// What modules are for. Those of a purpose nobody has in mind are not loaded: each costs boot time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModulePurpose {
    /// Always: the bus, the control port, the settings.
    Base,
    /// Folders of the host, over virtiofs.
    Shares,
    /// The same, over 9P.
    Shares9p,
    /// The root file system on a disk.
    Disk,
    Network,
}

impl ModulePurpose {
    pub const ALL: [Self; 5] =
        [Self::Base, Self::Shares, Self::Shares9p, Self::Disk, Self::Network];

    /// Its directory below [`MODULES_DIR`].
    pub fn dir(self) -> &'static str {
        match self {
            Self::Base => "base",
            Self::Shares => "shares",
            Self::Shares9p => "shares-9p",
            Self::Disk => "disk",
            Self::Network => "network",
        }
    }
}
