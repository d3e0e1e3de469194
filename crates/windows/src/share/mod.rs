//! A folder of Windows for a guest: what `codeagent-p9` serves on a Windows host.
//!
//! | file | what it holds |
//! |---|---|
//! | `places` | where each file that a guest knows is, by its last known name |
//! | `look` | what a file of the host looks like to a guest |
//! | `names` | what is made, linked, renamed and removed: asked for first, done by handle |
//! | `contents` | what changes in a file and of what is known of it: likewise |
//! | `listing` | what is kept of a directory while it is read |
//! | `serve` | the requests |
//!
//! No handle is kept but those of what a guest has open, because Windows renames no directory below
//! which something is open. What a guest knows is found again from the root, one name at a time,
//! each opened relative to the handle of the last, reparse points never passed through; and it must
//! still be the same file.

mod contents;
mod listing;
mod look;
mod names;
mod places;
mod serve;

use std::fs::File;
use std::io;
use std::os::windows::io::{AsHandle, BorrowedHandle};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use codeagent_common::ErrorCode;
use codeagent_interceptor::{FileId, OpenFile, UndoError, WriteInterceptor};
use codeagent_p9::{Errno, OpenFlags, Result};
use parking_lot::Mutex;
use windows_sys::Win32::Foundation::NTSTATUS;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_REPARSE_POINT, FILE_TRAVERSE,
};

use crate::default_mode;
use crate::errno;
use crate::host::{self, Facts, Kind, Root};
use crate::names::BadName;
use crate::overlay::{Overlay, OverlayError};
use crate::volume_path::VolumePath;
use listing::{Listing, Listings};
pub use places::Node;
use places::Places;

/// How a folder is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShareOptions {
    pub read_only: bool,
    /// Whose files are that nobody has given to somebody else.
    pub uid: u32,
    pub gid: u32,
}

impl Default for ShareOptions {
    fn default() -> Self {
        Self { read_only: false, uid: default_mode::OWNER, gid: default_mode::OWNER }
    }
}

/// A folder of this host, served so that every change is announced first.
#[derive(Debug)]
pub struct WindowsShare<I> {
    root: Root,
    overlay: Arc<Overlay>,
    interceptor: I,
    options: ShareOptions,
    places: Places,
    listings: Listings,
    /// Until the host has refused one.
    makes_links: AtomicBool,
}

/// A file or directory that a guest has open.
#[derive(Debug)]
pub struct Opened {
    file: File,
    id: FileId,
    flags: OpenFlags,
    /// Every write to it has to be judged.
    inspected: bool,
    /// What the directory held when the guest began to read it, until it has read all.
    listing: Mutex<Option<Listing>>,
}

impl OpenFile for Opened {
    fn id(&self) -> io::Result<FileId> {
        Ok(self.id)
    }

    fn file(&self) -> io::Result<BorrowedHandle<'_>> {
        Ok(self.file.as_handle())
    }
}

/// Something that was opened by its name, just now.
#[derive(Debug)]
struct Here {
    file: File,
    id: FileId,
    facts: Facts,
    /// As the host spells it: checked to be below the root, by handle.
    place: VolumePath,
}

impl Here {
    /// Neither a file nor a link nor anything else that pretends to be one.
    fn is_dir(&self) -> bool {
        let bits = FILE_ATTRIBUTE_DIRECTORY | FILE_ATTRIBUTE_REPARSE_POINT;
        self.facts.attributes & bits == FILE_ATTRIBUTE_DIRECTORY
    }
}

