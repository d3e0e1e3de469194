//! The requests of the driver. What changes anything asks the interceptor first.

use std::fs::File;
use std::io;
use std::os::windows::fs::FileExt;
use std::os::windows::io::{AsHandle, BorrowedHandle};
use std::sync::{Arc, Mutex, PoisonError};

use codeagent_common::EntryKind;
use codeagent_interceptor::{
    Allocation, FileId, FileRef, Mutation, OpenFile, Permit, RenameMode, WriteInterceptor,
};
use codeagent_windows::host::{self, Facts, Kind, Listed, Root};
use codeagent_windows::volume_path::VolumePath;
use windows_sys::Win32::Foundation::{
    ERROR_HANDLE_EOF, NTSTATUS, STATUS_CANNOT_DELETE, STATUS_DIRECTORY_NOT_EMPTY,
    STATUS_EAS_NOT_SUPPORTED, STATUS_END_OF_FILE, STATUS_MEDIA_WRITE_PROTECTED,
    STATUS_OBJECT_NAME_INVALID, STATUS_OBJECT_NAME_NOT_FOUND, STATUS_UNEXPECTED_IO_ERROR,
};
use windows_sys::Win32::Storage::FileSystem::{
    FILE_ATTRIBUTE_DIRECTORY, FILE_ATTRIBUTE_NORMAL, FILE_ATTRIBUTE_READONLY, FILE_LIST_DIRECTORY,
    FILE_WRITE_ATTRIBUTES, FILE_WRITE_DATA, INVALID_FILE_ATTRIBUTES,
};
use winfsp_wrs::{
    CleanupFlags, CreateFileInfo, CreateOptions, DirInfo, FileAccessRights, FileAttributes,
    FileInfo, FileSystemInterface, PSecurityDescriptor, SecurityDescriptor, U16CStr, U16CString,
    VolumeInfo, WriteMode, u16str,
};

use super::security::Descriptors;
use super::status::{Outcome, of_io, of_refusal};

/// A folder, served as it is.
#[derive(Debug)]
pub(super) struct Passthrough<I> {
    root: Root,
    interceptor: I,
    read_only: bool,
    descriptors: Descriptors,
}

/// A file or directory that a client has open.
#[derive(Debug)]
pub(super) struct Open {
    file: File,
    id: FileId,
    directory: bool,
    /// What the directory held when a client began to read it.
    listing: Mutex<Vec<Listed>>,
}

impl OpenFile for Open {
    fn id(&self) -> io::Result<FileId> {
        Ok(self.id)
    }

    fn file(&self) -> io::Result<BorrowedHandle<'_>> {
        Ok(self.file.as_handle())
    }
}

impl Open {
    fn new(file: File) -> io::Result<(Self, FileInfo)> {
        let id = host::id_of(&file)?;
        let facts = host::facts_of(&file, id)?;
        let directory = facts.attributes & FILE_ATTRIBUTE_DIRECTORY != 0;
        Ok((Self { file, id, directory, listing: Mutex::default() }, info(&facts)))
    }

    fn facts(&self) -> Outcome<Facts> {
        host::facts_of(&self.file, self.id).map_err(of_io)
    }

    fn info(&self) -> Outcome<FileInfo> {
        Ok(info(&self.facts()?))
    }
}

impl<I: WriteInterceptor> Passthrough<I> {
    pub(super) fn new(root: Root, interceptor: I, read_only: bool) -> Self {
        Self { root, interceptor, read_only, descriptors: Descriptors::default() }
    }

    fn ask(&self, mutation: &Mutation<'_>) -> Outcome<Permit<'_>> {
        if self.read_only {
            return Err(STATUS_MEDIA_WRITE_PROTECTED);
        }
        self.interceptor.before(mutation).map_err(of_refusal)
    }

    /// Changes an open file: asks, does it, tells how it went.
    fn change<T>(
        &self,
        open: &Open,
        mutation: impl Fn(FileRef<'_>) -> Mutation<'_>,
        host: impl FnOnce() -> io::Result<T>,
    ) -> Outcome<T> {
        let name = self.root.name_of(&open.file)?;
        let file = FileRef { path: name.path.as_path(), open: Some(open) };
        let permit = self.ask(&mutation(file))?;
        conclude(permit, host())
    }

    /// A write to what the step has captured already needs no name.
    fn repeated_write(&self, open: &Open, offset: u64, length: u64) -> Option<Permit<'_>> {
        if self.read_only {
            return None;
        }
        self.interceptor.repeat_write(open.id, offset, length)
    }

    fn write_at(&self, open: &Open, buffer: &[u8], offset: u64) -> Outcome<usize> {
        let length = buffer.len() as u64;
        let host = || write_all(&open.file, buffer, offset);
        match self.repeated_write(open, offset, length) {
            Some(permit) => conclude(permit, host()),
            None => self.change(open, |file| Mutation::Write { file, offset, length }, host),
        }
    }

    /// The same file once more, for what the client's own handle need not allow.
    fn reopened(&self, open: &Open, access: u32) -> Outcome<File> {
        let name = self.root.name_of(&open.file)?;
        let file = self.root.entry(&name.units, access, Kind::Any)?;
        match host::id_of(&file).map_err(of_io)? == open.id {
            true => Ok(file),
            false => Err(STATUS_OBJECT_NAME_NOT_FOUND), // somebody else's name by now
        }
    }

    fn remove(&self, open: &Open) -> Outcome<()> {
        let name = self.root.name_of(&open.file)?;
        let path = name.path.as_path();
        let mutation =
            if open.directory { Mutation::Rmdir { path } } else { Mutation::Unlink { path } };
        let permit = self.ask(&mutation)?;
        if permit.performed() {
            permit.done();
            return Ok(());
        }
        finish(permit, self.root.remove(&name, open.id))
    }
}

impl<I: WriteInterceptor> FileSystemInterface for Passthrough<I> {
    type FileContext = Arc<Open>;

