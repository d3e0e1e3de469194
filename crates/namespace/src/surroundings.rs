//! What commands find around the working directories: the system, a home, a `/tmp`, variables.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use codeagent_control::ByteString;
use rustix::fs::{FlockOperation, flock};

use crate::GATEWAY_PORT;
use crate::ephemeral::{self, Ephemeral};
use crate::spec::{Home, HostPath, Limits, Network, Toolchain};
use crate::work_dirs::{self, WorkDirs};

/// The system, read-only.
const SYSTEM: [&str; 13] = [
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/etc",
    "/opt",
    "/nix",
    "/snap",
    "/gnu",
    "/sys/devices/system",
];

/// Of the system, what is nobody's business, beside files of `/etc` that not everybody may read.
const HIDDEN: [&str; 2] = ["/etc/ssh", "/nix/var/nix/daemon-socket"];

/// Directories of the home in which tools live. What is installed into them stays in the sandbox.
/// Beside tools there is much else in `.local`, and projects are in `go/src`.
const TOOLCHAINS: [&str; 31] = [
    ".cargo",
    ".rustup",
    ".nvm",
    ".fnm",
    ".volta",
    ".bun",
    ".deno",
    ".npm",
    ".pyenv",
    ".rbenv",
    ".rye",
    ".asdf",
    ".sdkman",
    ".jenv",
    ".ghcup",
    ".opam",
    ".elan",
    ".dotnet",
    "go/bin",
    "go/pkg",
    ".local/bin",
    ".local/lib",
    ".local/include",
    ".local/share/fnm",
    ".local/share/hatch",
    ".local/share/mise",
    ".local/share/pipx",
    ".local/share/pnpm",
    ".local/share/pypoetry",
    ".local/share/uv",
    ".local/share/virtualenvs",
];

/// In toolchains, what is nobody's business.
const CREDENTIALS: [&str; 5] = [
    ".cargo/credentials",
    ".cargo/credentials.toml",
    ".rye/credentials",
    ".dotnet/corefx",
    ".local/share/uv/credentials",
];

/// In the real home, what is nobody's business even if that is worked in.
const SECRETS: [&str; 24] = [
    ".ssh",
    ".gnupg",
    ".aws",
    ".azure",
    ".kube",
    ".docker",
    ".netrc",
    ".git-credentials",
    ".npmrc",
    ".pypirc",
    ".vault-token",
    ".password-store",
    ".mozilla",
    ".thunderbird",
    ".config/gh",
    ".config/glab-cli",
    ".config/gcloud",
    ".config/git/credentials",
    ".config/google-chrome",
    ".config/chromium",
    ".config/BraveSoftware",
    ".local/share/keyrings",
    ".local/share/kwalletd",
    ".local/share/gnupg",
];

/// Files of the home that make tools behave as expected, and hold no secrets.
const READABLE: [&str; 4] = [".gitconfig", ".config/git/config", ".config/git/ignore", ".inputrc"];

/// Variables that commands get from whoever runs them.
const PASSED_ON: [&str; 11] = [
    "LANG",
    "LANGUAGE",
    "TZ",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "USER",
    "LOGNAME",
    "SHELL",
    "EDITOR",
    "CI",
];

/// Those that say where tools are; passed on if that is there.
const PLACES: [&str; 11] = [
    "CARGO_HOME",
    "RUSTUP_HOME",
    "NVM_DIR",
    "PYENV_ROOT",
    "RBENV_ROOT",
    "GOPATH",
    "GOROOT",
    "JAVA_HOME",
    "VOLTA_HOME",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
];

/// Those that tell programs of a proxy.
const PROXY_VARIABLES: [&str; 6] =
    ["http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"];
/// What a command serves itself is not asked for elsewhere.
const OWN_LOOPBACK: &str = "localhost,127.0.0.1,::1";

