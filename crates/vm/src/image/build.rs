//! Building an image, for `cargo xtask build-guest` and `sandbox guest build`.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use codeagent_common::CancelToken;
use codeagent_control::PROTOCOL_VERSION;

use super::lock::{self, Locked, Packages};
use super::packages::{Apt, sha256_of, unpack};
use super::process_one::expect_static;
use super::programs::expect_all;
use super::recipe::{self, Flavour};
use super::scratch::Scratch;
use super::{
    GuestImage, INITRAMFS, KERNEL, MANIFEST, Manifest, ROOT, initramfs, kernel, module_9p, root,
};
use crate::error::{Result, VmError};
use crate::hardware::Architecture;

#[derive(Debug, Clone)]
pub struct BuildRequest {
    pub flavour: Flavour,
    pub architecture: Architecture,
    /// The directory of all images; this one gets a directory in it.
    pub images_dir: PathBuf,
    /// Where packages are kept from one build to the next.
    pub cache_dir: PathBuf,
    /// Where apt finds Debian, as it wants it written; what this machine knows of it, if not given.
    pub sources: Option<PathBuf>,
    /// `codeagent-guest`, linked statically for that architecture.
    pub init: PathBuf,
    pub lock: LockMode,
    /// A root file system that is there already, of the packages of the lock, stays: it takes
    /// minutes to make.
    pub keep_root: bool,
    /// Ends the build, and nothing of it is left.
    pub cancel: CancelToken,
}

/// Whether the versions of packages are given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LockMode {
    /// Exactly those that this program was built with.
    Exact,
    /// The newest ones; what they were is written to this file.
    Newest(PathBuf),
}

/// What is being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BuildProgress {
    Fetching {
        package: String,
        version: String,
    },
    UnpackingKernel,
    BuildingModule,
    /// Our module is not in it, for this reason: 9P takes longer in its guests.
    WithoutModule(String),
    PackingInitramfs,
    /// A line of what the program says that installs the root file system.
    InstallingRoot(String),
    PackingRoot,
}

/// Builds an image, in place of one that is there. It is built beside it and takes its place as a
/// whole, so that whoever looks, and whatever fails or is killed, finds one image or the other.
pub fn build(
    request: &BuildRequest,
    progress: &mut dyn FnMut(BuildProgress),
) -> Result<GuestImage> {
    let dir = GuestImage::dir_in(&request.images_dir, request.flavour, request.architecture);
    build_beside(request, &dir, progress).map_err(|error| {
        error.downcast::<VmError>().unwrap_or_else(|error| VmError::Build(error.to_string()))
    })?;
    GuestImage::open(dir)
}

fn build_beside(
    request: &BuildRequest,
    dir: &Path,
    progress: &mut dyn FnMut(BuildProgress),
) -> io::Result<()> {
    // Before anything is fetched.
    expect_static(&request.init)?;
    expect_all(&recipe::tools(request.flavour, rustix::process::geteuid().is_root()))?;
    fs::create_dir_all(&request.images_dir)?;
    let beside = Scratch::new_in(&request.images_dir)?;
    let new = beside.dir("image")?;
    build_in(request, &beside, &new, dir, progress)?;
    // What was there before goes with the directory beside.
    take_place(&new, dir)
}

/// In `dir`; `last` is where the image is that it will replace.
fn build_in(
    request: &BuildRequest,
    beside: &Scratch,
    dir: &Path,
    last: &Path,
    progress: &mut dyn FnMut(BuildProgress),
) -> io::Result<()> {
    let apt = Apt::new(request)?;
    let mut packages = boot_packages(request, &apt)?;
    let kernel_deb = fetched(&apt, &packages.kernel, progress)?;
    let busybox_deb = fetched(&apt, &packages.busybox, progress)?;

    let (unpacked, cancel) = (beside.dir("unpacked")?, &request.cancel);
    progress(BuildProgress::UnpackingKernel);
    unpack(&kernel_deb, &["*/vmlinuz-*"], &unpacked, cancel)?;
    unpack(&kernel_deb, recipe::MODULE_PATHS, &unpacked, cancel)?;
    unpack(&busybox_deb, &["*/busybox"], &unpacked, cancel)?;
    let packed = only_file_in(&unpacked.join("boot"))?;
    write(&dir.join(KERNEL), &kernel::unpacked(fs::read(packed)?, request.architecture)?)?;

    let modules = unpacked.join("lib/modules");
    let module_9p = match build_module(request, (&apt, &packages), beside, &modules, progress) {
        Ok(()) => true,
        Err(error) if request.cancel.is_cancelled() => return Err(error),
        Err(error) => {
            progress(BuildProgress::WithoutModule(error.to_string()));
            false
        }
    };
    progress(BuildProgress::PackingInitramfs);
    let busybox = unpacked.join("bin/busybox");
    let bytes = initramfs::build(&request.init, &busybox, &modules, request.flavour)?;
    write(&dir.join(INITRAMFS), &bytes)?;

    if request.flavour.has_root() {
        packages.root = match kept_root(request, last)? {
            Some(packages) => {
                fs::hard_link(last.join(ROOT), dir.join(ROOT))?;
                packages
            }
            None => root::build(request, (&apt, beside), &dir.join(ROOT), progress)?,
        };
    }
    if let LockMode::Newest(file) = &request.lock {
        fs::write(file, lock::render(&packages))?;
    }
    let manifest = Manifest {
        flavour: request.flavour,
        architecture: request.architecture,
        protocol: PROTOCOL_VERSION,
        packages: packages.all().map(ToString::to_string).collect(),
        module_9p,
        kernel_sha256: sha256_of(&dir.join(KERNEL))?,
        initramfs_sha256: sha256_of(&dir.join(INITRAMFS))?,
        root_sha256: request.flavour.has_root().then(|| sha256_of(&dir.join(ROOT))).transpose()?,
    };
    write(&dir.join(MANIFEST), &serde_json::to_vec_pretty(&manifest)?)
}

