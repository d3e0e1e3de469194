//! Process 1: makes the guest what its settings say, and then is the shim.

mod consoles;
mod identity;
mod modules;
mod mounts;
mod network;
mod ports;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use codeagent_control::{ByteString, User};
use codeagent_shim::{Defaults, Shim, ShimConfig};

use crate::settings::{Backend, GuestSettings};
use crate::{CONTROL_PORT, ModulePurpose, SETTINGS_NAME};

/// Where rollbacks are announced to commands.
const ROLLBACK_FILE: &str = "/run/codeagent/rollback";
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[derive(Debug, thiserror::Error)]
#[error("{what}: {error}")]
pub struct InitError {
    what: String,
    error: io::Error,
}

/// Says what could not be done.
trait While<T> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T, InitError>;
}

impl<T, E: Into<io::Error>> While<T> for Result<T, E> {
    fn during(self, what: impl FnOnce() -> String) -> Result<T, InitError> {
        self.map_err(|error| InitError { what: what(), error: error.into() })
    }
}

/// The whole life of the guest, up to the moment when it can be switched off.
pub fn live() -> Result<(), InitError> {
    mounts::mount_kernel_filesystems()?;
    modules::load(ModulePurpose::Base)?;
    let settings = read_settings()?;
    // Programs talk to themselves, also where there is no network.
    network::raise_loopback()?;
    if let Some(link) = &settings.network {
        modules::load(ModulePurpose::Network)?;
        network::set_up(link)?;
    }
    for (backend, purpose) in
        [(Backend::Virtiofs, ModulePurpose::Shares), (Backend::NineP, ModulePurpose::Shares9p)]
    {
        if settings.shares.iter().any(|share| share.backend == backend) {
            modules::load(purpose)?;
        }
    }
    if settings.root_disk {
        modules::load(ModulePurpose::Disk)?;
        mounts::enter_root_disk()?;
    }
    mounts::mount_scratch()?;
    identity::settle(&settings)?;
    for share in &settings.shares {
        mounts::mount_share(share)?;
    }
    serve(&settings)
}

fn read_settings() -> Result<GuestSettings, InitError> {
    let path = format!("/sys/firmware/qemu_fw_cfg/by_name/{SETTINGS_NAME}/raw");
    let bytes = std::fs::read(&path).during(|| "cannot read the settings of the guest".into())?;
    serde_json::from_slice(&bytes)
        .map_err(io::Error::other)
        .during(|| "the settings of the guest make no sense".into())
}

/// Runs commands until the host has had enough, or has gone: nobody else is meant to come.
fn serve(settings: &GuestSettings) -> Result<(), InitError> {
    let port = ports::open(CONTROL_PORT).during(|| "cannot open the control port".into())?;
    let writable = settings.shares.iter().filter(|share| !share.read_only);
    let rollback_file = Path::new(ROLLBACK_FILE);
    identity::make_dir(rollback_file.parent().unwrap_or(rollback_file))?;
    let config = ShimConfig {
        supervisor: PathBuf::from("/proc/self/exe"),
        sync_dirs: writable.map(|share| share.path.clone()).collect(),
        rollback_file: Some(rollback_file.to_owned()),
        drop_caches: true,
        sets_clock: true,
        defaults: defaults(settings),
    };
    let what = || "the control channel broke".to_owned();
    let (from_host, to_host) = (port.try_clone().during(what)?, port);
    Shim::new(config).run(from_host, to_host).during(what)?;
    Ok(())
}

/// What a command gets that says nothing about it.
fn defaults(settings: &GuestSettings) -> Defaults {
    let user = &settings.user;
    let home = user.home.to_string_lossy();
    let mut env = BTreeMap::new();
    let mut set = |name: &str, value: &str| env.insert(name.to_owned(), ByteString::from(value));
    set("PATH", PATH);
    set("HOME", &home);
    set("USER", &user.name);
    set("LOGNAME", &user.name);
    set("SHELL", "/bin/sh");
    set("LANG", "C.UTF-8");
    if let Some(zone) = &settings.time_zone {
        set("TZ", zone);
    }
    for (name, value) in settings.network.iter().flat_map(|link| &link.variables) {
        set(name, value);
    }
    let user = User { uid: user.uid, gid: user.gid };
    let first = settings.shares.first().map_or(settings.user.home.as_path(), |share| &share.path);
    let cwd = std::os::unix::ffi::OsStrExt::as_bytes(first.as_os_str()).into();
    Defaults { user: Some(user), env, cwd: Some(cwd) }
}
