//! A Linux guest in QEMU, and the images it is made of.
//!
//! ```text
//! owner ── lifeline ── guard ── QEMU ── kernel ── codeagent-guest (process 1, shim) ── commands …
//!   ├──── QMP ───────────────────┤                          │
//!   ├──── console ───────────────┤                          │
//!   ├──── control channel ───────┴──────────────────────────┘
//!   └ whoever serves a folder ── vhost-user ── QEMU
//! ```
//!
//! Everything between the owner and QEMU is a socket that QEMU inherits: there is nothing on disk
//! that could be left behind or that others could connect to. The guard ends QEMU as soon as the
//! owner has gone, however it went.

#[cfg(target_os = "linux")]
mod accelerator;
pub mod command_line;
mod config;
#[cfg(target_os = "linux")]
mod console;
#[cfg(target_os = "linux")]
mod death;
#[cfg(target_os = "linux")]
mod disk;
mod error;
#[cfg(target_os = "linux")]
mod facts;
#[cfg(target_os = "linux")]
mod guard;
mod hardware;
pub mod image;
#[cfg(target_os = "linux")]
mod link;
#[cfg(target_os = "linux")]
mod machine;
mod qemu;
#[cfg(target_os = "linux")]
mod qmp;
#[cfg(target_os = "linux")]
mod raw;

#[cfg(target_os = "linux")]
pub use accelerator::{Verdict, accelerator, forget_verdicts, remembered};
pub use codeagent_guest::{Address, Backend, GuestUser, Link};
pub use config::{
    AcceleratorChoice, Disk, MachineConfig, Network, Progress, Share, ShareServer, Stage,
};
#[cfg(target_os = "linux")]
pub use death::{Death, DeathWatch};
#[cfg(target_os = "linux")]
pub use disk::{discard as discard_disk, exists as disk_exists};
pub use error::{Result, VmError};
#[cfg(target_os = "linux")]
pub use facts::{Fact, FactId, FactsRequest, Presence, facts};
#[cfg(target_os = "linux")]
pub use guard::run_if_asked;
pub use hardware::{
    Accelerator, Architecture, Endpoint, FileSource, Hardware, HostSystem, NetworkDevice,
    ShareDevice, ShareTransport,
};
pub use image::GuestImage;
#[cfg(target_os = "linux")]
pub use machine::{Ending, Machine};
pub use qemu::Qemu;
