//! Entering the server in agent clients, and taking it out again.
//!
//! Where a client has a command of its own for it, that is used. Otherwise its file is changed:
//! what was in it is kept beside it first, and everything else in it stays as it is. What is about
//! to be done is noted, so that removal gives the file back as it was, or takes out only what was
//! entered if somebody else has changed it since. A server of somebody else that has our name is
//! neither replaced nor removed.

mod clients;
mod document;
mod files;

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use xxhash_rust::xxh3::xxh3_64;

pub use clients::{Client, Dirs, Launch, NAME};
use clients::{FileEdits, OwnCommand, is_our_server};
use document::{Format, Inverse};
use files::{replace, unreadable};

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
    /// Directories that were made for it, innermost first.
    #[serde(default)]
    made_dirs: Vec<PathBuf>,
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
        let registration = client.registration(&self.dirs, &self.launch);
        let found = self.must_not_be_foreign(&registration)?;
        if self.notes_of(client)?.is_some() {
            self.remove(client)?;
        }
        let mut notes = Notes::default();
        match client.own_command(&self.launch).filter(|own| is_installed(own.program)) {
            Some(own) => {
                if found.is_some() {
                    // Ours, and in the way. If it has just been removed, there is nothing to do.
                    let _ = run(&own, &own.remove);
                }
                run(&own, &own.add)?;
                notes.by_command = true;
                self.save_notes(client, &notes)?;
                done.lines.push(format!("entered with: {} {}", own.program, own.add.join(" ")));
            }
            None => self.change(client, &registration, &mut notes, &mut done)?,
        }
        if without_own_tools && let Some(edits) = client.without_own_tools(&self.dirs) {
            self.change(client, &edits, &mut notes, &mut done)?;
        }
        done.remarks.extend(client.remark(without_own_tools).map(Into::into));
        Ok(done)
    }

    pub fn remove(&self, client: Client) -> Result<Done> {
        let mut done = Done::default();
        let Some(notes) = self.notes_of(client)? else {
            let message = match client.is_of_project() {
                true => format!("it was not entered in {} for this folder", client.id()),
                false => format!("it was not entered in {}", client.id()),
            };
            return Err(SandboxError::usage(message, "it is entered without --remove"));
        };
        if notes.by_command
            && let Some(own) = client.own_command(&self.launch)
        {
            let registration = client.registration(&self.dirs, &self.launch);
            done.lines.push(remove_with(&own, &registration)?);
        }
        for note in notes.files.iter().rev() {
            done.lines.extend(take_back(note)?);
        }
        let file = self.notes_file(client);
        fs::remove_file(&file)
            .map_err(SandboxError::doing(format!("cannot remove {}", file.display())))?;
        Ok(done)
    }

    /// What has our name in the client's file, if that is ours.
    fn must_not_be_foreign(&self, registration: &FileEdits) -> Result<Option<Value>> {
        let found = entry_in(registration)?;
        if found.as_ref().is_some_and(|entry| !is_our_server(entry)) {
            return Err(files::refused(
                &registration.file,
                &format!("another server is called \"{NAME}\" in it"),
                "give that one another name, or remove it; nothing was changed",
            ));
        }
        Ok(found)
    }

    fn change(
        &self,
        client: Client,
        edits: &FileEdits,
        notes: &mut Notes,
        done: &mut Done,
    ) -> Result<()> {
        let file = files::resolve(&edits.file)?;
        let doing = |what: &str| SandboxError::doing(format!("cannot {what} {}", file.display()));
        let former = files::read(&file)?;
        let text = former.as_deref().unwrap_or_default();
        let changed = document::apply(edits.format, text, &edits.edits);
        let (written, inverses) = changed.map_err(|reason| unreadable(&file, &reason))?;
        let backup = match &former {
            None => None,
            Some(former) => {
                files::must_be_writable(&file)?;
                let backup = files::free_backup_name(&file);
                replace(&backup, former, &file).map_err(doing("keep a copy of"))?;
                Some(backup)
            }
        };
        done.lines.push(match &backup {
            Some(backup) => format!("changed {}; as it was: {}", file.display(), backup.display()),
            None => format!("made {}", file.display()),
        });
        let (path, text) = (file.clone(), written.clone());
        let missing = file.ancestors().skip(1).take_while(|dir| !dir.exists());
        let made_dirs = missing.map(Path::to_owned).collect();
        let format = edits.format;
        notes.files.push(FileNote { file, format, backup, written, inverses, made_dirs });
        // First: whatever happens now, what is to be taken back is known.
        self.save_notes(client, notes)?;
        let cannot = SandboxError::doing(format!("cannot write {}", path.display()));
        replace(&path, &text, &path).map_err(cannot)
    }

    fn notes_file(&self, client: Client) -> PathBuf {
        let name = match client.is_of_project() {
            true => {
                let project = self.dirs.project.as_os_str().as_bytes();
                format!("{}-{:016x}", client.id(), xxh3_64(project))
            }
            false => client.id().to_owned(),
        };
        self.notes_dir.join(format!("{name}.json"))
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

/// What the client's file has where its server is entered.
fn entry_in(registration: &FileEdits) -> Result<Option<Value>> {
    let file = files::resolve(&registration.file)?;
    let Some(text) = files::read(&file)? else { return Ok(None) };
    let Some(at) = registration.edits.first().map(document::Edit::at) else { return Ok(None) };
    document::value_at(registration.format, &text, at).map_err(|reason| unreadable(&file, &reason))
}

/// Has the client remove the server, if that is still ours.
fn remove_with(own: &OwnCommand, registration: &FileEdits) -> Result<String> {
    let shown = registration.file.display();
    if entry_in(registration)?.is_some_and(|entry| !is_our_server(&entry)) {
        return Ok(format!("left {shown} alone: its server \"{NAME}\" is somebody else's now"));
    }
    match run(own, &own.remove) {
        Ok(()) => Ok(format!("removed with: {} {}", own.program, own.remove.join(" "))),
        Err(_) if registration.file.exists() && entry_in(registration)?.is_none() => {
            Ok(format!("it is gone from {shown} already"))
        }
        Err(error) => Err(error),
    }
}

/// Exactly as it was, if nobody else has changed it; without our part of it otherwise.
fn take_back(note: &FileNote) -> Result<Vec<String>> {
    let file = &note.file;
    let shown = file.display();
    let doing = || SandboxError::doing(format!("cannot restore {shown}"));
    let former = match &note.backup {
        Some(backup) => fs::read_to_string(backup).ok(),
        None => None,
    };
    let mut said = Vec::new();
    match (files::read(file)?, former) {
        (None, _) => said.push(format!("{shown} is gone already")),
        // Interrupted, before it was changed or after it was restored.
        (Some(now), Some(former)) if now == former => said.push(format!("{shown} is as it was")),
        (Some(now), Some(former)) if now == note.written => {
            files::must_be_writable(file)?;
            replace(file, &former, file).map_err(doing())?;
            said.push(format!("restored {shown}"));
        }
        (Some(now), None) if now == note.written && note.backup.is_none() => {
            files::remove(file).map_err(doing())?;
            // What somebody else has put there stays.
            let _ = note.made_dirs.iter().try_for_each(fs::remove_dir);
            said.push(format!("removed {shown}"));
        }
        (Some(now), _) => {
            files::must_be_writable(file)?;
            let reverted = document::revert(note.format, &now, &note.inverses);
            let (text, kept) = reverted.map_err(|reason| unreadable(file, &reason))?;
            replace(file, &text, file).map_err(doing())?;
            said.push(format!(
                "took our part out of {shown}, which somebody else has changed since"
            ));
            let kept =
                kept.iter().map(|at| format!("left {at} in {shown}: it is not ours any more"));
            said.extend(kept);
        }
    }
    if let Some(backup) = &note.backup {
        files::remove(backup).map_err(doing())?;
    }
    Ok(said)
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
