//! What can be known of an entry without opening it.

use std::io;

use codeagent_common::EntryKind;
use rustix::fs::{FileType, Stat};
use serde::{Deserialize, Serialize};

use crate::file_id::FileId;

/// An entry at one moment. Two equal stamps mean that nobody touched the entry in between.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stamp {
    pub(crate) inode: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) links: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) rdev: u64,
    pub(crate) mtime: (i64, u32),
    pub(crate) ctime: (i64, u32),
}

impl Stamp {
    /// Of an open file.
    pub(crate) fn of(file: impl std::os::fd::AsFd) -> io::Result<(FileId, Self)> {
        Ok(Self::device_and_stamp(&rustix::fs::fstat(file)?))
    }

    #[allow(clippy::unnecessary_cast)] // the fields' widths differ between platforms
    pub(crate) fn device_and_stamp(stat: &Stat) -> (FileId, Self) {
        let stamp = Self {
            inode: stat.st_ino as u64,
            mode: stat.st_mode as u32,
            uid: stat.st_uid,
            gid: stat.st_gid,
            links: stat.st_nlink as u64,
            size: stat.st_size as u64,
            blocks: stat.st_blocks as u64,
            rdev: stat.st_rdev as u64,
            mtime: (stat.st_mtime as i64, stat.st_mtime_nsec as u32),
            ctime: (stat.st_ctime as i64, stat.st_ctime_nsec as u32),
        };
        (FileId::from(stat), stamp)
    }

    pub(crate) fn file_type(&self) -> FileType {
        FileType::from_raw_mode(self.mode)
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.file_type() == FileType::Directory
    }

    /// Set-user-id, or set-group-id where the group may run it: without that it means nothing.
    pub(crate) fn is_privileged(&self) -> bool {
        self.is_file() && (self.mode & 0o4000 != 0 || self.mode & 0o2010 == 0o2010)
    }

    pub(crate) fn is_file(&self) -> bool {
        self.file_type() == FileType::RegularFile
    }

    pub(crate) fn is_symlink(&self) -> bool {
        self.file_type() == FileType::Symlink
    }

    pub(crate) fn kind(&self) -> EntryKind {
        match self.file_type() {
            FileType::Directory => EntryKind::Directory,
            FileType::Symlink => EntryKind::Symlink,
            FileType::Fifo => EntryKind::Fifo,
            FileType::Socket => EntryKind::Socket,
            FileType::CharacterDevice | FileType::BlockDevice => EntryKind::Device,
            _ => EntryKind::File,
        }
    }

    pub(crate) fn permissions(&self) -> u32 {
        self.mode & 0o7777
    }

    pub(crate) fn held_bytes(&self) -> u64 {
        if self.is_file() { self.blocks * 512 } else { 0 }
    }

    /// Whether `now` shows what was left here at the time of `self`.
    ///
    /// The ctime of a file with several names moves whenever one of them comes or goes, which is
    /// not an edit; for such files it says nothing.
    pub(crate) fn still_describes(&self, now: &Stamp) -> bool {
        let several_names = self.links > 1 || now.links > 1;
        self.describes_but_for_links(now)
            && (self.is_dir() || several_names || self.ctime == now.ctime)
    }

    /// As [`Stamp::still_describes`], whatever the ctime says.
    pub(crate) fn describes_but_for_links(&self, now: &Stamp) -> bool {
        let same = self.mode == now.mode && self.uid == now.uid && self.gid == now.gid;
        if self.is_dir() {
            // A directory's times change when somebody works inside it; that is not an edit of
            // the directory. Nor is it another one because undo had to make it anew.
            return same;
        }
        same && self.inode == now.inode
            && self.size == now.size
            && self.rdev == now.rdev
            && self.mtime == now.mtime
    }

    /// Whether an object in the store is still the entry this stamp was taken of, before it moved.
    pub(crate) fn describes_object(&self, object: &Stamp) -> bool {
        self.inode == object.inode
            && self.file_type() == object.file_type()
            && (self.is_dir() || (self.size == object.size && self.mtime == object.mtime))
    }
}
