//! `fs.*`

use codeagent_common::ByteString;
use codeagent_stdio::operations::{
    FileContent, FsList, FsRead, FsStatus, FsStatusQuery, Listing, ListingEntry,
};
use codeagent_stdio::{Failure, Outcome};
use codeagent_tools::{Folder, ToolError};
use codeagent_vm::Backend;

use super::{Desk, failure, within};
use crate::error::SandboxError;
use crate::executor::Isolation;
use crate::session::{FolderInfo, ViewSetting};

impl Desk {
    pub(crate) fn list(&self, request: FsList) -> Outcome<Listing> {
        let (_, folder) = self.directory(request.directory.as_ref())?;
        let path = within(&folder, &request.path)?;
        let offset = usize::try_from(request.offset).unwrap_or(usize::MAX);
        let listing = open(&folder)?
            .list_directory(path.as_path(), offset, request.limit as usize)
            .map_err(refused)?;
        let entry = |entry: codeagent_tools::ListedEntry| ListingEntry {
            name: ByteString::from(entry.name),
            kind: entry.kind,
            size_bytes: entry.size_bytes,
            modified_at_ms: entry.modified.into(),
        };
        Ok(Listing {
            entries: listing.entries.into_iter().map(entry).collect(),
            entry_count: listing.count as u64,
        })
    }

    pub(crate) fn read(&self, request: FsRead) -> Outcome<FileContent> {
        let (_, folder) = self.directory(request.directory.as_ref())?;
        let path = within(&folder, &request.path)?;
        let read = open(&folder)?
            .read_bytes(path.as_path(), request.offset_bytes, request.limit_bytes)
            .map_err(refused)?;
        Ok(FileContent {
            content: ByteString::from(read.content),
            size_bytes: read.size_bytes,
            at_end: read.at_end,
        })
    }

    /// On Linux names and modes come through as they are.
    pub(crate) fn fs_status(&self, request: FsStatusQuery) -> Outcome<FsStatus> {
        let (session, _) = self.directory(request.directory.as_ref())?;
        let status = session.status().map_err(failure)?;
        let backend = front_end(status.isolation, status.view, status.backend).to_owned();
        Ok(FsStatus { backend, warnings: vec![] })
    }
}

/// What commands see the folders through, unless they are known to only read.
pub(crate) fn front_end(
    isolation: Option<Isolation>,
    view: ViewSetting,
    backend: Backend,
) -> &'static str {
    match (isolation, view) {
        (Some(Isolation::Host) | None, _) => "none",
        (Some(Isolation::Vm), _) => backend.name(),
        (Some(Isolation::Namespace), ViewSetting::Auto | ViewSetting::Transactional) => "overlay",
        (Some(Isolation::Namespace), ViewSetting::Live) => "fuse",
        (Some(Isolation::Namespace), ViewSetting::ReadOnly) => "bind",
    }
}

pub(crate) fn open(folder: &FolderInfo) -> Outcome<Folder> {
    let unusable = |source| SandboxError::WorkingDir { path: folder.path.clone(), source };
    Folder::open(&folder.path).map_err(|error| failure(unusable(error)))
}

fn refused(error: ToolError) -> Failure {
    Failure::new(error.code(), error.to_string()).hinted(error.hint())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_commands_see_the_folders_through_has_a_name() {
        let views = [ViewSetting::Auto, ViewSetting::Live, ViewSetting::ReadOnly];
        let named = |isolation| views.map(|view| front_end(isolation, view, Backend::Virtiofs));
        assert_eq!(named(Some(Isolation::Vm)), ["virtiofs"; 3]);
        assert_eq!(front_end(Some(Isolation::Vm), ViewSetting::Live, Backend::NineP), "9p");
        assert_eq!(named(Some(Isolation::Namespace)), ["overlay", "fuse", "bind"]);
        assert_eq!(named(Some(Isolation::Host)), ["none"; 3]);
        assert_eq!(named(None), ["none"; 3]);
    }
}