fn fetched(
    apt: &Apt<'_>,
    package: &Locked,
    progress: &mut dyn FnMut(BuildProgress),
) -> io::Result<PathBuf> {
    let (name, version) = (package.name.clone(), package.version.clone());
    progress(BuildProgress::Fetching { package: name, version });
    apt.fetch(package)
}

/// Our module takes its place among those of the kernel.
fn build_module(
    request: &BuildRequest,
    (apt, Packages { kernel, headers, .. }): (&Apt<'_>, &Packages),
    beside: &Scratch,
    modules: &Path,
    progress: &mut dyn FnMut(BuildProgress),
) -> io::Result<()> {
    // Among the headers are programs for the processor that they are for.
    if request.architecture != Architecture::current() {
        return Err(io::Error::other("it is built on the processor that it is for"));
    }
    if headers.is_empty() {
        return Err(io::Error::other("the lock names no headers of the kernel"));
    }
    // A module of another kernel would not be loaded, and there would be no folder at all.
    if headers.iter().any(|package| package.version != kernel.version) {
        return Err(io::Error::other("the headers that the lock names are of another kernel"));
    }
    let debs = headers.iter().map(|package| fetched(apt, package, progress));
    let debs = debs.collect::<io::Result<Vec<_>>>()?;
    progress(BuildProgress::BuildingModule);
    let place = beside.dir("module")?.canonicalize()?;
    let module = module_9p::build(&debs, &place, &request.cancel)?;
    fs::copy(module, modules.join(format!("{}.ko", module_9p::NAME))).map(drop)
}

/// What is in the root file system that is there, if it may stay.
fn kept_root(request: &BuildRequest, dir: &Path) -> io::Result<Option<Vec<Locked>>> {
    if !request.keep_root || request.lock != LockMode::Exact {
        return Ok(None);
    }
    let Ok(image) = GuestImage::open(dir) else { return Ok(None) };
    let locked = Packages::parse(lock_text(request)?)?;
    let names = locked.all().map(ToString::to_string);
    let is_of_the_lock = image.manifest().packages.iter().cloned().eq(names);
    let is_whole = || sha256_of(&dir.join(ROOT)).is_ok_and(|sha256| image.id() == sha256);
    Ok((is_of_the_lock && is_whole()).then_some(locked.root))
}

/// What every image has, without a root file system.
fn boot_packages(request: &BuildRequest, apt: &Apt<'_>) -> io::Result<Packages> {
    let packages = match request.lock {
        LockMode::Exact => Packages::parse(lock_text(request)?)?,
        LockMode::Newest(_) => {
            apt.update()?;
            let kernel = apt.newest_kernel(recipe::kernel_package(request.architecture))?;
            // Without them, there is an image all the same.
            let headers = apt.newest_headers(&kernel).unwrap_or_default();
            let busybox = apt.newest(recipe::BUSYBOX_PACKAGE)?;
            Packages { kernel, busybox, headers, root: Vec::new() }
        }
    };
    Ok(Packages { root: Vec::new(), ..packages })
}

pub(super) fn lock_text(request: &BuildRequest) -> io::Result<&'static str> {
    match (request.flavour, request.architecture) {
        (Flavour::Minimal, Architecture::X86_64) => {
            Ok(include_str!("../../../../guest/locks/minimal-x86_64.lock"))
        }
        (Flavour::Dev, Architecture::X86_64) => {
            Ok(include_str!("../../../../guest/locks/dev-x86_64.lock"))
        }
        (Flavour::Minimal, Architecture::Aarch64) => {
            Ok(include_str!("../../../../guest/locks/minimal-aarch64.lock"))
        }
        (Flavour::Dev, Architecture::Aarch64) => Err(io::Error::other(
            "nothing is locked for it on aarch64 yet: build it with the newest packages",
        )),
    }
}

/// On the disk before anything has its name: an image takes its place when it is whole.
fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = fs::File::create(path)?;
    file.write_all(content)?;
    file.sync_all()
}

/// Afterwards `old` is what `new` was, and the other way round, if there was anything.
fn take_place(new: &Path, old: &Path) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::NOENT) => return fs::rename(new, old),
        Err(_) => {} // not every filesystem can
    }
    // For a moment there is none, but never half of one.
    fs::rename(old, new.with_extension("before"))?;
    fs::rename(new, old)
}

fn only_file_in(dir: &Path) -> io::Result<PathBuf> {
    let entry = fs::read_dir(dir)?.next().transpose()?;
    entry.map(|entry| entry.path()).ok_or_else(|| io::Error::other("the package has no kernel"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_takes_the_place_of_another_or_of_none() {
        let place = tempfile::tempdir().unwrap();
        let (new, old) = (place.path().join("new"), place.path().join("old"));
        for content in ["first", "second"] {
            fs::create_dir(&new).unwrap();
            fs::write(new.join(KERNEL), content).unwrap();
            take_place(&new, &old).unwrap();
            assert_eq!(fs::read_to_string(old.join(KERNEL)).unwrap(), content);
        }
        assert_eq!(fs::read_to_string(new.join(KERNEL)).unwrap(), "first");
    }
}
