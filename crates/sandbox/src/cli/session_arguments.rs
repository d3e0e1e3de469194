//! What every command that starts a session can be told.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use codeagent_network::Rule;
use codeagent_vm::Backend;
use rustix::fs::access;
use rustix::io::Errno;

use super::ask::AskOnTerminal;
use super::output::notice;
use super::text;
use crate::error::{Result, SandboxError};
use crate::executor::{Isolation, IsolationChoice};
use crate::policy::{BadPattern, Pattern};
use crate::session::{
    Access, FolderInfo, FolderOptions, NetworkChoice, Session, SessionOptions, ViewSetting,
};
use crate::{config, places};

#[derive(Debug, Clone, Args)]
pub(crate) struct SessionArguments {
    /// A folder to work in, as PATH or NAME=PATH; up to eight, the first is where commands begin.
    /// If not given: the nearest folder from here upwards that has a history, else this one
    #[arg(long, value_name = "DIR")]
    pub(crate) working_dir: Vec<PathBuf>,
    /// A folder that commands can see and not change, likewise
    #[arg(long, value_name = "DIR")]
    pub(crate) read_only: Vec<PathBuf>,
    /// Where undo data of the first folder is kept; on its filesystem, outside it
    #[arg(long, value_name = "DIR")]
    pub(crate) undo_dir: Option<PathBuf>,
    /// What stands between commands and this machine
    #[arg(long, value_enum)]
    pub(crate) isolation: Option<IsolationChoice>,
    /// What carries the folders to a guest
    #[arg(long, value_enum)]
    pub(crate) backend: Option<BackendArgument>,
    /// How commands see the folders
    #[arg(long, value_enum)]
    pub(crate) view: Option<ViewSetting>,
    /// What commands can reach
    #[arg(long, value_enum)]
    pub(crate) network: Option<NetworkChoice>,
    /// What commands can reach with --network allowlist, which this implies: an address, a network
    /// or a name, as 10.1.2.3, 10.0.0.0/8, example.org:443 or *.example.org
    #[arg(long, value_name = "HOST")]
    pub(crate) allow_host: Vec<Rule>,
    /// Forget the home and the /tmp of commands afterwards
    #[arg(long)]
    pub(crate) ephemeral: bool,
    /// Let commands change a protected path, as .envrc or .git/hooks/*
    #[arg(long, value_name = "PATTERN")]
    pub(crate) allow_path: Vec<String>,
    /// The configuration to use in place of the user's
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum BackendArgument {
    /// A device in the memory of the guest
    Virtiofs,
    /// 9P over a serial device, as on hosts that cannot share memory with QEMU; slower
    #[value(name = "9p")]
    NineP,
}

impl From<BackendArgument> for Backend {
    fn from(backend: BackendArgument) -> Self {
        match backend {
            BackendArgument::Virtiofs => Self::Virtiofs,
            BackendArgument::NineP => Self::NineP,
        }
    }
}

impl SessionArguments {
    /// A session as the configuration, then the command line, then the project want it.
    pub(crate) fn session(&self) -> Result<Arc<Session>> {
        let mut options = self.options()?;
        options.folders.iter().try_for_each(must_be_readable)?;
        if let Some(folder) = self.folder_above(&options) {
            notice(&text::folder_above(folder));
        }
        // For one command nobody listens.
        options.watch.enabled = false;
        for line in config::tighten_for_projects(&mut options)? {
            notice(&line);
        }
        let session = Session::new(options)?;
        session.set_asker(Arc::new(AskOnTerminal));
        Ok(session)
    }

    pub(crate) fn options(&self) -> Result<SessionOptions> {
        let mut folders: Vec<FolderOptions> =
            self.working_dir.iter().map(|path| folder(path, Access::ReadWrite)).collect();
        let read_only: Vec<FolderOptions> =
            self.read_only.iter().map(|path| folder(path, Access::ReadOnly)).collect();
        if folders.is_empty() {
            let here = here()?;
            // Who has said that the current folder is only to be looked at means no other.
            let is_named =
                |named: &FolderOptions| named.path.canonicalize().ok() == Some(here.clone());
            if !read_only.iter().any(is_named) {
                folders.push(FolderOptions::new(here));
            }
        }
        folders.extend(read_only);
        folders[0].undo_dir.clone_from(&self.undo_dir);
        let mut options = SessionOptions::new(folders);
        config::of_user(self.config.as_deref())?.apply(&mut options);
        options.share = true;
        options.isolation = self.isolation.unwrap_or(options.isolation);
        options.vm.backend = self.backend.map_or(options.vm.backend, Backend::from);
        options.view = self.view.unwrap_or(options.view);
        options.network = match self.network {
            Some(network) => network,
            None if !self.allow_host.is_empty() => NetworkChoice::Allowlist,
            None => options.network,
        };
        options.allow_hosts.extend(self.allow_host.iter().cloned());
        options.persistent &= !self.ephemeral;
        for pattern in &self.allow_path {
            let bad = |error: BadPattern| {
                SandboxError::usage(
                    error.to_string(),
                    "write it as .envrc, .git/hooks/*, or .husky/",
                )
            };
            Pattern::new(pattern).map_err(bad)?;
            options.rules.allow.push(pattern.clone());
        }
        Ok(options)
    }

