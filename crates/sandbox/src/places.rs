//! Where things are kept, found again from the working directory alone.
//!
//! The undo directory has to lie on the filesystem of the working directory, so that what is
//! removed is moved there and not copied, and outside it. It is
//!
//! 1. `undo/NAME-HASH` in our own directory (`$CODEAGENT_HOME`, else `~/.codeagent`), where that
//!    is on the same filesystem and not inside the working directory;
//! 2. `.codeagent-undo-NAME-HASH` beside the working directory otherwise.
//!
//! NAME is the last part of the working directory's path, HASH is of the whole path. One that
//! exists already is used, whichever of the two it is.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Result, SandboxError};

/// Long enough to recognise a folder by.
const MAX_NAME_BYTES: usize = 40;

/// Our own directory; commands do not see it.
pub fn own_dir() -> Option<PathBuf> {
    match std::env::var_os("CODEAGENT_HOME") {
        Some(dir) if Path::new(&dir).is_absolute() => Some(dir.into()),
        _ => Some(home()?.join(".codeagent")),
    }
}

pub fn home() -> Option<PathBuf> {
    std::env::home_dir().filter(|home| home.is_absolute())
}

/// The user's `codeagent.toml`, whether it exists or not.
pub fn user_config() -> Option<PathBuf> {
    let dir = match std::env::var_os("XDG_CONFIG_HOME") {
        Some(dir) if Path::new(&dir).is_absolute() => PathBuf::from(dir),
        _ => home()?.join(".config"),
    };
    Some(dir.join("codeagent").join("codeagent.toml"))
}

/// What commands in this folder find as their home and `/tmp`.
pub fn surroundings_of(working_dir: &Path) -> Result<PathBuf> {
    let own = own_dir().ok_or(SandboxError::NoHome)?;
    Ok(own.join("sandboxes").join(name_of(working_dir)))
}

/// The working directory as everything else is called after it.
pub fn canonical(working_dir: &Path) -> Result<PathBuf> {
    let unusable = |source| SandboxError::WorkingDir { path: working_dir.into(), source };
    // A session that was killed can leave a mount over the folder that nobody serves.
    codeagent_mount::recover(working_dir).map_err(unusable)?;
    let path = working_dir.canonicalize().map_err(unusable)?;
    if !path.is_dir() {
        return Err(unusable(io::ErrorKind::NotADirectory.into()));
    }
    Ok(path)
}

/// Where the history of a folder is, or would be. The path has to be canonical.
pub fn undo_dir_of(working_dir: &Path) -> Result<PathBuf> {
    if let Some(found) = existing_undo_dir(working_dir) {
        return Ok(found);
    }
    let [own, sibling] = candidates(working_dir);
    let device = |path: &Path| nearest(path).map(|there| there.dev());
    let fits = |path: &PathBuf| {
        !path.starts_with(working_dir)
            && !working_dir.starts_with(path)
            && device(path).is_some_and(|there| device(working_dir) == Some(there))
    };
    own.filter(&fits)
        .or(sibling.filter(&fits))
        .ok_or_else(|| SandboxError::NoPlace { working_dir: working_dir.into() })
}

/// Makes the directories above it, for their owner only.
pub fn make_parent(undo_dir: &Path) -> io::Result<()> {
    match undo_dir.parent() {
        Some(parent) => std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent),
        None => Ok(()),
    }
}

/// The nearest folder, from here upwards, that has a history.
pub fn nearest_with_history(start: &Path) -> Option<(PathBuf, PathBuf)> {
    let found = |dir: &Path| Some((dir.to_owned(), existing_undo_dir(dir)?));
    start.ancestors().find_map(found)
}

fn existing_undo_dir(working_dir: &Path) -> Option<PathBuf> {
    let user = rustix::process::geteuid();
    // Somebody else's directory beside ours is none of ours.
    let is_ours = |path: &PathBuf| {
        std::fs::symlink_metadata(path)
            .is_ok_and(|there| there.is_dir() && there.uid() == user.as_raw())
    };
    candidates(working_dir).into_iter().flatten().find(is_ours)
}

fn candidates(working_dir: &Path) -> [Option<PathBuf>; 2] {
    let name = name_of(working_dir);
    let own = own_dir().map(|own| own.join("undo").join(&name));
    let sibling = working_dir.parent().map(|parent| parent.join(format!(".codeagent-undo-{name}")));
    [own, sibling]
}

/// Tells folders apart, and lets a person recognise them.
fn name_of(working_dir: &Path) -> String {
    let last = working_dir.file_name().unwrap_or(OsStr::new("root")).to_string_lossy();
    let plain: String = last
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' })
        .take(MAX_NAME_BYTES)
        .collect();
    format!("{plain}-{:016x}", xxh3_64(working_dir.as_os_str().as_bytes()))
}

/// What is there of a path that may not exist yet.
fn nearest(path: &Path) -> Option<std::fs::Metadata> {
    path.ancestors().find_map(|path| std::fs::metadata(path).ok())
}