const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What becomes of the home and of `/tmp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Keep {
    /// The next command, and the next session, find them as they were.
    Persistent,
    /// They go with the [`Surroundings`].
    Ephemeral,
}

/// What can be chosen.
#[derive(Debug, Clone)]
pub struct Policy {
    /// Where the sandbox keeps what is its own.
    pub state_dir: PathBuf,
    pub keep: Keep,
    pub network: Network,
    pub limits: Limits,
    /// Commands may make user namespaces of their own.
    pub nested_namespaces: bool,
    /// The real home; that of the user if not given.
    pub home: Option<PathBuf>,
    /// Directories of the home in which tools live, beside the usual ones.
    pub toolchains: Vec<PathBuf>,
    /// Further paths of the host that commands can read.
    pub readable: Vec<PathBuf>,
    /// Further paths that commands do not see, wherever they are.
    pub hidden: Vec<PathBuf>,
}

impl Policy {
    pub fn new(state_dir: impl Into<PathBuf>) -> Self {
        Self {
            state_dir: state_dir.into(),
            keep: Keep::Persistent,
            network: Network::Disabled,
            limits: Limits::default(),
            nested_namespaces: false,
            home: None,
            toolchains: Vec::new(),
            readable: Vec::new(),
            hidden: Vec::new(),
        }
    }
}

/// The home, the `/tmp` and the system of a session.
#[derive(Debug)]
pub struct Surroundings {
    policy: Policy,
    home: PathBuf,
    state: PathBuf,
    toolchains: PathBuf,
    /// Files and directories of `/etc` that not everybody may read.
    closed: Vec<PathBuf>,
    /// Held by the one session that may keep what its commands install.
    _lock: Option<File>,
    /// What goes with this value.
    _own: Option<Ephemeral>,
}

impl Surroundings {
    pub fn new(policy: Policy) -> io::Result<Self> {
        let home = match &policy.home {
            Some(home) => home.clone(),
            None => std::env::home_dir()
                .filter(|home| home.is_absolute())
                .ok_or_else(|| io::Error::other("the home directory is not known; set HOME"))?,
        };
        make_dir(&policy.state_dir)?;
        ephemeral::remove_orphans(&policy.state_dir)?;
        let persistent = policy.state_dir.join("persistent");
        let lock = match policy.keep {
            Keep::Persistent => lock_first(&persistent)?,
            Keep::Ephemeral => None,
        };
        let own = match &lock {
            Some(_) => None,
            None => Some(Ephemeral::make(&policy.state_dir)?),
        };
        let own_dir = own.as_ref().map_or(persistent.as_path(), Ephemeral::path).to_owned();
        let state = match policy.keep {
            Keep::Persistent => persistent,
            Keep::Ephemeral => own_dir.clone(),
        };
        // Of the commands of one session: a session that comes second gets layers of its own.
        let toolchains = own_dir.join("toolchains");
        work_dirs::remove_orphans(&toolchains);
        for dir in ["home", "tmp", "empty"] {
            make_dir(&state.join(dir))?;
        }
        let closed = closed_to_others(Path::new("/etc"));
        Ok(Self { policy, home, state, toolchains, closed, _lock: lock, _own: own })
    }

    pub(crate) fn network(&self) -> &Network {
        &self.policy.network
    }

    pub(crate) fn limits(&self) -> Limits {
        self.policy.limits
    }

    pub(crate) fn nested_namespaces(&self) -> bool {
        self.policy.nested_namespaces
    }

    pub(crate) fn tmp(&self) -> PathBuf {
        self.state.join("tmp")
    }

    /// Where nobody puts anything.
    pub(crate) fn empty(&self) -> PathBuf {
        self.state.join("empty")
    }

    /// What commands can read, and not change.
    pub(crate) fn system(&self) -> Vec<HostPath> {
        let mut system: Vec<HostPath> = SYSTEM.iter().map(HostPath::from).collect();
        // Often a link to where nothing else is needed from.
        if self.policy.network == Network::Open
            && let Ok(file) = fs::canonicalize("/etc/resolv.conf")
            && !file.starts_with("/etc")
        {
            system.push(file.into());
        }
        system.extend(self.policy.readable.iter().cloned().map(HostPath::from));
        system
    }

    /// What commands cannot see in the system and in the toolchains.
    pub(crate) fn hidden(&self) -> Vec<HostPath> {
        let credentials = CREDENTIALS.iter().map(|path| self.home.join(path));
        let system = HIDDEN.iter().map(PathBuf::from).chain(self.closed.iter().cloned());
        system.chain(credentials).chain(self.own()).map(HostPath).collect()
    }

    /// What commands cannot see in the folders they work in.
    pub(crate) fn hidden_in_folders(&self) -> impl Iterator<Item = PathBuf> + '_ {
        let secrets = SECRETS.iter().chain(&CREDENTIALS).map(|path| self.home.join(path));
        secrets.chain(self.own()).flat_map(|path| {
            let targets = link_targets(&path);
            targets.into_iter().chain([path])
        })
    }

    fn own(&self) -> impl Iterator<Item = PathBuf> + '_ {
        self.policy.hidden.iter().cloned().chain([self.policy.state_dir.clone()])
    }

    /// The home as a command finds it; layers for its toolchains are made as needed. What goes with
    /// the command comes back as well.
    pub(crate) fn home(&self) -> io::Result<(Home, WorkDirs)> {
        let content = self.state.join("home");
        let (mut toolchains, mut work_dirs) = (Vec::new(), WorkDirs::new());
        for (name, path) in self.toolchain_dirs() {
            let staging = self.toolchains.join(name);
            make_dir(&staging)?;
            make_dir(&staging.join("up"))?;
            let work = work_dirs.make_in(&staging)?;
            toolchains.push(Toolchain { path: path.into(), staging: staging.into(), work });
        }
        let readable = READABLE.iter().map(|path| self.home.join(path));
        let readable = readable.filter(|path| path.is_file()).map(HostPath::from).collect();
        let path = self.home.clone().into();
        Ok((Home { path, content: content.into(), toolchains, readable }, work_dirs))
    }

    fn toolchain_dirs(&self) -> impl Iterator<Item = (OsString, PathBuf)> + '_ {
        let usual = TOOLCHAINS.iter().map(|name| self.home.join(name));
        let further = self.policy.toolchains.iter().map(|path| self.home.join(path));
        usual.chain(further).filter(|path| path.is_dir()).map(|path| {
            let below = path.strip_prefix(&self.home).unwrap_or(&path);
            let name = below.as_os_str().as_bytes();
            let name: Vec<u8> =
                name.iter().map(|byte| if *byte == b'/' { b'%' } else { *byte }).collect();
            (OsStr::from_bytes(&name).to_owned(), path)
        })
    }

    /// The variables of a command; nothing else comes from whoever runs it.
    pub(crate) fn environment(&self, folders: &[&Path]) -> BTreeMap<String, ByteString> {
        let mut variables = BTreeMap::new();
        let mut set = |name: &str, value: &OsStr| {
            variables.insert(name.to_owned(), ByteString::from(value.as_bytes().to_vec()));
        };
        for (name, value) in std::env::vars_os() {
            let Some(name) = name.to_str() else { continue };
            let is_there = || self.shows(Path::new(&value), folders);
            if PASSED_ON.contains(&name)
                || name.starts_with("LC_")
                || (PLACES.contains(&name) && is_there())
            {
                set(name, &value);
            }
        }
        set("HOME", self.home.as_os_str());
        set("PATH", &self.search_path(folders));
        set("TMPDIR", OsStr::new("/tmp"));
        set("CODEAGENT_SANDBOX", OsStr::new("namespace"));
        if let Network::Gateway { host_loopback, .. } = self.policy.network {
            let proxy = format!("http://127.0.0.1:{GATEWAY_PORT}");
            for name in PROXY_VARIABLES {
                set(name, OsStr::new(&proxy));
            }
            if !host_loopback {
                set("no_proxy", OsStr::new(OWN_LOOPBACK));
                set("NO_PROXY", OsStr::new(OWN_LOOPBACK));
            }
        }
        variables
    }

    /// As outside, without what is not there inside.
    fn search_path(&self, folders: &[&Path]) -> OsString {
        let outside = std::env::var_os("PATH").unwrap_or_default();
        let mut dirs: Vec<PathBuf> =
            std::env::split_paths(&outside).filter(|dir| self.shows(dir, folders)).collect();
        for dir in std::env::split_paths(DEFAULT_PATH) {
            if !dirs.contains(&dir) {
                dirs.push(dir);
            }
        }
        std::env::join_paths(dirs).unwrap_or_else(|_| DEFAULT_PATH.into())
    }

    /// Whether a path of the host is there inside.
    fn shows(&self, path: &Path, folders: &[&Path]) -> bool {
        let worked_in = folders.iter().any(|folder| path.starts_with(folder));
        let system = SYSTEM.iter().any(|dir| path.starts_with(dir));
        let readable = self.policy.readable.iter().any(|dir| path.starts_with(dir));
        path.is_dir()
            && (worked_in
                || system
                || readable
                || self.toolchain_dirs().any(|(_, dir)| path.starts_with(dir)))
    }
}

/// Where a secret really is, if that is elsewhere: people keep them together with other settings, and
/// link to them.
fn link_targets(path: &Path) -> Vec<PathBuf> {
    let is_link = |path: &Path| path.symlink_metadata().is_ok_and(|found| found.is_symlink());
    let below = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let links = below.chain([path.to_owned()]).filter(|path| is_link(path));
    links.filter_map(|link| fs::canonicalize(link).ok()).collect()
}

/// Makes a directory and locks it; `None` if somebody else has.
fn lock_first(dir: &Path) -> io::Result<Option<File>> {
    make_dir(dir)?;
    let lock = File::create(dir.join("lock"))?;
    let is_first = flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok();
    Ok(is_first.then_some(lock))
}

/// Removes what the commands of earlier sessions left in their home and `/tmp`.
///
/// # Errors
/// While a session uses it.
pub fn forget(state_dir: &Path) -> io::Result<()> {
    let persistent = state_dir.join("persistent");
    if !persistent.exists() {
        return Ok(());
    }
    match lock_first(&persistent)? {
        Some(_lock) => remove_tree(&persistent),
        None => Err(io::ErrorKind::ResourceBusy.into()),
    }
}

/// What only its owner or a group can read, however deep it lies.
fn closed_to_others(dir: &Path) -> Vec<PathBuf> {
    use std::os::unix::fs::PermissionsExt;
    let (mut closed, mut pending) = (Vec::new(), vec![dir.to_owned()]);
    while let Some(dir) = pending.pop() {
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            let mode = metadata.permissions().mode();
            if !metadata.is_symlink() && mode & 0o004 == 0 {
                closed.push(entry.path());
            } else if metadata.is_dir() {
                pending.push(entry.path());
            }
        }
    }
    closed
}

/// Removes a directory with everything in it, also what its owner may not look into, and however
/// deep it is.
pub(crate) fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => remove_level_by_level(path),
        outcome => outcome,
    }
}

fn remove_level_by_level(path: &Path) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    let unlock = |dir: &Path| fs::set_permissions(dir, fs::Permissions::from_mode(0o700));
    let mut free = (0_u64..).map(|number| path.join(format!(".removing-{number}")));
    let mut free = move || free.find(|path| path.symlink_metadata().is_err());
    let mut pending = vec![path.to_owned()];
    let mut emptied = Vec::new();
    while let Some(dir) = pending.pop() {
        unlock(&dir)?;
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if !entry.file_type()?.is_dir() {
                fs::remove_file(entry.path())?;
            } else if dir == path {
                pending.push(entry.path());
            } else {
                // Comes to the top: then no path is too long, and no more than one is open.
                let top = free().ok_or(io::ErrorKind::AlreadyExists)?;
                unlock(&entry.path())?;
                fs::rename(entry.path(), &top)?;
                pending.push(top);
            }
        }
        emptied.push(dir);
    }
    emptied.iter().rev().try_for_each(fs::remove_dir)
}

/// For its owner only; one that exists already will do.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_others_may_not_read_is_found_however_deep_it_lies() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        fs::create_dir_all(path("open/deeper")).unwrap();
        fs::create_dir(path("closed")).unwrap();
        for (name, mode) in
            [("plain", 0o644), ("open/deeper/secret", 0o640), ("closed/plain", 0o644)]
        {
            fs::write(path(name), "").unwrap();
            fs::set_permissions(path(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(path("closed"), fs::Permissions::from_mode(0o750)).unwrap();
        symlink("plain", path("link")).unwrap();
        let mut closed = closed_to_others(dir.path());
        closed.sort();
        assert_eq!(closed, [path("closed"), path("open/deeper/secret")]);
    }

    #[test]
    fn trees_are_removed_however_deep_they_are_and_what_links_lead_to_stays() {
        let holder = tempfile::tempdir().unwrap();
        let (tree, kept) = (holder.path().join("tree"), holder.path().join("kept"));
        fs::write(&kept, "").unwrap();
        // Built from the bottom up: its path is far longer than a path may be.
        fs::create_dir(&tree).unwrap();
        for level in 0..1000 {
            let (lower, upper) = (tree.join("lower"), tree.join("upper"));
            fs::create_dir(&upper).unwrap();
            symlink(&kept, upper.join("link")).unwrap();
            if level > 0 {
                fs::rename(&lower, upper.join("lower")).unwrap();
                fs::set_permissions(upper.join("lower"), fs::Permissions::from_mode(0o000))
                    .unwrap();
            }
            fs::rename(&upper, &lower).unwrap();
        }
        fs::create_dir(tree.join(".removing-1")).unwrap();
        remove_level_by_level(&tree).unwrap();
        assert!(!tree.exists() && kept.exists());
    }
}
