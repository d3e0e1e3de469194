//! Entering the server in agent clients, and taking it out again.
//!
//! Where a client has a command of its own for it, that is used. Otherwise its file is changed:
//! what was in it is kept beside it first, and everything else in it stays as it is. What was done
//! is noted, so that removal gives the file back as it was, or takes out only what was entered if
//! somebody else has changed it since.

mod clients;
mod document;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};

pub use clients::{Client, Dirs, Launch, NAME};
use clients::{FileEdits, OwnCommand};
use document::{Format, Inverse};

use crate::error::{Result, SandboxError};

/// What was done, for people.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Done {
    pub lines: Vec<String>,
    /// What the person still has to do, or has to know.
    pub remarks: Vec<String>,
}

/// What has to be taken back.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Notes {
    /// The client's own command entered it.
    by_command: bool,
    /// In the order in which they were changed.
    files: Vec<FileNote>,
}

#[derive(Debug, Serialize, Deserialize)]
struct FileNote {
    file: PathBuf,
    format: Format,
    /// `None`: there was no file.
    backup: Option<PathBuf>,
    /// What was written then.
    written: String,
    inverses: Vec<Inverse>,
}

/// Where notes are kept, and what clients find.
#[derive(Debug, Clone)]
pub struct Setup {
    pub dirs: Dirs,
    pub notes_dir: PathBuf,
    pub launch: Launch,
}

impl Setup {
    pub fn enter(&self, client: Client, without_own_tools: bool) -> Result<Done> {
        let mut done = Done::default();
        if self.notes_of(client)?.is_some() {
            self.remove(client)?;
        }
        let mut notes = Notes::default();
        match client.own_command(&self.launch).filter(|own| is_installed(own.program)) {
            Some(own) => {
                // One that is left from elsewhere would be in the way.
                let _ = run(&own, &own.remove);
                run(&own, &own.add)?;
                notes.by_command = true;
                done.lines.push(format!("entered with: {} {}", own.program, own.add.join(" ")));
            }
            None => {
                let edits = client.registration(&self.dirs, &self.launch);
                self.change(client, &edits, &mut notes, &mut done)?;
            }
        }
        if without_own_tools && let Some(edits) = client.without_own_tools(&self.dirs) {
            self.change(client, &edits, &mut notes, &mut done)?;
        }
        self.save_notes(client, &notes)?;
        done.remarks.extend(client.remark(without_own_tools).map(Into::into));
        Ok(done)
    }

    pub fn remove(&self, client: Client) -> Result<Done> {
        let mut done = Done::default();
        let Some(notes) = self.notes_of(client)? else {
            let message = format!("it was not entered in {}", client.id());
            return Err(SandboxError::usage(message, "it is entered without --remove"));
        };
        if notes.by_command
            && let Some(own) = client.own_command(&self.launch)
        {
            run(&own, &own.remove)?;
            done.lines.push(format!("removed with: {} {}", own.program, own.remove.join(" ")));
        }
        for note in notes.files.iter().rev() {
            done.lines.push(take_back(note)?);
        }
        let file = self.notes_file(client);
        fs::remove_file(&file)
            .map_err(SandboxError::doing(format!("cannot remove {}", file.display())))?;
        Ok(done)
    }

