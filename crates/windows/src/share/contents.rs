//! Changes of what a file holds and of what is known of it. Each asks the interceptor first, with
//! the name that the host has just told by handle.

use std::fs::File;
use std::io;
use std::os::windows::fs::FileExt;
use std::os::windows::io::{AsHandle, BorrowedHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use codeagent_interceptor::{FileId, FileRef, Mutation, OpenFile, Permit, WriteInterceptor};
use codeagent_p9::{Change, Errno, NewTime, OpenFlags, Result, Time};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_NORMAL, FILE_ATTRIBUTE_READONLY, FILE_WRITE_ATTRIBUTES, FILE_WRITE_DATA,
};

use super::look::{Look, kind_of, ticks};
use super::places::Node;
use super::{Opened, WindowsShare, of_io, of_overlay};
use crate::host;
use crate::overlay;
use crate::volume_path::VolumePath;

/// What the system takes for "behind the last byte, wherever that is by now".
const AT_END: u64 = u64::MAX;

impl<I: WriteInterceptor + 'static> WindowsShare<I> {
    /// Changes what is known by handle: asks, does it, tells how it went.
    fn change_file<T>(
        &self,
        place: &VolumePath,
        open: &dyn OpenFile,
        mutation: impl Fn(FileRef<'_>) -> Mutation<'_>,
        host: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let file = FileRef { path: place.path.as_path(), open: Some(open) };
        conclude(self.ask(&mutation(file))?, host())
    }

    pub(super) fn change_attributes(
        &self,
        node: &Node,
        open: Option<&Opened>,
        change: &Change,
    ) -> Result<()> {
        self.writable()?;
        if let Some(length) = change.size {
            self.set_size(node, open, length)?;
        }
        let wants_times = change.accessed.is_some() || change.modified.is_some();
        let wants_owner = change.mode.is_some() || change.uid.is_some() || change.gid.is_some();
        if !wants_times && !wants_owner && !change.changed_now {
            return Ok(());
        }
        let here = self.at(node, FILE_WRITE_ATTRIBUTES)?;
        let handle = HeldFile { file: &here.file, id: here.id };
        self.change_file(
            &here.place,
            &handle,
            |file| Mutation::SetAttributes { file },
            || {
                if wants_owner {
                    let change =
                        overlay::Change { mode: change.mode, uid: change.uid, gid: change.gid };
                    let path = here.place.path.as_path();
                    self.overlay.set(path, kind_of(&here.facts), change).map_err(of_overlay)?;
                }
                // Who may write to a file has to be able to.
                let before = here.facts.attributes;
                let after = match change.mode {
                    Some(mode) if mode & 0o200 != 0 && before & FILE_ATTRIBUTE_READONLY != 0 => {
                        Some(before & !FILE_ATTRIBUTE_READONLY)
                    }
                    _ => None,
                };
                let now = ticks(now());
                let wanted = |time: Option<NewTime>| match time {
                    None => Ok(0), // stays
                    Some(NewTime::Now) => now.ok_or(Errno::EINVAL),
                    Some(NewTime::At(time)) => ticks(time).ok_or(Errno::EINVAL),
                };
                let times =
                    [0, wanted(change.accessed)?, wanted(change.modified)?, now.unwrap_or(0)];
                let after =
                    after.map_or(0, |bits| if bits == 0 { FILE_ATTRIBUTE_NORMAL } else { bits });
                host::set_basic(&here.file, after, times).map_err(of_io)
            },
        )
    }

    fn set_size(&self, node: &Node, open: Option<&Opened>, length: u64) -> Result<()> {
        if let Some(open) = open.filter(|open| open.flags.writes()) {
            let place = self.place_of(open, node);
            return self.change_file(&place, open, to_length(length), || {
                open.file.set_len(length).map_err(of_io)
            });
        }
        let here = self.at(node, FILE_WRITE_DATA)?;
        match self.look(&here, &self.posix(&here)?)? {
            Look::Directory => return Err(Errno::EISDIR),
            look => look.openable()?,
        }
        let handle = HeldFile { file: &here.file, id: here.id };
        self.change_file(&here.place, &handle, to_length(length), || {
            here.file.set_len(length).map_err(of_io)
        })
    }

    /// The name of what is open, or the last one it had.
    fn place_of(&self, open: &Opened, node: &Node) -> VolumePath {
        self.root.place_of_open(&open.file).unwrap_or_else(|_| node.place())
    }

    pub(super) fn truncate_opened(&self, open: &Opened, place: &VolumePath) -> Result<()> {
        self.change_file(place, open, to_length(0), || open.file.set_len(0).map_err(of_io))
    }

    pub(super) fn write_at(
        &self,
        node: &Node,
        open: &Opened,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        self.writable()?;
        if !open.flags.writes() {
            return Err(Errno::EBADF);
        }
        let length = bytes.len() as u64;
        let append = open.flags.has(OpenFlags::APPEND);
        let host = || match append {
            true => open.file.seek_write(bytes, AT_END),
            false => write_all(&open.file, bytes, offset),
        };
        let host = || host().map_err(of_io);
        if !append && i64::try_from(offset.saturating_add(length)).is_err() {
            return Err(Errno::EFBIG);
        }
        if !append
            && !open.inspected
            && let Some(permit) = self.interceptor.repeat_write(open.id, offset, length)
        {
            return conclude(permit, host());
        }
        let place = self.place_of(open, node);
        match append {
            true => self.change_file(&place, open, |file| Mutation::Append { file }, host),
            false => self.change_file(
                &place,
                open,
                |file| Mutation::Write { file, offset, length },
                host,
            ),
        }
    }

    pub(super) fn change_xattrs(
        &self,
        node: &Node,
        name: &[u8],
        change: impl FnOnce(&VolumePath, overlay::Kind) -> overlay::Result<()>,
    ) -> Result<()> {
        self.writable()?;
        // The rest means something to the host's kernel, and this one knows nothing of it.
        if !name.starts_with(b"user.") {
            return Err(Errno::EOPNOTSUPP);
        }
        let here = self.at(node, 0)?;
        let handle = HeldFile { file: &here.file, id: here.id };
        self.change_file(
            &here.place,
            &handle,
            |file| Mutation::SetAttributes { file },
            || change(&here.place, kind_of(&here.facts)).map_err(of_overlay),
        )
    }
}

/// A file that is open for a single change.
#[derive(Debug)]
struct HeldFile<'a> {
    file: &'a File,
    id: FileId,
}

impl OpenFile for HeldFile<'_> {
    fn id(&self) -> io::Result<FileId> {
        Ok(self.id)
    }

    fn file(&self) -> io::Result<BorrowedHandle<'_>> {
        Ok(self.file.as_handle())
    }
}

fn to_length(length: u64) -> impl Fn(FileRef<'_>) -> Mutation<'_> {
    move |file| Mutation::Truncate { file, length }
}

/// Tells the permit that a file changed. An error may come after half of the change: then nothing
/// is said, and undo looks for itself.
fn conclude<T>(permit: Permit<'_>, outcome: Result<T>) -> Result<T> {
    if outcome.is_ok() {
        permit.done();
    }
    outcome
}

pub(super) fn write_all(file: &File, bytes: &[u8], offset: u64) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match file.seek_write(&bytes[written..], offset + written as u64)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            more => written += more,
        }
    }
    Ok(written)
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { seconds: since.as_secs(), nanoseconds: since.subsec_nanos().into() }
}
