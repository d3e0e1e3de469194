//! `codeagent.toml`: the user's decides, a project's can only make things stricter.

mod file;
mod tighten;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Result, SandboxError};
use crate::places;
use crate::session::{Access, SessionOptions};
pub use file::FileConfig;

/// What a file is called, wherever it is.
pub const NAME: &str = "codeagent.toml";

/// Anything larger is no configuration.
const MAX_BYTES: u64 = 1 << 20;

/// The user's configuration: the file that is named, or the one in its usual place if there is one.
pub fn of_user(named: Option<&Path>) -> Result<FileConfig> {
    let usual = places::user_config();
    let file = match (named, &usual) {
        (Some(named), _) => named,
        (None, Some(usual)) if usual.exists() => usual,
        (None, _) => return Ok(FileConfig::default()),
    };
    let text = fs::read_to_string(file).map_err(|error| unreadable(file, &error))?;
    FileConfig::parse(&text, file)
}

/// Makes the options as strict as the projects in their folders want them. Comes back with what
/// was ignored, because it would have made them less strict.
pub fn tighten_for_projects(options: &mut SessionOptions) -> Result<Vec<String>> {
    let mut ignored = Vec::new();
    let folders: Vec<PathBuf> = options
        .folders
        .iter()
        .filter(|folder| folder.access == Access::ReadWrite)
        .map(|folder| folder.path.join(NAME))
        .collect();
    for file in folders {
        let Some(text) = read_of_project(&file)? else { continue };
        let config = FileConfig::parse(&text, &file)?;
        for what in tighten::tighten(options, config) {
            ignored.push(format!(
                "{what} in {} is ignored: a project can only make things stricter",
                file.display()
            ));
        }
    }
    Ok(ignored)
}

/// Whoever wrote the project may have put anything there.
fn read_of_project(file: &Path) -> Result<Option<String>> {
    let found = match fs::symlink_metadata(file) {
        // Whether the folder itself is one is found out when it is opened.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(None);
        }
        found => found.map_err(|error| unreadable(file, &error))?,
    };
    if !found.is_file() || found.len() > MAX_BYTES {
        let error = io::Error::other("it is no file of a sensible size");
        return Err(unreadable(file, &error));
    }
    fs::read_to_string(file).map(Some).map_err(|error| unreadable(file, &error))
}

fn unreadable(file: &Path, error: &io::Error) -> SandboxError {
    SandboxError::Config {
        file: file.into(),
        line: None,
        message: format!("it cannot be read: {error}"),
        hint: "make it a file that you may read, or remove it".into(),
    }
}

impl FileConfig {
    pub fn parse(text: &str, file: &Path) -> Result<Self> {
        toml::from_str(text).map_err(|error| {
            let above = |start| text.get(..start).unwrap_or(text).matches('\n').count();
            let line = error.span().map(|span| above(span.start) + 1);
            let message = error.message().lines().next().unwrap_or_default().to_owned();
            SandboxError::Config {
                file: file.into(),
                line,
                message,
                hint: "docs/configuration.md lists what can be set".into(),
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