    const GET_VOLUME_INFO_DEFINED: bool = true;
    const GET_SECURITY_BY_NAME_DEFINED: bool = true;
    const CREATE_EX_DEFINED: bool = true;
    const OPEN_DEFINED: bool = true;
    const OVERWRITE_EX_DEFINED: bool = true;
    const CLEANUP_DEFINED: bool = true;
    const CLOSE_DEFINED: bool = true;
    const READ_DEFINED: bool = true;
    const WRITE_DEFINED: bool = true;
    const FLUSH_DEFINED: bool = true;
    const GET_FILE_INFO_DEFINED: bool = true;
    const SET_BASIC_INFO_DEFINED: bool = true;
    const SET_FILE_SIZE_DEFINED: bool = true;
    const CAN_DELETE_DEFINED: bool = true;
    const RENAME_DEFINED: bool = true;
    const GET_SECURITY_DEFINED: bool = true;
    const READ_DIRECTORY_DEFINED: bool = true;

    fn get_volume_info(&self) -> Outcome<VolumeInfo> {
        let (total, free) = self.root.space().map_err(of_io)?;
        VolumeInfo::new(total, free, u16str!("codeagent")).map_err(|_| STATUS_UNEXPECTED_IO_ERROR)
    }

    fn get_security_by_name(
        &self,
        file_name: &U16CStr,
        _find_reparse_point: impl Fn() -> Option<FileAttributes>,
    ) -> Outcome<(FileAttributes, PSecurityDescriptor, bool)> {
        let path = named(file_name)?;
        let file = self.root.entry(&path.units, 0, Kind::Any)?;
        let id = host::id_of(&file).map_err(of_io)?;
        let facts = host::facts_of(&file, id).map_err(of_io)?;
        Ok((FileAttributes(facts.attributes), self.descriptors.of(&file)?, false))
    }

    fn create_ex(
        &self,
        file_name: &U16CStr,
        wanted: CreateFileInfo,
        _inherited_instead: SecurityDescriptor,
        extra: &[u8],
        _extra_is_reparse_point: bool,
    ) -> Outcome<(Arc<Open>, FileInfo)> {
        if !extra.is_empty() {
            return Err(STATUS_EAS_NOT_SUPPORTED);
        }
        let directory = wanted.create_options.is(CreateOptions::FILE_DIRECTORY_FILE);
        let (_parent, name) = self.root.place_of(&named(file_name)?)?;
        let path = name.path.as_path();
        let (mutation, kind) = if directory {
            (Mutation::Mkdir { path }, Kind::Directory)
        } else {
            (Mutation::Create { path, kind: EntryKind::File }, Kind::File)
        };
        let access = wanted.granted_access.0;
        let permit = self.ask(&mutation)?;
        let attributes = match wanted.file_attributes.0 & !FILE_ATTRIBUTE_DIRECTORY {
            0 => FILE_ATTRIBUTE_NORMAL,
            some => some,
        };
        let file = match self.root.make(&name.units, access, kind, attributes) {
            Ok(file) => file,
            Err(status) => {
                permit.failed();
                return Err(status);
            }
        };
        match Open::new(file) {
            Ok((open, info)) => {
                permit.created(open.id);
                Ok((Arc::new(open), info))
            }
            Err(error) => {
                permit.done();
                Err(of_io(error))
            }
        }
    }

    fn open(
        &self,
        file_name: &U16CStr,
        _options: CreateOptions,
        access: FileAccessRights,
    ) -> Outcome<(Arc<Open>, FileInfo)> {
        let path = named(file_name)?;
        let file = self.root.entry(&path.units, access.0, Kind::Any)?;
        let (open, info) = Open::new(file).map_err(of_io)?;
        Ok((Arc::new(open), info))
    }

