//! Reading and writing other people's configuration files so that nothing is lost.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use super::NAME;
use crate::error::{Result, SandboxError};

/// The file itself, where it is a link: people keep such files elsewhere, and link to them.
pub(super) fn resolve(file: &Path) -> Result<PathBuf> {
    match fs::canonicalize(file) {
        Ok(resolved) => Ok(resolved),
        Err(_) if fs::symlink_metadata(file).is_ok_and(|found| found.is_symlink()) => Err(refused(
            file,
            "it is a link that leads nowhere",
            "make the file that it leads to, or remove the link; nothing was changed",
        )),
        Err(_) => Ok(file.into()),
    }
}

/// What is in a file that is about to be changed; `None` if there is none.
pub(super) fn read(file: &Path) -> Result<Option<String>> {
    let cannot = || SandboxError::doing(format!("cannot read {}", file.display()));
    let found = match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        found => found.map_err(cannot())?,
    };
    if !found.is_file() {
        let hint = "move it away, then try again; nothing was changed";
        return Err(refused(file, "it is no file", hint));
    }
    let bytes = fs::read(file).map_err(cannot())?;
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|_| unreadable(file, "it is not UTF-8"))
}

/// A file that its owner has locked would be replaced all the same, because a rename asks only the
/// directory.
pub(super) fn must_be_writable(file: &Path) -> Result<()> {
    let is_locked = |found: fs::Metadata| found.permissions().readonly();
    if fs::metadata(file).is_ok_and(is_locked) || access(file, Access::WRITE_OK).is_err() {
        let hint = "make it writable, then try again; nothing was changed in it";
        return Err(refused(file, "it is read-only", hint));
    }
    Ok(())
}

pub(super) fn unreadable(file: &Path, reason: &str) -> SandboxError {
    let reason = reason.lines().next().unwrap_or_default();
    let hint = "put it right by hand, then try again; nothing was changed in it";
    refused(file, &format!("it cannot be understood: {reason}"), hint)
}

pub(super) fn refused(file: &Path, message: &str, hint: &str) -> SandboxError {
    SandboxError::Config {
        file: file.into(),
        line: None,
        message: message.into(),
        hint: hint.into(),
    }
}

/// A name beside the file that nothing has: one that is there may be all that is left of it.
pub(super) fn free_backup_name(file: &Path) -> PathBuf {
    let numbered = |number: u32| with_suffix(file, &format!(".before-{NAME}-{number}"));
    let mut names = (0..).map(numbered);
    let is_free = |name: &PathBuf| fs::symlink_metadata(name).is_err();
    names.find(is_free).unwrap_or_else(|| numbered(u32::MAX))
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// All of it or nothing, with the permissions and the owner of `like` if that exists.
pub(super) fn replace(file: &Path, text: &str, like: &Path) -> io::Result<()> {
    if let Some(parent) = file.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let like = fs::metadata(like).ok();
    let mode = like.as_ref().map_or(0o600, |found| found.mode() & 0o777);
    let new = with_suffix(file, &format!(".new-{}", std::process::id()));
    let mut target = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
    if let Some(like) = like {
        // Only root can, and only root has to.
        let _ = fchown(&target, Some(like.uid()), Some(like.gid()));
    }
    let written = target
        .write_all(text.as_bytes())
        .and_then(|()| target.set_permissions(fs::Permissions::from_mode(mode)))
        .and_then(|()| target.sync_all())
        .and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        let _ = fs::remove_file(&new); // nothing is worse than half of it
    }
    written
}

/// `Ok` also if it is gone already.
pub(super) fn remove(file: &Path) -> io::Result<()> {
    match fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}
