//! Guest images: what is in one, and how it is built.
//!
//! An image is a directory: `kernel`, `initramfs`, for some flavours `root.qcow2`, and `image.json`.
//! It is built beside the one that is there, and takes its place as a whole.

#[cfg(target_os = "linux")]
mod build;
#[cfg(target_os = "linux")]
mod cpio;
#[cfg(target_os = "linux")]
mod initramfs;
#[cfg(target_os = "linux")]
mod kernel;
#[cfg(target_os = "linux")]
mod lock;
#[cfg(target_os = "linux")]
mod module_9p;
#[cfg(target_os = "linux")]
mod modules;
#[cfg(target_os = "linux")]
mod packages;
#[cfg(target_os = "linux")]
mod process_one;
#[cfg(target_os = "linux")]
mod programs;
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "images are built on Linux"))]
mod recipe;
#[cfg(target_os = "linux")]
mod root;
#[cfg(target_os = "linux")]
mod scratch;

use std::fs;
use std::path::{Path, PathBuf};

use codeagent_control::PROTOCOL_VERSION;
use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
pub use build::{BuildProgress, BuildRequest, LockMode, build};
#[cfg(target_os = "linux")]
pub use process_one::{PROCESS_ONE, build_process_one, is_static};
pub use recipe::Flavour;

use crate::error::{Result, VmError};
use crate::hardware::Architecture;

const KERNEL: &str = "kernel";
const INITRAMFS: &str = "initramfs";
const ROOT: &str = "root.qcow2";
const MANIFEST: &str = "image.json";

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestImage {
    dir: PathBuf,
    manifest: Manifest,
}

/// What `image.json` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub flavour: Flavour,
    pub architecture: Architecture,
    /// Of the control protocol, as the shim in the image speaks it.
    pub protocol: u32,
    /// Name, version and checksum of each package it was made of, as the lock has them.
    pub packages: Vec<String>,
    /// It has our module that carries 9P; without it, a relay does, which takes longer.
    #[serde(default)]
    pub module_9p: bool,
    pub kernel_sha256: String,
    pub initramfs_sha256: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub root_sha256: Option<String>,
}

impl GuestImage {
    pub fn open(dir: impl Into<PathBuf>) -> Result<Self> {
        let dir = dir.into();
        let missing = |reason: String| VmError::ImageMissing { dir: dir.clone(), reason };
        let text = fs::read(dir.join(MANIFEST)).map_err(|error| missing(error.to_string()))?;
        let manifest = serde_json::from_slice(&text).map_err(|error| VmError::ImageBroken {
            dir: dir.clone(),
            reason: format!("{MANIFEST}: {error}"),
        })?;
        let image = Self { dir, manifest };
        image.expect_usable()?;
        Ok(image)
    }

    /// It may have been open for a while, and somebody may have built another one in its place since,
    /// which no disk of this one fits.
    pub(crate) fn expect_unchanged(&self) -> Result<()> {
        let now = Self::open(&self.dir)?;
        match now.manifest == self.manifest {
            true => Ok(()),
            false => Err(VmError::ImageBroken {
                dir: self.dir.clone(),
                reason: "another image has taken its place meanwhile; begin a new session".into(),
            }),
        }
    }

    fn expect_usable(&self) -> Result<()> {
        let broken = |reason: String| VmError::ImageBroken { dir: self.dir.clone(), reason };
        let wanted = [Some(self.kernel()), Some(self.initramfs()), self.root()];
        for file in wanted.into_iter().flatten() {
            if !file.is_file() {
                return Err(VmError::ImageMissing {
                    dir: self.dir.clone(),
                    reason: format!("{} is not there", file.display()),
                });
            }
        }
        let protocol = self.manifest.protocol;
        if protocol != PROTOCOL_VERSION {
            let reason = format!(
                "its shim speaks version {protocol} of the control protocol, and this program {PROTOCOL_VERSION}; build it again"
            );
            return Err(broken(reason));
        }
        Ok(())
    }

