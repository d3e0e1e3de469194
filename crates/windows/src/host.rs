//! A folder of the host, by handle: every system call that the standard library has not.
//!
//! Everything is opened relative to the handle of a directory. The system is told either to stop at
//! any reparse point, or to open the point itself: no symlink or junction, however it comes and
//! goes, leads outside.
#![expect(unsafe_code, reason = "the calls that the standard library has not")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::windows::fs::OpenOptionsExt;
use std::os::windows::io::{AsRawHandle, FromRawHandle};
use std::path::Path;
use std::ptr;

use codeagent_interceptor::FileId;
use windows_sys::Wdk::Foundation::OBJECT_ATTRIBUTES;
use windows_sys::Wdk::Storage::FileSystem::{
    FILE_CREATE, FILE_DIRECTORY_FILE, FILE_INFORMATION_CLASS, FILE_NON_DIRECTORY_FILE, FILE_OPEN,
    FILE_OPEN_FOR_BACKUP_INTENT, FILE_OPEN_REPARSE_POINT, FILE_RENAME_IGNORE_READONLY_ATTRIBUTE,
    FILE_RENAME_INFORMATION, FILE_RENAME_INFORMATION_0, FILE_RENAME_POSIX_SEMANTICS,
    FILE_RENAME_REPLACE_IF_EXISTS, FILE_SYNCHRONOUS_IO_NONALERT, FileLinkInformation,
    FileRenameInformation, FileRenameInformationEx, NtCreateFile, NtSetInformationFile,
};
use windows_sys::Win32::Foundation::{
    ERROR_INVALID_FUNCTION, ERROR_INVALID_PARAMETER, ERROR_NO_MORE_FILES, ERROR_NOT_SUPPORTED,
    HANDLE, NTSTATUS, OBJ_CASE_INSENSITIVE, OBJ_DONT_REPARSE, STATUS_INVALID_DEVICE_REQUEST,
    STATUS_INVALID_INFO_CLASS, STATUS_INVALID_PARAMETER, STATUS_NOT_IMPLEMENTED,
    STATUS_NOT_SUPPORTED, STATUS_OBJECT_NAME_INVALID, STATUS_OBJECT_PATH_NOT_FOUND,
    STATUS_UNEXPECTED_IO_ERROR, UNICODE_STRING,
};
use windows_sys::Win32::Storage::FileSystem::{
    BY_HANDLE_FILE_INFORMATION, DELETE, FILE_ALLOCATION_INFO, FILE_ATTRIBUTE_NORMAL,
    FILE_ATTRIBUTE_REPARSE_POINT, FILE_BASIC_INFO, FILE_DISPOSITION_FLAG_DELETE,
    FILE_DISPOSITION_FLAG_IGNORE_READONLY_ATTRIBUTE, FILE_DISPOSITION_FLAG_POSIX_SEMANTICS,
    FILE_DISPOSITION_INFO, FILE_DISPOSITION_INFO_EX, FILE_FLAG_BACKUP_SEMANTICS,
    FILE_ID_BOTH_DIR_INFO, FILE_INFO_BY_HANDLE_CLASS, FILE_LIST_DIRECTORY, FILE_READ_ATTRIBUTES,
    FILE_SHARE_DELETE, FILE_SHARE_READ, FILE_SHARE_WRITE, FILE_STANDARD_INFO, FILE_TRAVERSE,
    FileAllocationInfo, FileBasicInfo, FileDispositionInfo, FileDispositionInfoEx,
    FileIdBothDirectoryInfo, FileIdBothDirectoryRestartInfo, FileStandardInfo, GetDiskFreeSpaceExW,
    GetFileInformationByHandle, GetFileInformationByHandleEx, GetFinalPathNameByHandleW,
    MAXIMUM_REPARSE_DATA_BUFFER_SIZE, READ_CONTROL, SYNCHRONIZE, SetFileInformationByHandle,
};
use windows_sys::Win32::System::IO::{DeviceIoControl, IO_STATUS_BLOCK};
use windows_sys::Win32::System::Ioctl::{FSCTL_GET_REPARSE_POINT, FSCTL_SET_REPARSE_POINT};

use crate::volume_path::{VolumePath, below};