    /// The folder, if nobody has named it and it is not the current one.
    pub(crate) fn folder_above<'o>(&self, options: &'o SessionOptions) -> Option<&'o Path> {
        let is_found = |folder: &&FolderOptions| {
            self.working_dir.is_empty() && folder.access == Access::ReadWrite
        };
        let folder = options.folders.first().filter(is_found)?;
        let current = places::canonical(Path::new(".")).ok()?;
        (folder.path != current).then_some(&folder.path)
    }

    /// In a guest and on the host there is only the live view. Says so to whoever named the
    /// transactional one; to whoever named the read-only one, commands are refused.
    pub(crate) fn tell_of_view(&self, session: &Session) -> Result<()> {
        if self.view != Some(ViewSetting::Transactional) {
            return Ok(());
        }
        if let Some(isolation @ (Isolation::Vm | Isolation::Host)) = session.status()?.isolation {
            notice(&format!(
                "changes are seen as they happen, because {isolation} isolation has no \
                 transactional view"
            ));
        }
        Ok(())
    }

    /// How the folders of the session are named to other commands.
    pub(crate) fn names_in(&self, session: &Session) -> Result<Names> {
        let named = |(nth, folder): (usize, FolderInfo)| {
            let name = match &self.undo_dir {
                Some(dir) if nth == 0 => format!(" --undo-dir {}", text::quoted(dir)),
                _ if is_here(&folder.path) => String::new(),
                _ => format!(" --working-dir {}", text::quoted(&folder.path)),
            };
            Named { label: folder.label, name, path: folder.path }
        };
        Ok(Names(session.folders()?.into_iter().enumerate().map(named).collect()))
    }
}

/// What other commands have to be told so that they find the folder with a label.
#[derive(Debug)]
pub(crate) struct Names(Vec<Named>);

#[derive(Debug)]
struct Named {
    label: String,
    /// Flags.
    name: String,
    path: PathBuf,
}

impl Names {
    pub(crate) fn of(&self, label: &str) -> &str {
        self.find(label).map_or("", |named| &named.name)
    }

    pub(crate) fn folder(&self, label: &str) -> &Path {
        self.find(label).map_or(Path::new(""), |named| &named.path)
    }

    fn find(&self, label: &str) -> Option<&Named> {
        self.0.iter().find(|named| named.label == label)
    }
}

fn is_here(dir: &Path) -> bool {
    match (dir.canonicalize(), here()) {
        (Ok(there), Ok(here)) => there == here,
        _ => false,
    }
}

/// Before anything else stumbles over it. Who may only look can still have commands look.
fn must_be_readable(folder: &FolderOptions) -> Result<()> {
    if std::fs::metadata(&folder.path).is_ok_and(|found| !found.is_dir()) {
        return Ok(()); // which is said when it is opened
    }
    match access(&folder.path, rustix::fs::Access::READ_OK | rustix::fs::Access::EXEC_OK) {
        Err(Errno::ACCESS) => {
            let source = Errno::ACCESS.into();
            Err(SandboxError::WorkingDir { path: folder.path.clone(), source })
        }
        _ => Ok(()),
    }
}

/// The folder that is meant if none is named.
fn here() -> Result<PathBuf> {
    let start = places::canonical(Path::new("."))?;
    Ok(places::nearest_with_history(&start).map_or(start, |(folder, _)| folder))
}

/// `PATH`, or `NAME=PATH` where there is no directory with that very name.
fn folder(argument: &Path, access: Access) -> FolderOptions {
    let named = argument.to_str().filter(|_| !argument.is_dir()).and_then(|text| {
        let (name, path) = text.split_once('=')?;
        (!name.is_empty() && !name.contains('/')).then(|| (name.to_owned(), PathBuf::from(path)))
    });
    let (label, path) = match named {
        Some((name, path)) => (Some(name), path),
        None => (None, argument.to_owned()),
    };
    FolderOptions { label, access, ..FolderOptions::new(path) }
}
