//! What images are made of, as data.

use codeagent_guest::ModulePurpose;
use serde::{Deserialize, Serialize};

use crate::hardware::Architecture;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Flavour {
    /// The initial file system is all there is: a shell and the tools of busybox, in memory.
    Minimal,
    /// Debian with git, Python, Node, compilers and the like, on a disk.
    Dev,
}

impl Flavour {
    pub const ALL: [Self; 2] = [Self::Minimal, Self::Dev];

    pub fn name(self) -> &'static str {
        match self {
            Self::Minimal => "minimal",
            Self::Dev => "dev",
        }
    }

    pub fn has_root(self) -> bool {
        self == Self::Dev
    }
}

/// The release of Debian that packages come from.
pub(crate) const SUITE: &str = "bookworm";

/// Debian's word for it.
pub(crate) fn debian_architecture(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => "amd64",
        Architecture::Aarch64 => "arm64",
    }
}

/// The package that depends on the newest kernel. Not the one for clouds, which lacks 9P.
pub(crate) fn kernel_package(architecture: Architecture) -> &'static str {
    match architecture {
        Architecture::X86_64 => "linux-image-amd64",
        Architecture::Aarch64 => "linux-image-arm64",
    }
}

pub(crate) const BUSYBOX_PACKAGE: &str = "busybox-static";

/// The modules of each purpose; those they need come with them.
pub(crate) fn modules(purpose: ModulePurpose) -> &'static [&'static str] {
    match purpose {
        ModulePurpose::Base => &["virtio_pci", "virtio_console", "qemu_fw_cfg"],
        ModulePurpose::Shares => &["virtiofs"],
        // The last one is for QEMU's own 9P, which ours is measured against.
        ModulePurpose::Shares9p => &["9p", "9pnet_fd", "9pnet_virtio"],
        ModulePurpose::Disk => &["virtio_blk", "crc32c_generic", "ext4"],
        ModulePurpose::Network => &["virtio_net"],
    }
}

/// Where in the package of the kernel those modules, and what they need, are.
pub(crate) const MODULE_PATHS: &[&str] = &[
    "*/kernel/drivers/virtio/*",
    "*/kernel/drivers/char/*",
    "*/kernel/drivers/firmware/*",
    "*/kernel/drivers/block/*",
    "*/kernel/drivers/net/virtio_net.ko*",
    "*/kernel/drivers/net/net_failover.ko*",
    "*/kernel/net/core/*",
    "*/kernel/net/9p/*",
    "*/kernel/fs/9p/*",
    "*/kernel/fs/fscache/*",
    "*/kernel/fs/netfs/*",
    "*/kernel/fs/fuse/*",
    "*/kernel/fs/ext4/*",
    "*/kernel/fs/jbd2/*",
    "*/kernel/fs/mbcache.ko*",
    "*/kernel/lib/*",
    "*/kernel/crypto/*",
];

/// The purposes a flavour has modules for.
pub(crate) fn purposes(flavour: Flavour) -> impl Iterator<Item = ModulePurpose> {
    ModulePurpose::ALL
        .into_iter()
        .filter(move |purpose| flavour.has_root() || *purpose != ModulePurpose::Disk)
}

/// What is in the root file system of `dev`, beside what Debian counts as essential.
pub(crate) const DEV_PACKAGES: &[&str] = &[
    "apt",
    "build-essential",
    "ca-certificates",
    // Debian's cargo for building its web browsers: a recent one, in the release itself.
    "cargo-web",
    "curl",
    "file",
    "git",
    "iproute2",
    "jq",
    "less",
    "make",
    "nodejs",
    "npm",
    "openssh-client",
    "patch",
    "pkg-config",
    "procps",
    "python-is-python3",
    "python3",
    "python3-pip",
    "python3-venv",
    "ripgrep",
    "rsync",
    "tzdata",
    "unzip",
    "vim-tiny",
    "xz-utils",
];

/// The programs that it takes to build one, and the packages that have them.
pub(crate) fn tools(flavour: Flavour, is_root: bool) -> Vec<(&'static str, &'static str)> {
    let mut tools =
        vec![("apt-get", "apt"), ("dpkg-deb", "dpkg"), ("tar", "tar"), ("xz", "xz-utils")];
    if flavour.has_root() {
        tools.extend([("mmdebstrap", "mmdebstrap"), ("mke2fs", "e2fsprogs")]);
        tools.push(("qemu-img", "qemu-utils"));
    }
    if flavour.has_root() && !is_root {
        tools.extend([("fakeroot", "fakeroot"), ("newuidmap", "uidmap")]);
    }
    tools
}

/// As large as the disk of a guest can grow.
pub(crate) const ROOT_SIZE: &str = "16G";

/// The same from one build to the next, as everything in an image: 2023-06-10, the day of the release.
pub(crate) const SOURCE_DATE_EPOCH: u64 = 1_686_355_200;