/// Success, or what the kernel says.
pub type Outcome<T> = Result<T, NTSTATUS>;

/// A Win32 error within an NTSTATUS: clients get the same number back.
pub fn of_io(error: io::Error) -> NTSTATUS {
    const FACILITY_NTWIN32: u32 = 0xc007_0000;
    match error.raw_os_error() {
        Some(code) => (FACILITY_NTWIN32 | (code as u32 & 0xffff)) as NTSTATUS,
        None => STATUS_UNEXPECTED_IO_ERROR,
    }
}

/// What every handle may do, whatever it was opened for.
const ALWAYS: u32 = FILE_READ_ATTRIBUTES | READ_CONTROL | SYNCHRONIZE;

/// The folder that is served.
#[derive(Debug)]
pub struct Root {
    /// Not shared for deletion: as long as it is open, the folder keeps its name.
    dir: File,
    /// The folder as the system spells it.
    path: Vec<u16>,
}

/// What an entry is expected to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    Directory,
    Any,
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub struct Listed {
    pub name: Vec<u16>,
    pub facts: Facts,
}

/// What is known of an entry. Times are in the system's own unit.
#[derive(Debug, Clone, Copy, Default)]
pub struct Facts {
    pub attributes: u32,
    pub size: u64,
    pub allocated: u64,
    pub created: i64,
    pub accessed: i64,
    pub written: i64,
    pub changed: i64,
    pub links: u32,
    pub index: u64,
    /// Of a reparse point that was listed; else 0.
    pub tag: u32,
    /// It has no name any more, or will have none when it is closed.
    pub is_going: bool,
}

impl Root {
    pub fn open(path: &Path) -> io::Result<Self> {
        let dir = OpenOptions::new()
            .access_mode(FILE_LIST_DIRECTORY | FILE_TRAVERSE | ALWAYS)
            .share_mode(FILE_SHARE_READ | FILE_SHARE_WRITE)
            .custom_flags(FILE_FLAG_BACKUP_SEMANTICS)
            .open(path)?;
        if !dir.metadata()?.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        let path = final_path(&dir)?;
        Ok(Self { dir, path })
    }

    /// Opens what exists.
    pub fn entry(&self, path: &[u16], access: u32, kind: Kind) -> Outcome<File> {
        let at_reparse_point = AtReparsePoint::Stop;
        let disposition = FILE_OPEN;
        nt_create(
            &self.dir,
            path,
            How { access, disposition, kind, attributes: 0, at_reparse_point },
        )
    }

    /// Makes what must not exist.
    pub fn make(&self, path: &[u16], access: u32, kind: Kind, attributes: u32) -> Outcome<File> {
        let at_reparse_point = AtReparsePoint::Stop;
        let disposition = FILE_CREATE;
        nt_create(&self.dir, path, How { access, disposition, kind, attributes, at_reparse_point })
    }

    /// The name of an open file as the host spells it, whatever name it was opened by: names differ
    /// in case and have short forms, and the engine must know each file by one.
    pub fn name_of(&self, file: &File) -> Outcome<VolumePath> {
        let full = final_path(file).map_err(of_io)?;
        let rest = below(&self.path, &full).ok_or(STATUS_OBJECT_PATH_NOT_FOUND)?;
        VolumePath::new(rest).ok_or(STATUS_OBJECT_NAME_INVALID)
    }

    /// As `name_of`, with whatever names there are.
    pub fn place_of_open(&self, file: &File) -> Outcome<VolumePath> {
        let full = final_path(file).map_err(of_io)?;
        let rest = below(&self.path, &full).ok_or(STATUS_OBJECT_PATH_NOT_FOUND)?;
        VolumePath::existing(rest).ok_or(STATUS_OBJECT_NAME_INVALID)
    }

    /// The folder itself.
    pub fn dir(&self) -> &File {
        &self.dir
    }

    /// Its full path, as the system spells it.
    pub fn path(&self) -> &[u16] {
        &self.path
    }