    fn overwrite_ex(
        &self,
        open: Arc<Open>,
        attributes: FileAttributes,
        replace_attributes: bool,
        _allocation_size: u64,
        extended: &[u8],
    ) -> Outcome<FileInfo> {
        if !extended.is_empty() {
            return Err(STATUS_EAS_NOT_SUPPORTED);
        }
        let file = self.reopened(&open, FILE_WRITE_DATA | FILE_WRITE_ATTRIBUTES)?;
        let host = || file.set_len(0);
        self.change(&open, |file| Mutation::Truncate { file, length: 0 }, host)?;
        let before = open.facts()?.attributes;
        let after = if replace_attributes { attributes.0 } else { attributes.0 | before };
        let after = if after == 0 { FILE_ATTRIBUTE_NORMAL } else { after };
        if after != before {
            let host = || host::set_basic(&file, after, [0; 4]);
            self.change(&open, |file| Mutation::SetAttributes { file }, host)?;
        }
        open.info()
    }

    fn cleanup(&self, open: Arc<Open>, _file_name: Option<&U16CStr>, flags: CleanupFlags) {
        if flags.is(CleanupFlags::DELETE) {
            // Nobody can be told any more: what is not removed stays.
            let _ = self.remove(&open);
        }
    }

    fn close(&self, open: Arc<Open>) {
        drop(open);
    }

    fn read(&self, open: Arc<Open>, buffer: &mut [u8], offset: u64) -> Outcome<usize> {
        match open.file.seek_read(buffer, offset) {
            Ok(0) if !buffer.is_empty() => Err(STATUS_END_OF_FILE),
            Ok(bytes) => Ok(bytes),
            Err(error) if error.raw_os_error() == Some(ERROR_HANDLE_EOF as i32) => {
                Err(STATUS_END_OF_FILE)
            }
            Err(error) => Err(of_io(error)),
        }
    }

    fn write(&self, open: Arc<Open>, buffer: &[u8], mode: WriteMode) -> Outcome<(usize, FileInfo)> {
        /// What the system takes for "behind the last byte, wherever that is by now".
        const AT_END: u64 = u64::MAX;
        let written = match mode {
            WriteMode::Normal { offset } => self.write_at(&open, buffer, offset)?,
            WriteMode::ConstrainedIO { offset } => {
                let room = open.facts()?.size.saturating_sub(offset);
                let within = usize::try_from(room).unwrap_or(usize::MAX).min(buffer.len());
                match within {
                    0 => 0,
                    within => self.write_at(&open, &buffer[..within], offset)?,
                }
            }
            WriteMode::WriteToEOF => {
                let host = || open.file.seek_write(buffer, AT_END);
                self.change(&open, |file| Mutation::Append { file }, host)?
            }
        };
        Ok((written, open.info()?))
    }

    fn flush(&self, open: Arc<Open>) -> Outcome<FileInfo> {
        open.file.sync_all().map_err(of_io)?;
        open.info()
    }

    fn get_file_info(&self, open: Arc<Open>) -> Outcome<FileInfo> {
        open.info()
    }

    fn set_basic_info(
        &self,
        open: Arc<Open>,
        attributes: FileAttributes,
        created: u64,
        accessed: u64,
        written: u64,
        changed: u64,
    ) -> Outcome<FileInfo> {
        let attributes = match attributes.0 {
            INVALID_FILE_ATTRIBUTES => 0,
            0 => FILE_ATTRIBUTE_NORMAL,
            some => some,
        };
        let times = [created, accessed, written, changed].map(|time| time as i64);
        let host = || host::set_basic(&open.file, attributes, times);
        self.change(&open, |file| Mutation::SetAttributes { file }, host)?;
        open.info()
    }

    fn set_file_size(
        &self,
        open: Arc<Open>,
        new_size: u64,
        set_allocation_size: bool,
    ) -> Outcome<FileInfo> {
        let size = open.facts()?.size;
        let reserves = set_allocation_size && new_size >= size;
        let how = Allocation::KeepSize;
        let host = || match set_allocation_size {
            true => host::set_allocation(&open.file, new_size),
            false => open.file.set_len(new_size),
        };
        if reserves {
            let (offset, length) = (size, new_size - size);
            self.change(&open, |file| Mutation::Allocate { file, how, offset, length }, host)?;
        } else {
            // Less room than bytes cuts the file as well.
            self.change(&open, |file| Mutation::Truncate { file, length: new_size }, host)?;
        }
        open.info()
    }

