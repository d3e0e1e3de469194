//! Which file it is, whatever its name.

/// Identifies an inode while the machine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

#[cfg(unix)]
impl FileId {
    /// The identity of an open file.
    pub fn of(file: impl std::os::fd::AsFd) -> std::io::Result<Self> {
        Ok(Self::from(&rustix::fs::fstat(file)?))
    }
}

#[cfg(unix)]
impl From<&rustix::fs::Stat> for FileId {
    #[allow(clippy::unnecessary_cast)] // the fields' widths differ between platforms
    fn from(stat: &rustix::fs::Stat) -> Self {
        Self { device: stat.st_dev as u64, inode: stat.st_ino as u64 }
    }
}