    /// What is wrong with the files that a guest boots from. It takes a while to find out, so it is
    /// asked only when no guest has come of them.
    #[cfg(target_os = "linux")]
    pub(crate) fn damage(&self) -> Option<VmError> {
        let manifest = &self.manifest;
        let booted = [
            (self.kernel(), &manifest.kernel_sha256),
            (self.initramfs(), &manifest.initramfs_sha256),
        ];
        let reason =
            booted.iter().find_map(|(file, expected)| match packages::sha256_of(file) {
                Ok(found) if found == **expected => None,
                Ok(_) => Some(format!(
                    "{} is not as it was built; build it again with: sandbox guest build",
                    file.display()
                )),
                Err(error) => Some(format!("{}: {error}", file.display())),
            })?;
        Some(VmError::ImageBroken { dir: self.dir.clone(), reason })
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    pub fn architecture(&self) -> Architecture {
        self.manifest.architecture
    }

    pub fn kernel(&self) -> PathBuf {
        self.dir.join(KERNEL)
    }

    pub fn initramfs(&self) -> PathBuf {
        self.dir.join(INITRAMFS)
    }

    /// The root file system for a disk, if it has one.
    pub fn root(&self) -> Option<PathBuf> {
        self.manifest.root_sha256.as_ref().map(|_| self.dir.join(ROOT))
    }

    /// What a disk on top of it depends on.
    pub fn id(&self) -> &str {
        self.manifest.root_sha256.as_deref().unwrap_or(&self.manifest.initramfs_sha256)
    }

    /// Where an image is, below the directory of all of them.
    pub fn dir_in(images: &Path, flavour: Flavour, architecture: Architecture) -> PathBuf {
        images.join(format!("{}-{}", flavour.name(), architecture.name()))
    }
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        Manifest {
            flavour: Flavour::Minimal,
            architecture: Architecture::current(),
            protocol: PROTOCOL_VERSION,
            packages: Vec::new(),
            module_9p: false,
            kernel_sha256: String::new(),
            initramfs_sha256: String::new(),
            root_sha256: None,
        }
    }

    fn image(manifest: &Manifest) -> std::path::PathBuf {
        let dir = tempfile::tempdir().unwrap().keep();
        fs::write(dir.join(KERNEL), "").unwrap();
        fs::write(dir.join(INITRAMFS), "").unwrap();
        fs::write(dir.join(MANIFEST), serde_json::to_vec(manifest).unwrap()).unwrap();
        dir
    }

    #[test]
    fn an_image_that_is_not_there_is_said_with_what_builds_it() {
        let error = GuestImage::open("/no/such/image").unwrap_err().to_string();
        assert!(error.contains("/no/such/image") && error.contains("guest build"), "{error}");
    }

    #[test]
    fn an_image_that_was_replaced_while_it_was_open_is_refused() {
        let dir = image(&manifest());
        let open = GuestImage::open(&dir).unwrap();
        assert!(open.expect_unchanged().is_ok());
        let other = Manifest { initramfs_sha256: "other".into(), ..manifest() };
        fs::write(dir.join(MANIFEST), serde_json::to_vec(&other).unwrap()).unwrap();
        let error = open.expect_unchanged().unwrap_err();
        assert!(matches!(error, VmError::ImageBroken { .. }), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn an_image_with_a_file_missing_is_no_image() {
        let dir = image(&manifest());
        assert!(GuestImage::open(&dir).is_ok());
        fs::remove_file(dir.join(INITRAMFS)).unwrap();
        let error = GuestImage::open(&dir).unwrap_err();
        assert!(matches!(error, VmError::ImageMissing { .. }), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn an_image_whose_shim_speaks_another_version_is_refused() {
        let dir = image(&Manifest { protocol: PROTOCOL_VERSION + 1, ..manifest() });
        let error = GuestImage::open(&dir).unwrap_err().to_string();
        assert!(error.contains("build it again"), "{error}");
        fs::remove_dir_all(dir).unwrap();
    }
}