impl<I: WriteInterceptor + 'static> WindowsShare<I> {
    /// Serves the folder at `path`; `overlay` keeps what Windows cannot.
    pub fn open(
        path: &Path,
        overlay: Arc<Overlay>,
        interceptor: I,
        options: ShareOptions,
    ) -> io::Result<Self> {
        let root = Root::open(path)?;
        let (places, listings) = (Places::default(), Listings::default());
        let makes_links = AtomicBool::new(true);
        Ok(Self { root, overlay, interceptor, options, places, listings, makes_links })
    }

    /// Opens what a guest knows, if it still is where it was.
    fn at(&self, node: &Node, access: u32) -> Result<Here> {
        let here = self.walk(&node.place(), access)?;
        match here.id == node.id() {
            true => Ok(here),
            false => Err(Errno::ESTALE), // somebody else's name by now
        }
    }

    /// A directory that a guest knows.
    fn dir_at(&self, node: &Node, access: u32) -> Result<Here> {
        let here = self.at(node, access | FILE_TRAVERSE)?;
        if here.is_dir() { Ok(here) } else { Err(Errno::ENOTDIR) }
    }

    /// One name after the other, each from the handle of the last.
    fn walk(&self, place: &VolumePath, access: u32) -> Result<Here> {
        const BACKSLASH: u16 = b'\\' as u16;
        let Some((dirs, name)) = place.split() else {
            return self.here(host::open_in(self.root.dir(), &[], access, Kind::Any));
        };
        let mut dir: Option<File> = None;
        for step in dirs.split(|unit| *unit == BACKSLASH).filter(|step| !step.is_empty()) {
            let from = dir.as_ref().unwrap_or(self.root.dir());
            let next = host::open_in(from, step, FILE_TRAVERSE, Kind::Any).map_err(of_status)?;
            let id = host::id_of(&next).map_err(of_io)?;
            let facts = host::facts_of(&next, id).map_err(of_io)?;
            if facts.attributes & FILE_ATTRIBUTE_REPARSE_POINT != 0 {
                return Err(Errno::ELOOP); // somebody has put it there since; it leads nowhere
            }
            dir = Some(next);
        }
        let from = dir.as_ref().unwrap_or(self.root.dir());
        self.here(host::open_in(from, name, access, Kind::Any))
    }

    /// What a directory has by this name, spelled in whichever way the host takes for the same.
    fn child(&self, dir: &Here, name: &[u16], access: u32) -> Result<Here> {
        self.here(host::open_in(&dir.file, name, access, Kind::Any))
    }

    fn here(&self, opened: host::Outcome<File>) -> Result<Here> {
        let file = opened.map_err(of_status)?;
        let id = host::id_of(&file).map_err(of_io)?;
        let facts = host::facts_of(&file, id).map_err(of_io)?;
        // The last word on where it is: whatever way led here, it is below the root, or refused.
        let place = self.root.place_of_open(&file).map_err(|_| Errno::ESTALE)?;
        Ok(Here { file, id, facts, place })
    }
}

fn of_status(status: NTSTATUS) -> Errno {
    Errno(errno::of_status(status))
}

fn of_io(error: io::Error) -> Errno {
    match error.raw_os_error() {
        Some(code) => Errno(errno::of_win32(code as u32)),
        None => error.kind().into(),
    }
}

fn of_overlay(error: OverlayError) -> Errno {
    Errno(error.errno())
}

/// Of a name that is to be made.
fn of_new_name(why: BadName) -> Errno {
    match why {
        BadName::NotText => Errno(errno::EILSEQ),
        BadName::TooLong => Errno::ENAMETOOLONG,
        _ => Errno::EINVAL,
    }
}

/// Of a name that is looked for: what cannot be is not there.
fn of_sought_name(why: BadName) -> Errno {
    match why {
        BadName::TooLong => Errno::ENAMETOOLONG,
        _ => Errno::ENOENT,
    }
}

fn of_refusal(error: UndoError) -> Errno {
    match error {
        UndoError::Io { source, .. } => of_io(source),
        other => match other.code() {
            ErrorCode::ReadOnly => Errno::EROFS,
            ErrorCode::SafeguardDenied | ErrorCode::PathProtected => Errno::EPERM,
            ErrorCode::HeldQueueFull | ErrorCode::LimitExceeded | ErrorCode::LowDiskSpace => {
                Errno::ENOSPC
            }
            ErrorCode::InvalidPath => Errno::EINVAL,
            _ => Errno::EIO,
        },
    }
}
