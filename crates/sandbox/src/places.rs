//! Where things are kept, found again from the working directory alone.
//!
//! The undo directory has to lie on the filesystem of the working directory, so that what is
//! removed is moved there and not copied, and outside it. It is
//!
//! 1. `undo/NAME-HASH` in our own directory (`$CODEAGENT_HOME`, else `~/.codeagent`), where that
//!    is on the same filesystem and not inside the working directory;
//! 2. `.codeagent-undo-NAME-HASH` beside the working directory otherwise.
//!
//! NAME is the last part of the working directory's path, HASH is of the whole path; a number
//! follows if another folder had the path before. One that exists already is used, wherever it is:
//! a folder that is moved keeps its history, and one that takes its place does not inherit it.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use codeagent_interceptor::{Belonging, belonging, is_empty, working_dir_of};
use codeagent_worker::Client;
use xxhash_rust::xxh3::xxh3_64;

use crate::error::{Result, SandboxError};

/// Long enough to recognise a folder by.
const MAX_NAME_BYTES: usize = 40;

/// How the names of undo directories beside their folders begin.
const SIBLING: &str = ".codeagent-undo-";

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

/// The images of guests.
pub fn images_dir() -> Option<PathBuf> {
    Some(own_dir()?.join("guests"))
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
        .and_then(free)
        .ok_or_else(|| SandboxError::NoPlace { working_dir: working_dir.into() })
}

/// The path itself, or with a number behind it.
fn free(path: PathBuf) -> Option<PathBuf> {
    let numbered = |n: u32| {
        let mut numbered = path.clone().into_os_string();
        numbered.push(format!("-{n}"));
        PathBuf::from(numbered)
    };
    let is_free = |path: &PathBuf| path.symlink_metadata().is_err();
    std::iter::once(path.clone()).chain((2..).map(numbered)).find(is_free)
}

/// The history of another folder that had this path before.
pub fn history_of_namesake(working_dir: &Path) -> Option<PathBuf> {
    let is_namesakes =
        |path: &PathBuf| matches!(belonging(path, working_dir), Ok(Some(Belonging::Namesake)));
    candidates(working_dir).into_iter().flatten().filter(is_our_dir).find(is_namesakes)
}

/// Makes the directories above it, for their owner only.
pub fn make_parent(undo_dir: &Path) -> io::Result<()> {
    match undo_dir.parent() {
        Some(parent) => std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent),
        None => Ok(()),
    }
}

/// The nearest folder, from here upwards, that has a history. Above, one in which nothing was ever
/// changed does not count, unless somebody works there now: who once looked around in the home
/// does not mean all of it ever after.
pub fn nearest_with_history(start: &Path) -> Option<(PathBuf, PathBuf)> {
    let found = |dir: &Path| {
        let undo_dir = existing_undo_dir(dir)?;
        let counts = dir == start || !is_empty(&undo_dir).unwrap_or(false) || is_held(&undo_dir);
        counts.then(|| (dir.to_owned(), undo_dir))
    };
    start.ancestors().find_map(found)
}

fn is_held(undo_dir: &Path) -> bool {
    Client::connect(undo_dir).is_ok()
}

/// Refuses what lies among histories: changes of it would be changes of what undo needs.
pub fn must_not_be_ours(working_dir: &Path) -> Result<()> {
    let own = own_dir().and_then(|own| own.canonicalize().ok());
    let is_ours = own.is_some_and(|own| working_dir.starts_with(own))
        || working_dir.ancestors().any(|dir| matches!(working_dir_of(dir), Ok(Some(_))));
    match is_ours {
        true => Err(SandboxError::AmongHistories(working_dir.into())),
        false => Ok(()),
    }
}

/// Where a path that may not exist yet would lead, symlinks on the way resolved.
pub fn planned(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    let there = path.ancestors().find_map(|there| Some((there, there.canonicalize().ok()?)));
    let Some((there, real)) = there else { return Ok(path) };
    Ok(match path.strip_prefix(there) {
        Ok(rest) if rest.as_os_str().is_empty() => real,
        Ok(rest) => real.join(rest),
        Err(_) => path,
    })
}

fn existing_undo_dir(working_dir: &Path) -> Option<PathBuf> {
    // One that cannot be read is found by its name, so that this is said.
    let by_name = |path: &PathBuf| {
        matches!(belonging(path, working_dir), Ok(None | Some(Belonging::Own)) | Err(_))
    };
    let moved = |path: &PathBuf| matches!(belonging(path, working_dir), Ok(Some(Belonging::Own)));
    let named = candidates(working_dir).into_iter().flatten();
    named
        .filter(is_our_dir)
        .find(by_name)
        .or_else(|| histories_around(working_dir).filter(is_our_dir).find(moved))
}

/// Somebody else's directory beside ours is none of ours.
fn is_our_dir(path: &PathBuf) -> bool {
    let user = rustix::process::geteuid();
    std::fs::symlink_metadata(path)
        .is_ok_and(|there| there.is_dir() && there.uid() == user.as_raw())
}

/// Where the history of a folder may be that had another path.
fn histories_around(working_dir: &Path) -> impl Iterator<Item = PathBuf> {
    let list = |dir: PathBuf| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let own = own_dir().map(|own| own.join("undo")).into_iter().flat_map(list);
    let beside = working_dir.parent().map(Path::to_owned).into_iter().flat_map(list);
    let beside =
        beside.filter(|entry| entry.file_name().as_bytes().starts_with(SIBLING.as_bytes()));
    own.chain(beside).map(|entry| entry.path())
}

fn candidates(working_dir: &Path) -> [Option<PathBuf>; 2] {
    let name = name_of(working_dir);
    let own = own_dir().map(|own| own.join("undo").join(&name));
    let sibling = working_dir.parent().map(|parent| parent.join(format!("{SIBLING}{name}")));
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
