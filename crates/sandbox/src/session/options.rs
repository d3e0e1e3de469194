//! What a session is to be.

use std::path::PathBuf;
use std::time::Duration;

use codeagent_common::{
    ExternalModificationPolicy, ResourceLimits, SafeguardConfig, SymlinkPolicy,
};
use codeagent_namespace::Limits;
use codeagent_network::Rule;
use codeagent_vm::{Accelerator, Backend};
use serde::{Deserialize, Serialize};

use super::view::ViewSetting;
use crate::classify::Lists;
use crate::executor::IsolationChoice;
use crate::policy::{PathRules, Pattern};

/// So many working directories one session can have.
pub const MAX_FOLDERS: usize = 8;

#[derive(Debug, Clone)]
pub struct SessionOptions {
    /// One to eight; commands begin in the first.
    pub folders: Vec<FolderOptions>,
    pub isolation: IsolationChoice,
    pub view: ViewSetting,
    pub network: NetworkChoice,
    /// What can be reached with [`NetworkChoice::Allowlist`].
    pub allow_hosts: Vec<Rule>,
    /// The home and the `/tmp` of commands, and the disk of a guest, are kept for the next session.
    pub persistent: bool,
    pub vm: VmOptions,
    /// Where they are kept; a place is found if none is given.
    pub state_dir: Option<PathBuf>,
    pub command_limits: Limits,
    /// Commands may make user namespaces of their own.
    pub nested_namespaces: bool,
    /// Directories of the home in which tools live, beside the usual ones.
    pub toolchains: Vec<PathBuf>,
    /// Further paths of the host that commands can read.
    pub readable: Vec<PathBuf>,
    pub limits: ResourceLimits,
    pub safeguards: SafeguardConfig,
    pub rules: PathRules,
    pub external_modifications: ExternalModificationPolicy,
    pub symlinks: SymlinkPolicy,
    /// The coding agent that frontends can give something to do; the prompt is its last argument.
    pub agent: Option<Vec<String>>,
    /// What command lines are taken for, in events.
    pub lists: Lists,
    /// Survive power loss, at a price.
    pub durable: bool,
    /// Leave paths that `.gitignore` names out of undo.
    pub gitignore: bool,
    pub watch: WatchOptions,
    /// If another session holds a folder, work through its worker.
    pub share: bool,
    /// A program whose `main` begins with [`run_if_asked`](crate::run_if_asked); this one, if not
    /// given.
    pub program: Option<PathBuf>,
}

/// More than builds and browsers have at once, threads included, and few enough for a machine to bear
/// a command that does nothing but start more.
const MAX_PROCESSES: u64 = 4096;

impl SessionOptions {
    pub fn new(folders: Vec<FolderOptions>) -> Self {
        Self {
            folders,
            isolation: IsolationChoice::Auto,
            view: ViewSetting::Auto,
            network: NetworkChoice::Open,
            allow_hosts: Vec::new(),
            persistent: true,
            vm: VmOptions::default(),
            state_dir: None,
            command_limits: Limits { processes: Some(MAX_PROCESSES), ..Limits::default() },
            nested_namespaces: false,
            toolchains: Vec::new(),
            readable: Vec::new(),
            limits: ResourceLimits::default(),
            safeguards: SafeguardConfig::default(),
            rules: PathRules::default(),
            external_modifications: ExternalModificationPolicy::default(),
            symlinks: SymlinkPolicy::default(),
            agent: None,
            lists: Lists::default(),
            durable: false,
            gitignore: false,
            watch: WatchOptions::default(),
            share: false,
            program: None,
        }
    }
}

/// What a guest is to be.
#[derive(Debug, Clone)]
pub struct VmOptions {
    /// The directory of its image; the best of those that were built, if none is given.
    pub image: Option<PathBuf>,
    /// The program; the one in `PATH`, if none is given.
    pub qemu: Option<PathBuf>,
    /// The best that works, if none is given.
    pub accelerator: Option<Accelerator>,
    /// What carries the folders.
    pub backend: Backend,
    pub memory_mib: u32,
    pub cpus: u32,
    pub boot_deadline: Duration,
}

impl Default for VmOptions {
    fn default() -> Self {
        Self {
            image: None,
            qemu: None,
            accelerator: None,
            backend: Backend::default(),
            memory_mib: 2048,
            cpus: 2,
            boot_deadline: Duration::from_secs(60),
        }
    }
}

/// How other people's edits are reported as they happen. Undo finds them in any case.
#[derive(Debug, Clone)]
pub struct WatchOptions {
    pub enabled: bool,
    /// They are reported when there have been none for this long.
    pub quiet: Duration,
    /// Patterns of paths that are not reported.
    pub exclude: Vec<Pattern>,
}

impl Default for WatchOptions {
    fn default() -> Self {
        let usual = [".git/objects/", ".git/logs/", ".git/refs/", "node_modules/"];
        let exclude = usual.into_iter().filter_map(|text| Pattern::new(text).ok()).collect();
        Self { enabled: true, quiet: Duration::from_millis(150), exclude }
    }
}

/// A working directory.
#[derive(Debug, Clone)]
pub struct FolderOptions {
    pub path: PathBuf,
    /// Where its history is kept; a place is found if none is given.
    pub undo_dir: Option<PathBuf>,
    /// What it is called in answers; the last part of its path if not given.
    pub label: Option<String>,
    pub access: Access,
}

impl FolderOptions {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), undo_dir: None, label: None, access: Access::ReadWrite }
    }
}

/// A working directory of a session that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FolderInfo {
    pub label: String,
    /// Canonical.
    pub path: PathBuf,
    pub access: Access,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    #[default]
    ReadWrite,
    /// Refused by the filesystem that commands see, and by the engine.
    ReadOnly,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "snake_case")]
pub enum NetworkChoice {
    /// The network of this machine and its own services, which a guest has at 10.0.2.2
    #[default]
    Open,
    /// What --allow-host and the configuration name, through a proxy
    Allowlist,
    /// Nothing but a loopback interface of its own
    Disabled,
}