    /// The directory a new name is to be in, and the whole name as the host will spell it.
    pub fn place_of(&self, path: &VolumePath) -> Outcome<(File, VolumePath)> {
        let (parent, name) = path.split().ok_or(STATUS_OBJECT_NAME_INVALID)?;
        let parent = self.entry(parent, FILE_TRAVERSE, Kind::Directory)?;
        let mut units = self.name_of(&parent)?.units;
        if !units.is_empty() {
            units.push(b'\\'.into());
        }
        units.extend_from_slice(name);
        let path = VolumePath::new(&units).ok_or(STATUS_OBJECT_NAME_INVALID)?;
        Ok((parent, path))
    }

    /// Takes the name of `id` away: at once, whoever has the file open, or, on disks that cannot do
    /// that, when the last handle is closed.
    pub fn remove(&self, path: &VolumePath, id: FileId) -> Outcome<()> {
        let file = self.entry(&path.units, DELETE, Kind::Any)?;
        if id_of(&file).map_err(of_io)? != id {
            return Err(STATUS_OBJECT_PATH_NOT_FOUND); // somebody else's by now
        }
        remove(&file)
    }

    /// Bytes: all, and free for this user.
    pub fn space(&self) -> io::Result<(u64, u64)> {
        let mut path = self.path.clone();
        path.push(0);
        let (mut free, mut total) = (0, 0);
        // SAFETY: the path ends with a NUL; the numbers outlive the call.
        let ok = unsafe {
            GetDiskFreeSpaceExW(path.as_ptr(), &raw mut free, &raw mut total, ptr::null_mut())
        };
        check(ok)?;
        Ok((total, free))
    }
}

/// What to do with a reparse point that a name leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AtReparsePoint {
    /// On the way or at the end: an error.
    Stop,
    /// The point itself is opened; there is no way, because the name is a single one.
    OpenIt,
}

/// How something is opened.
#[derive(Debug, Clone, Copy)]
struct How {
    access: u32,
    disposition: u32,
    kind: Kind,
    attributes: u32,
    at_reparse_point: AtReparsePoint,
}

/// Opens what a directory has by this name, be it a reparse point. An empty name is the directory.
pub fn open_in(dir: &File, name: &[u16], access: u32, kind: Kind) -> Outcome<File> {
    let at_reparse_point = AtReparsePoint::OpenIt;
    nt_create(
        dir,
        single(name)?,
        How { access, disposition: FILE_OPEN, kind, attributes: 0, at_reparse_point },
    )
}

/// Makes what must not exist in a directory.
pub fn make_in(dir: &File, name: &[u16], access: u32, kind: Kind) -> Outcome<File> {
    let at_reparse_point = AtReparsePoint::OpenIt;
    let attributes = FILE_ATTRIBUTE_NORMAL;
    nt_create(
        dir,
        single(name)?,
        How { access, disposition: FILE_CREATE, kind, attributes, at_reparse_point },
    )
}

/// A single name, or none: a separator would lead through whatever is on the way.
fn single(name: &[u16]) -> Outcome<&[u16]> {
    match name.contains(&u16::from(b'\\')) {
        true => Err(STATUS_OBJECT_NAME_INVALID),
        false => Ok(name),
    }
}

fn nt_create(dir: &File, path: &[u16], how: How) -> Outcome<File> {
    let bytes = u16::try_from(size_of_val(path)).map_err(|_| STATUS_OBJECT_NAME_INVALID)?;
    let name =
        UNICODE_STRING { Length: bytes, MaximumLength: bytes, Buffer: path.as_ptr().cast_mut() };
    let (stop, open_it) = match how.at_reparse_point {
        AtReparsePoint::Stop => (OBJ_DONT_REPARSE, 0),
        AtReparsePoint::OpenIt => (0, FILE_OPEN_REPARSE_POINT),
    };
    let object = OBJECT_ATTRIBUTES {
        Length: size_of::<OBJECT_ATTRIBUTES>() as u32,
        RootDirectory: dir.as_raw_handle(),
        ObjectName: &raw const name,
        Attributes: OBJ_CASE_INSENSITIVE | stop,
        SecurityDescriptor: ptr::null(),
        SecurityQualityOfService: ptr::null(),
    };
    let kind = match how.kind {
        Kind::File => FILE_NON_DIRECTORY_FILE,
        Kind::Directory => FILE_DIRECTORY_FILE,
        Kind::Any => 0,
    };
    let mut handle: HANDLE = ptr::null_mut();
    let mut status = IO_STATUS_BLOCK::default();
    // SAFETY: every pointer is to a value that outlives the call; the name's length is right; the
    // directory is open.
    let outcome = unsafe {
        NtCreateFile(
            &raw mut handle,
            how.access | ALWAYS,
            &raw const object,
            &raw mut status,
            ptr::null(),
            how.attributes,
            // Who may share what with whom is judged elsewhere: by the driver, or by a guest.
            FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE,
            how.disposition,
            kind | open_it | FILE_SYNCHRONOUS_IO_NONALERT | FILE_OPEN_FOR_BACKUP_INTENT,
            ptr::null(),
            0,
        )
    };
    if outcome < 0 {
        return Err(outcome);
    }
    // SAFETY: the call succeeded, so the handle is open, and nobody else has it.
    Ok(unsafe { File::from_raw_handle(handle) })
}