    fn change(
        &self,
        client: Client,
        edits: &FileEdits,
        notes: &mut Notes,
        done: &mut Done,
    ) -> Result<()> {
        let file = resolve(&edits.file);
        let doing = |what: &str| SandboxError::doing(format!("cannot {what} {}", file.display()));
        let former = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            former => Some(former.map_err(doing("read"))?),
        };
        let text = former.as_deref().unwrap_or_default();
        let changed = document::apply(edits.format, text, &edits.edits);
        let (written, inverses) = changed.map_err(|reason| unreadable(&file, &reason))?;
        let backup = match &former {
            None => None,
            Some(former) => {
                let backup = with_suffix(&file, &format!(".before-{}-{}", NAME, notes.files.len()));
                replace(&backup, former, &file).map_err(doing("keep a copy of"))?;
                Some(backup)
            }
        };
        replace(&file, &written, &file).map_err(doing("write"))?;
        done.lines.push(match &backup {
            Some(backup) => format!("changed {}; as it was: {}", file.display(), backup.display()),
            None => format!("made {}", file.display()),
        });
        notes.files.push(FileNote { file, format: edits.format, backup, written, inverses });
        // At once: what was done must be known even if the next file cannot be changed.
        self.save_notes(client, notes)
    }

    fn notes_file(&self, client: Client) -> PathBuf {
        self.notes_dir.join(format!("{}.json", client.id()))
    }

    fn notes_of(&self, client: Client) -> Result<Option<Notes>> {
        let file = self.notes_file(client);
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text.map_err(SandboxError::doing(format!("cannot read {}", file.display())))?,
        };
        serde_json::from_str(&text).map(Some).map_err(|error| unreadable(&file, &error.to_string()))
    }

    fn save_notes(&self, client: Client, notes: &Notes) -> Result<()> {
        let file = self.notes_file(client);
        let text = serde_json::to_string_pretty(notes).map_err(io::Error::other)?;
        replace(&file, &text, &file)
            .map_err(SandboxError::doing(format!("cannot write {}", file.display())))
    }
}

/// Exactly as it was, if nobody else has changed it; without our part of it otherwise.
fn take_back(note: &FileNote) -> Result<String> {
    let file = &note.file;
    let shown = file.display();
    let doing = || SandboxError::doing(format!("cannot restore {shown}"));
    let now = match fs::read_to_string(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Ok(format!("{shown} is gone already"));
        }
        now => now.map_err(doing())?,
    };
    let is_as_written = now == note.written;
    let said = match (&note.backup, is_as_written) {
        (Some(backup), true) => {
            let former = fs::read_to_string(backup).map_err(doing())?;
            replace(file, &former, file).map_err(doing())?;
            format!("restored {shown}")
        }
        (None, true) => {
            fs::remove_file(file).map_err(doing())?;
            format!("removed {shown}")
        }
        (_, false) => {
            let reverted = document::revert(note.format, &now, &note.inverses);
            let text = reverted.map_err(|reason| unreadable(file, &reason))?;
            replace(file, &text, file).map_err(doing())?;
            format!("took our part out of {shown}, which somebody else has changed since")
        }
    };
    if let Some(backup) = &note.backup {
        fs::remove_file(backup).map_err(doing())?;
    }
    Ok(said)
}

fn unreadable(file: &Path, reason: &str) -> SandboxError {
    SandboxError::Config {
        file: file.into(),
        line: None,
        message: format!("it cannot be understood: {}", reason.lines().next().unwrap_or_default()),
        hint: "put it right by hand, then try again; nothing was changed in it".into(),
    }
}

/// People keep such files elsewhere, and link to them.
fn resolve(file: &Path) -> PathBuf {
    fs::canonicalize(file).unwrap_or_else(|_| file.into())
}

fn with_suffix(file: &Path, suffix: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// All of it or nothing, with the permissions of `like` if that exists.
fn replace(file: &Path, text: &str, like: &Path) -> io::Result<()> {
    if let Some(parent) = file.parent() {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(parent)?;
    }
    let mode = fs::metadata(like).map_or(0o600, |found| found.mode() & 0o777);
    let new = with_suffix(file, &format!(".new-{}", std::process::id()));
    let mut target = fs::OpenOptions::new().write(true).create_new(true).mode(mode).open(&new)?;
    let written = target
        .write_all(text.as_bytes())
        .and_then(|()| fs::set_permissions(&new, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&new, file));
    if written.is_err() {
        let _ = fs::remove_file(&new); // nothing is worse than half of it
    }
    written
}

fn is_installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

fn run(own: &OwnCommand, arguments: &[String]) -> Result<()> {
    let what = || format!("cannot run {}", own.program);
    let output =
        Command::new(own.program).args(arguments).output().map_err(SandboxError::doing(what()))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let said = said.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed").to_owned();
    Err(SandboxError::Doing {
        what: format!("{} {}", own.program, arguments.join(" ")),
        source: io::Error::other(said),
    })
}
