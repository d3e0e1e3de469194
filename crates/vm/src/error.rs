use std::io;
use std::path::PathBuf;
use std::time::Duration;

use crate::hardware::Accelerator;

pub type Result<T, E = VmError> = std::result::Result<T, E>;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmError {
    #[error("there is no {program} on this machine; {hint}")]
    QemuMissing { program: String, hint: &'static str },
    #[error("{path} is no QEMU: {reason}")]
    NotQemu { path: PathBuf, reason: String },
    #[error("there is no guest image in {dir} ({reason}); build one with: sandbox guest build")]
    ImageMissing { dir: PathBuf, reason: String },
    #[error("the guest image in {dir} cannot be used: {reason}")]
    ImageBroken { dir: PathBuf, reason: String },
    #[error("the image has no root file system, so there can be no disk")]
    NoRootFilesystem,
    #[error("the disk {path} was made for another image")]
    DiskOfOtherImage { path: PathBuf },
    #[error("another machine has the disk {path}")]
    DiskInUse { path: PathBuf },
    #[error("cannot make the disk {path}: {reason}")]
    Disk { path: PathBuf, reason: String },
    #[error("{accelerator} does not work here: {reason}")]
    AcceleratorBroken { accelerator: Accelerator, reason: String },
    #[error("the guest was not ready after {} s{}", deadline.as_secs(), said(console))]
    BootDeadline { deadline: Duration, console: String },
    #[error("the guest was not wanted any more before it was ready")]
    Cancelled,
    #[error("the guest ended before it was ready: {0}")]
    DiedAtBoot(String),
    #[error("a share cannot be reached: {0}")]
    Share(io::Error),
    #[error("{0}")]
    Unusable(String),
    #[error("QEMU refused `{command}`: {reason}")]
    Refused { command: String, reason: String },
    #[error("QEMU does not answer: {0}")]
    Silent(io::Error),
    #[error("cannot start QEMU: {0}")]
    Start(io::Error),
    #[error("cannot build the guest image: {0}")]
    Build(String),
    /// Debian keeps a version for as long as nothing newer takes its place.
    #[error("cannot build the guest image: Debian has not all packages of the lock any more: {0}")]
    LockOutdated(String),
    #[error("cannot build the guest image: apt knows no Debian {suite} on this machine")]
    NoDebian { suite: &'static str },
    #[error("{path}: {error}")]
    File { path: PathBuf, error: io::Error },
}

/// The last lines are where the reason is.
fn said(console: &str) -> String {
    let lines: Vec<_> = console.lines().rev().take(3).collect();
    if lines.is_empty() {
        return "; it said nothing".to_owned();
    }
    let lines: Vec<_> = lines.into_iter().rev().collect();
    format!("; it said: {}", lines.join(" / "))
}