pub fn id_of(file: &File) -> io::Result<FileId> {
    let mut info = BY_HANDLE_FILE_INFORMATION::default();
    // SAFETY: the handle is open and the structure outlives the call.
    check(unsafe { GetFileInformationByHandle(file.as_raw_handle(), &raw mut info) })?;
    let inode = u64::from(info.nFileIndexHigh) << 32 | u64::from(info.nFileIndexLow);
    Ok(FileId { device: info.dwVolumeSerialNumber.into(), inode })
}

pub fn facts_of(file: &File, id: FileId) -> io::Result<Facts> {
    let mut basic = FILE_BASIC_INFO::default();
    get(file, FileBasicInfo, &mut basic)?;
    let mut standard = FILE_STANDARD_INFO::default();
    get(file, FileStandardInfo, &mut standard)?;
    Ok(Facts {
        attributes: basic.FileAttributes,
        size: standard.EndOfFile as u64,
        allocated: standard.AllocationSize as u64,
        created: basic.CreationTime,
        accessed: basic.LastAccessTime,
        written: basic.LastWriteTime,
        changed: basic.ChangeTime,
        links: standard.NumberOfLinks,
        index: id.inode,
        tag: 0,
        is_going: standard.DeletePending,
    })
}

/// Times and attributes; what is 0 stays as it is.
pub fn set_basic(file: &File, attributes: u32, times: [i64; 4]) -> io::Result<()> {
    let [created, accessed, written, changed] = times;
    let info = FILE_BASIC_INFO {
        CreationTime: created,
        LastAccessTime: accessed,
        LastWriteTime: written,
        ChangeTime: changed,
        FileAttributes: attributes,
    };
    set(file, FileBasicInfo, &info)
}

pub fn set_allocation(file: &File, bytes: u64) -> io::Result<()> {
    let bytes = i64::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
    set(file, FileAllocationInfo, &FILE_ALLOCATION_INFO { AllocationSize: bytes })
}

/// Takes the name of an open file away: at once, whoever else has it open, or, on disks that cannot
/// do that, when the last handle is closed.
pub fn remove(file: &File) -> Outcome<()> {
    let flags = FILE_DISPOSITION_FLAG_DELETE
        | FILE_DISPOSITION_FLAG_POSIX_SEMANTICS
        | FILE_DISPOSITION_FLAG_IGNORE_READONLY_ATTRIBUTE;
    let info = FILE_DISPOSITION_INFO_EX { Flags: flags };
    match set(file, FileDispositionInfoEx, &info) {
        Err(error) if is_unsupported(&error) => {
            set(file, FileDispositionInfo, &FILE_DISPOSITION_INFO { DeleteFile: true })
        }
        outcome => outcome,
    }
    .map_err(of_io)
}

/// Gives an open file another name, within a directory that is open as well.
pub fn rename(file: &File, parent: &File, name: &[u16], replace: bool) -> Outcome<()> {
    rename_with(file, parent, name, replace.into(), FileRenameInformation)
}

