//! What a sandbox looks like from inside: plain data, made outside and sent in.

use std::path::PathBuf;

use codeagent_common::path_bytes;
use serde::{Deserialize, Serialize};

/// Everything the process that becomes the sandbox has to know.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Spec {
    /// Read-only, each at its own path; those that do not exist are left out.
    pub system: Vec<HostPath>,
    /// Below them, and not to be seen.
    pub hidden: Vec<HostPath>,
    /// The working directories.
    pub folders: Vec<Folder>,
    /// Below those, and not to be seen either.
    pub hidden_in_folders: Vec<HostPath>,
    pub home: Home,
    /// A directory of the host that is `/tmp` inside.
    pub tmp: HostPath,
    /// A directory with nothing in it.
    pub empty: HostPath,
    pub network: Network,
    pub limits: Limits,
    /// Commands may make user namespaces of their own.
    pub nested_namespaces: bool,
    /// What runs commands: a program that begins with [`run_if_asked`](crate::run_if_asked).
    pub program: HostPath,
}

/// What the process that becomes the sandbox is sent.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Wanted {
    pub(crate) spec: Spec,
    /// A cgroup is around it already.
    pub(crate) limits_are_shared: bool,
}

/// A working directory, which has the same path inside.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Folder {
    pub path: HostPath,
    pub view: FolderView,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FolderView {
    /// The directory itself, read-only, with what is mounted in it. Its sockets and pipes are those
    /// of the host.
    ReadOnly,
    /// An overlay to which nothing can be written. Sockets and pipes of the host are there by name
    /// only; what others change in the directory meanwhile need not be seen.
    Sealed,
    /// An overlay; what commands change is left in `staging/up`, and `staging/work` is the
    /// kernel's. Both must exist, on one filesystem.
    Transactional { staging: HostPath },
    /// A FUSE mount. Its device is given to whoever asked for the sandbox, to have it served.
    Live,
}

/// The home directory: an own one, at the path of the real one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Home {
    pub path: HostPath,
    /// A directory of the host that takes its place.
    pub content: HostPath,
    /// Directories of the real home that can be used, and whose changes stay in here.
    pub toolchains: Vec<Toolchain>,
    /// Files and directories of the real home that can be read.
    pub readable: Vec<HostPath>,
}

/// A directory of the real home as an overlay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Toolchain {
    pub path: HostPath,
    /// As with [`FolderView::Transactional`], but kept, and shared by commands that run at once.
    pub staging: HostPath,
    /// In it, what is the kernel's: of this command alone.
    pub work: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Nothing but loopback, which nobody outside shares.
    Disabled,
    /// The network of the host.
    Open,
    /// Nothing but loopback, and a proxy on it that is this socket of the host: whoever listens
    /// there decides what goes out. With `host_loopback`, loopback addresses go there as well, as
    /// far as programs heed variables: they mean the host's.
    Gateway { socket: HostPath, host_loopback: bool },
}

/// What commands may use up, all of them together where a cgroup can be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Limits {
    pub memory_bytes: Option<u64>,
    pub processes: Option<u64>,
    pub open_files: Option<u64>,
    /// Of one file.
    pub file_bytes: Option<u64>,
}

/// A path of the host, of which not every one is text.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostPath(pub PathBuf);

impl HostPath {
    pub fn as_path(&self) -> &std::path::Path {
        &self.0
    }
}

impl<T: Into<PathBuf>> From<T> for HostPath {
    fn from(path: T) -> Self {
        Self(path.into())
    }
}

impl AsRef<std::path::Path> for HostPath {
    fn as_ref(&self) -> &std::path::Path {
        &self.0
    }
}

impl Serialize for HostPath {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        path_bytes::serialize(&self.0, serializer)
    }
}

impl<'de> Deserialize<'de> for HostPath {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        path_bytes::deserialize(deserializer).map(Self)
    }
}
