//! What every command that starts a session can be told.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use codeagent_namespace::View;

use super::ask::AskOnTerminal;
use super::output::notice;
use crate::error::{Result, SandboxError};
use crate::executor::IsolationChoice;
use crate::policy::{BadPattern, Pattern};
use crate::session::{Access, FolderOptions, NetworkChoice, Session, SessionOptions};
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
    /// When changes reach the folders
    #[arg(long, value_enum)]
    pub(crate) view: Option<ViewArgument>,
    /// What commands can reach
    #[arg(long, value_enum)]
    pub(crate) network: Option<NetworkChoice>,
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
pub(crate) enum ViewArgument {
    /// When the command has ended, all at once; if it fails to, none of them
    Transactional,
    /// As they happen
    Live,
}

impl From<ViewArgument> for View {
    fn from(view: ViewArgument) -> Self {
        match view {
            ViewArgument::Transactional => Self::Transactional,
            ViewArgument::Live => Self::Live,
        }
    }
}

impl SessionArguments {
    /// A session as the configuration, then the command line, then the project want it.
    pub(crate) fn session(&self) -> Result<Arc<Session>> {
        let mut options = self.options()?;
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
        if folders.is_empty() {
            folders.push(FolderOptions::new(here()?));
        }
        folders[0].undo_dir.clone_from(&self.undo_dir);
        folders.extend(self.read_only.iter().map(|path| folder(path, Access::ReadOnly)));
        let mut options = SessionOptions::new(folders);
        config::of_user(self.config.as_deref())?.apply(&mut options);
        options.share = true;
        options.isolation = self.isolation.unwrap_or(options.isolation);
        options.view = self.view.map_or(options.view, View::from);
        options.network = self.network.unwrap_or(options.network);
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

    /// How this folder is named to other commands.
    pub(crate) fn same_folder(&self) -> String {
        let quoted = |path: &Path| text_of(path);
        match (&self.undo_dir, self.working_dir.first()) {
            (Some(dir), _) => format!(" --undo-dir {}", quoted(dir)),
            (None, Some(dir)) if !is_here(dir) => format!(" --working-dir {}", quoted(dir)),
            (None, _) => String::new(),
        }
    }
}

/// For a shell.
fn text_of(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "/._-+:@%".contains(c);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

fn is_here(dir: &Path) -> bool {
    match (dir.canonicalize(), here()) {
        (Ok(there), Ok(here)) => there == here,
        _ => false,
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