/// As `rename`, also if what is replaced is open or read-only, where the disk can do that.
pub fn rename_as_posix(file: &File, parent: &File, name: &[u16], replace: bool) -> Outcome<()> {
    const UNKNOWN: [NTSTATUS; 5] = [
        STATUS_INVALID_PARAMETER,
        STATUS_INVALID_INFO_CLASS,
        STATUS_NOT_IMPLEMENTED,
        STATUS_NOT_SUPPORTED,
        STATUS_INVALID_DEVICE_REQUEST,
    ];
    let flags = FILE_RENAME_POSIX_SEMANTICS
        | FILE_RENAME_IGNORE_READONLY_ATTRIBUTE
        | if replace { FILE_RENAME_REPLACE_IF_EXISTS } else { 0 };
    match rename_with(file, parent, name, flags, FileRenameInformationEx) {
        Err(status) if UNKNOWN.contains(&status) => rename(file, parent, name, replace),
        outcome => outcome,
    }
}

/// Gives an open file a further name, within a directory that is open as well.
pub fn link(file: &File, parent: &File, name: &[u16]) -> Outcome<()> {
    rename_with(file, parent, name, 0, FileLinkInformation)
}

/// New names for an open file. What is handed over has the same form for all of them.
fn rename_with(
    file: &File,
    parent: &File,
    name: &[u16],
    flags: u32,
    class: FILE_INFORMATION_CLASS,
) -> Outcome<()> {
    let header = size_of::<FILE_RENAME_INFORMATION>();
    let bytes = header + size_of_val(name);
    // In whole words, for the alignment that the structure needs.
    let mut buffer = vec![0_u64; bytes.div_ceil(size_of::<u64>())];
    let info = buffer.as_mut_ptr().cast::<FILE_RENAME_INFORMATION>();
    let mut status = IO_STATUS_BLOCK::default();
    // SAFETY: the buffer is aligned and has room for the structure and the whole name behind it;
    // both handles are open.
    let outcome = unsafe {
        (&raw mut (*info).Anonymous).write(FILE_RENAME_INFORMATION_0 { Flags: flags });
        (&raw mut (*info).RootDirectory).write(parent.as_raw_handle());
        (&raw mut (*info).FileNameLength).write(size_of_val(name) as u32);
        let target = (&raw mut (*info).FileName).cast::<u16>();
        ptr::copy_nonoverlapping(name.as_ptr(), target, name.len());
        NtSetInformationFile(
            file.as_raw_handle(),
            &raw mut status,
            info.cast(),
            bytes as u32,
            class,
        )
    };
    if outcome < 0 { Err(outcome) } else { Ok(()) }
}

/// What a reparse point says, as the system keeps it.
pub fn reparse_data(file: &File) -> io::Result<Vec<u8>> {
    let mut buffer = vec![0_u8; MAXIMUM_REPARSE_DATA_BUFFER_SIZE as usize];
    let mut length = 0;
    // SAFETY: the buffer has as many bytes as are said, and the handle is open.
    check(unsafe {
        DeviceIoControl(
            file.as_raw_handle(),
            FSCTL_GET_REPARSE_POINT,
            ptr::null(),
            0,
            buffer.as_mut_ptr().cast(),
            buffer.len() as u32,
            &raw mut length,
            ptr::null_mut(),
        )
    })?;
    buffer.truncate(length as usize);
    Ok(buffer)
}

/// Makes an open file or directory, which has to be empty, a reparse point.
pub fn set_reparse_data(file: &File, data: &[u8]) -> io::Result<()> {
    let mut unused = 0;
    // SAFETY: the data has as many bytes as are said, and the handle is open.
    check(unsafe {
        DeviceIoControl(
            file.as_raw_handle(),
            FSCTL_SET_REPARSE_POINT,
            data.as_ptr().cast(),
            data.len() as u32,
            ptr::null_mut(),
            0,
            &raw mut unused,
            ptr::null_mut(),
        )
    })
}

/// Everything in a directory, `.` and `..` too, in the host's order.
pub fn list(dir: &File) -> io::Result<Vec<Listed>> {
    let mut found = Vec::new();
    list_each(dir, |entry| {
        found.push(entry);
        Ok(())
    })?;
    Ok(found)
}