    fn can_delete(&self, open: Arc<Open>, _file_name: &U16CStr) -> Outcome<()> {
        if self.read_only {
            return Err(STATUS_MEDIA_WRITE_PROTECTED);
        }
        if open.facts()?.attributes & FILE_ATTRIBUTE_READONLY != 0 {
            return Err(STATUS_CANNOT_DELETE);
        }
        if !open.directory {
            return Ok(());
        }
        let dir = self.reopened(&open, FILE_LIST_DIRECTORY)?;
        let entries = host::list(&dir).map_err(of_io)?;
        match entries.iter().all(|entry| is_dots(&entry.name)) {
            true => Ok(()),
            false => Err(STATUS_DIRECTORY_NOT_EMPTY),
        }
    }

    fn rename(
        &self,
        open: Arc<Open>,
        _file_name: &U16CStr,
        new_file_name: &U16CStr,
        replace: bool,
    ) -> Outcome<()> {
        let from = self.root.name_of(&open.file)?;
        let (parent, mut to) = self.root.place_of(&named(new_file_name)?)?;
        // What is there is replaced under its own spelling, unless it is the file itself.
        if let Ok(existing) = self.root.entry(&to.units, 0, Kind::Any)
            && host::id_of(&existing).map_err(of_io)? != open.id
        {
            to = self.root.name_of(&existing)?;
        }
        let (_, name) = to.split().ok_or(STATUS_OBJECT_NAME_INVALID)?;
        let permit = self.ask(&Mutation::Rename {
            from: from.path.as_path(),
            to: to.path.as_path(),
            mode: if replace { RenameMode::Replace } else { RenameMode::NoReplace },
        })?;
        if permit.performed() {
            permit.done();
            return Ok(());
        }
        finish(permit, host::rename(&open.file, &parent, name, replace))
    }

    fn get_security(&self, open: Arc<Open>) -> Outcome<PSecurityDescriptor> {
        self.descriptors.of(&open.file)
    }

    fn read_directory(
        &self,
        open: Arc<Open>,
        marker: Option<&U16CStr>,
        mut add: impl FnMut(DirInfo) -> bool,
    ) -> Outcome<()> {
        let mut listing = open.listing.lock().unwrap_or_else(PoisonError::into_inner);
        let behind = match marker {
            None => {
                *listing = host::list(&open.file).map_err(of_io)?;
                let is_root = self.root.name_of(&open.file)?.units.is_empty();
                // The root of a volume lists neither itself nor a parent.
                listing.retain(|entry| !(is_root && is_dots(&entry.name)));
                0
            }
            Some(marker) => {
                let at = listing.iter().position(|entry| entry.name == marker.as_slice());
                at.map_or(listing.len(), |at| at + 1)
            }
        };
        for entry in &listing[behind..] {
            const LONGEST: usize = 255; // what `DirInfo` has room for
            let Ok(name) = U16CString::from_vec(entry.name.as_slice()) else { continue };
            if name.len() <= LONGEST && !add(DirInfo::new(info(&entry.facts), &name)) {
                break;
            }
        }
        Ok(())
    }
}

/// Tells the permit how it went.
fn finish<T>(permit: Permit<'_>, outcome: Outcome<T>) -> Outcome<T> {
    match outcome {
        Ok(_) => permit.done(),
        Err(_) => permit.failed(),
    }
    outcome
}

/// Tells the permit that a file changed. An error may come after half of the change: then nothing
/// is said, and undo looks for itself.
fn conclude<T>(permit: Permit<'_>, outcome: io::Result<T>) -> Outcome<T> {
    if outcome.is_ok() {
        permit.done();
    }
    outcome.map_err(of_io)
}

fn named(file_name: &U16CStr) -> Result<VolumePath, NTSTATUS> {
    VolumePath::new(file_name.as_slice()).ok_or(STATUS_OBJECT_NAME_INVALID)
}

fn is_dots(name: &[u16]) -> bool {
    const DOT: u16 = b'.' as u16;
    matches!(name, [DOT] | [DOT, DOT])
}

fn write_all(file: &File, buffer: &[u8], offset: u64) -> io::Result<usize> {
    let mut written = 0;
    while written < buffer.len() {
        match file.seek_write(&buffer[written..], offset + written as u64)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            bytes => written += bytes,
        }
    }
    Ok(written)
}

fn info(facts: &Facts) -> FileInfo {
    let mut info = FileInfo::default();
    info.set_file_attributes(FileAttributes(facts.attributes))
        .set_file_size(facts.size)
        .set_allocation_size(facts.allocated)
        .set_creation_time(facts.created as u64)
        .set_last_access_time(facts.accessed as u64)
        .set_last_write_time(facts.written as u64)
        .set_change_time(facts.changed as u64)
        .set_hard_links(facts.links)
        .set_index_number(facts.index);
    info
}
