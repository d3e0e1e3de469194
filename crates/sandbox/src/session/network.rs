//! The one way out of a sandbox whose network is an allowlist.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use codeagent_network::proxy::Proxy;
use codeagent_network::{Allowlist, Gate, Policy, Rule};

use super::event::{Bus, Event};

/// Sockets in the directory for what the sandbox keeps begin with it.
const PREFIX: &str = "gateway-";

/// Several sessions of one process can have one each.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Decides what is let through, and tells what is not.
pub(super) fn gate(rules: &[Rule], bus: Bus) -> Arc<Gate> {
    let policy = Policy::Allowlist(Allowlist::new(rules.iter().cloned()));
    Arc::new(Gate::new(policy, move |refusal| {
        let (destination, message) = (refusal.destination(), refusal.to_string());
        bus.tell(&Event::NetworkRefused { destination, message });
    }))
}

/// A proxy that every command of the session can use, and that ends with it.
#[derive(Debug)]
pub(super) struct Gateway {
    socket: PathBuf,
    /// Before the directory, by which it removes its socket.
    _proxy: Proxy,
    _dir: File,
}

impl Gateway {
    pub(super) fn open(dir: &Path, gate: Arc<Gate>) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        let opened = File::open(dir)?;
        // Sockets have short paths, directories may not.
        let short = PathBuf::from(format!("/proc/self/fd/{}", opened.as_raw_fd()));
        remove_orphans(&short)?;
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let name = format!("{PREFIX}{process}-{number}");
        let proxy = Proxy::start(&short.join(&name), gate)?;
        Ok(Self { socket: dir.join(name), _proxy: proxy, _dir: opened })
    }

    pub(super) fn socket(&self) -> &Path {
        &self.socket
    }
}

/// Removes the sockets of sessions that were killed: nobody listens there.
fn remove_orphans(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)?.flatten() {
        let is_socket = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
        if is_socket && UnixStream::connect(entry.path()).is_err_and(refused) {
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}