/// The same one by one, until `keep` has enough, which is an error.
pub fn list_each(dir: &File, mut keep: impl FnMut(Listed) -> io::Result<()>) -> io::Result<()> {
    const WORDS: usize = 8 << 10;
    let mut buffer = vec![0_u64; WORDS];
    let bytes = size_of_val(buffer.as_slice());
    let mut class = FileIdBothDirectoryRestartInfo;
    loop {
        // SAFETY: the buffer has that many bytes, and the handle is open.
        let ok = unsafe {
            let target = buffer.as_mut_ptr().cast();
            GetFileInformationByHandleEx(dir.as_raw_handle(), class, target, bytes as u32)
        };
        match check(ok) {
            Ok(()) => read_entries(&buffer, &mut keep)?,
            Err(error) if error.raw_os_error() == Some(ERROR_NO_MORE_FILES as i32) => return Ok(()),
            Err(error) => return Err(error),
        }
        class = FileIdBothDirectoryInfo;
    }
}

fn read_entries(buffer: &[u64], keep: &mut impl FnMut(Listed) -> io::Result<()>) -> io::Result<()> {
    let mut at = 0;
    loop {
        // SAFETY: the system has filled the buffer with entries, each aligned to 8 bytes, each
        // saying where the next one is and how long its name is.
        let (info, name) = unsafe {
            let info = buffer.as_ptr().byte_add(at).cast::<FILE_ID_BOTH_DIR_INFO>();
            let units = (*info).FileNameLength as usize / size_of::<u16>();
            let name = (&raw const (*info).FileName).cast::<u16>();
            (&*info, std::slice::from_raw_parts(name, units))
        };
        let facts = Facts {
            attributes: info.FileAttributes,
            size: info.EndOfFile as u64,
            allocated: info.AllocationSize as u64,
            created: info.CreationTime,
            accessed: info.LastAccessTime,
            written: info.LastWriteTime,
            changed: info.ChangeTime,
            links: 1,
            index: info.FileId as u64,
            tag: match info.FileAttributes & FILE_ATTRIBUTE_REPARSE_POINT {
                0 => 0,
                _ => info.EaSize, // where the system puts it
            },
            is_going: false,
        };
        keep(Listed { name: name.to_vec(), facts })?;
        if info.NextEntryOffset == 0 {
            return Ok(());
        }
        at += info.NextEntryOffset as usize;
    }
}

fn final_path(file: &File) -> io::Result<Vec<u16>> {
    let mut buffer = vec![0_u16; 512];
    loop {
        let units = buffer.len() as u32;
        // SAFETY: the buffer has that many units, and the handle is open.
        let length = unsafe {
            GetFinalPathNameByHandleW(file.as_raw_handle(), buffer.as_mut_ptr(), units, 0)
        } as usize;
        match length {
            0 => return Err(io::Error::last_os_error()),
            // Too short: the length is what it takes, with the NUL at the end.
            length if length >= buffer.len() => buffer.resize(length + 1, 0),
            length => {
                buffer.truncate(length);
                return Ok(buffer);
            }
        }
    }
}

fn get<T>(file: &File, class: FILE_INFO_BY_HANDLE_CLASS, info: &mut T) -> io::Result<()> {
    let target = ptr::from_mut(info).cast();
    // SAFETY: callers pair each class with its structure; the handle is open.
    check(unsafe {
        GetFileInformationByHandleEx(file.as_raw_handle(), class, target, size_of::<T>() as u32)
    })
}

fn set<T>(file: &File, class: FILE_INFO_BY_HANDLE_CLASS, info: &T) -> io::Result<()> {
    let source = ptr::from_ref(info).cast();
    // SAFETY: callers pair each class with its structure; the handle is open.
    check(unsafe {
        SetFileInformationByHandle(file.as_raw_handle(), class, source, size_of::<T>() as u32)
    })
}

fn is_unsupported(error: &io::Error) -> bool {
    const UNKNOWN: [u32; 3] =
        [ERROR_INVALID_FUNCTION, ERROR_INVALID_PARAMETER, ERROR_NOT_SUPPORTED];
    error.raw_os_error().is_some_and(|code| UNKNOWN.contains(&(code as u32)))
}

fn check(ok: i32) -> io::Result<()> {
    if ok == 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
