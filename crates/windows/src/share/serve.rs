//! The requests of a guest.

use std::os::windows::fs::FileExt;

use codeagent_interceptor::WriteInterceptor;
use codeagent_p9::wire::{Qid, QidKind};
use codeagent_p9::{
    Attributes, Caller, Change, Created, Entry, Errno, FileSystemFigures, Found, NewNode,
    OpenFlags, Result, Share, XattrFlags,
};
use parking_lot::Mutex;
use windows_sys::Win32::Foundation::ERROR_HANDLE_EOF;
use windows_sys::Win32::Storage::FileSystem::{
    FILE_LIST_DIRECTORY, FILE_READ_DATA, FILE_WRITE_DATA,
};

use super::look::{Look, kind_of, qid};
use super::places::Node;
use super::{Here, Opened, WindowsShare, of_io, of_overlay, of_refusal};
use crate::host;
use crate::names::guest_name;
use crate::overlay::SetXattr;

const TYPE_BITS: u32 = 0o170_000;
const TYPE_FILE: u32 = 0o100_000;

impl<I: WriteInterceptor + 'static> WindowsShare<I> {
    fn found(&self, here: &Here) -> Result<Found<Node>> {
        let qid = self.attributes_of(here)?.qid;
        Ok(Found { node: self.places.node(here.id, here.place.clone()), qid })
    }

    /// Opens what is there, whatever was opened of it so far.
    fn opened(&self, here: &Here, flags: OpenFlags) -> Result<Opened> {
        let look = self.look(here, &self.posix(here)?)?;
        look.openable()?;
        let directory = look == Look::Directory;
        if directory && flags.mutates() {
            return Err(Errno::EISDIR);
        }
        if !directory && flags.has(OpenFlags::DIRECTORY) {
            return Err(Errno::ENOTDIR);
        }
        if flags.mutates() {
            self.writable()?;
        }
        let file = self.again(here, access(flags, directory))?;
        self.as_opened(file, here, flags)
    }

    fn as_opened(&self, file: std::fs::File, here: &Here, flags: OpenFlags) -> Result<Opened> {
        let inspected = flags.writes() && self.interceptor.inspects(here.place.path.as_path());
        let opened = Opened { file, id: here.id, flags, inspected, listing: Mutex::default() };
        if flags.has(OpenFlags::TRUNCATE) {
            self.truncate_opened(&opened, &here.place)?;
        }
        Ok(opened)
    }
}

/// To truncate a file takes what it takes to write to it.
fn access(flags: OpenFlags, directory: bool) -> u32 {
    if directory {
        return FILE_LIST_DIRECTORY;
    }
    let read = if flags.reads() { FILE_READ_DATA } else { 0 };
    let write = if flags.mutates() { FILE_WRITE_DATA } else { 0 };
    read | write
}

pub(super) fn is_dots(name: &[u16]) -> bool {
    const DOT: u16 = b'.' as u16;
    matches!(name, [DOT] | [DOT, DOT])
}

impl<I: WriteInterceptor + 'static> Share for WindowsShare<I> {
    type Node = Node;
    type Open = Opened;
    type Taken = ();

    fn may_wait(&self) -> bool {
        self.interceptor.may_wait()
    }

    fn taken(&self) {}

    fn root(&self, _: Caller) -> Result<Found<Node>> {
        let here = self.here(host::open_in(self.root.dir(), &[], 0, host::Kind::Directory))?;
        self.found(&here)
    }

    fn lookup(&self, _: Caller, dir: &Node, name: &[u8]) -> Result<Found<Node>> {
        let dir = self.dir_at(dir, 0)?;
        self.found(&self.visible_child(&dir, name, 0)?)
    }

    fn attributes(
        &self,
        _: Caller,
        node: &Node,
        open: Option<&Opened>,
        _wanted: u64,
    ) -> Result<Attributes> {
        let Some(open) = open else { return self.attributes_of(&self.at(node, 0)?) };
        let file = open.file.try_clone().map_err(of_io)?;
        let mut facts = host::facts_of(&file, open.id).map_err(of_io)?;
        let place = self.root.place_of_open(&file).unwrap_or_else(|_| {
            facts.is_going = true;
            node.place()
        });
        self.attributes_of(&Here { file, id: open.id, facts, place })
    }

    fn change(&self, _: Caller, node: &Node, open: Option<&Opened>, change: &Change) -> Result<()> {
        let _entered = self.interceptor.enter().map_err(of_refusal)?;
        self.change_attributes(node, open, change)
    }

    fn open(&self, _: Caller, node: &Node, flags: OpenFlags) -> Result<Opened> {
        let _entered = match flags.mutates() {
            true => Some(self.interceptor.enter().map_err(of_refusal)?),
            false => None,
        };
        self.opened(&self.at(node, 0)?, flags)
    }

    fn create(
        &self,
        caller: Caller,
        dir: &Node,
        name: &[u8],
        flags: OpenFlags,
        mode: u32,
    ) -> Result<Created<Node, Opened>> {
        let _entered = self.interceptor.enter().map_err(of_refusal)?;
        let dir = self.dir_at(dir, 0)?;
        match self.visible_child(&dir, name, 0) {
            Ok(_) if flags.has(OpenFlags::EXCLUSIVE) => Err(Errno::EEXIST),
            Ok(here) => {
                let open = self.opened(&here, flags)?;
                Ok(Created { found: self.found(&here)?, open })
            }
            Err(Errno::ENOENT) => {
                // Also what somebody may not read again he may read now.
                let access = access(flags, false);
                let here = self.make_file(caller, &dir, name, mode, access)?;
                let found = self.found(&here)?;
                let file = here.file.try_clone().map_err(of_io)?;
                let flags = OpenFlags(flags.0 & !OpenFlags::TRUNCATE); // nothing is in it
                Ok(Created { found, open: self.as_opened(file, &here, flags)? })
            }
            Err(error) => Err(error),
        }
    }

    fn read(
        &self,
        _: Caller,
        _: &Node,
        open: &Opened,
        offset: u64,
        into: &mut [u8],
    ) -> Result<usize> {
        if !open.flags.reads() {
            return Err(Errno::EBADF);
        }
        match open.file.seek_read(into, offset) {
            Err(error) if error.raw_os_error() == Some(ERROR_HANDLE_EOF as i32) => Ok(0),
            outcome => outcome.map_err(of_io),
        }
    }

    fn write(
        &self,
        _: Caller,
        node: &Node,
        open: &Opened,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize> {
        let _entered = self.interceptor.enter().map_err(of_refusal)?;
        self.write_at(node, open, offset, bytes)
    }

    fn list(
        &self,
        _: Caller,
        node: &Node,
        open: &Opened,
        offset: u64,
        give: &mut dyn FnMut(Entry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.at(node, 0)?;
        if !dir.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let mut kept = open.listing.lock();
        if offset == 0 {
            *kept = None;
        }
        let listing = match kept.take() {
            Some(listing) => listing,
            None => self.listings.read(&open.file).map_err(of_io)?,
        };
        // What is above the root is nobody's business: to a guest, it is the root.
        let above = match dir.place.split() {
            Some((above, _)) => crate::volume_path::VolumePath::existing(above)
                .and_then(|above| self.walk(&above, 0).ok())
                .map_or(dir.facts.index, |above| above.facts.index),
            None => dir.facts.index,
        };
        let dots = [(&b"."[..], dir.facts.index), (b"..", above)];
        for (at, (name, path)) in dots.into_iter().enumerate().skip(usize_of(offset)) {
            let qid = Qid { kind: QidKind::DIRECTORY, version: 0, path };
            if !give(Entry { qid, offset: at as u64 + 1, kind: 4, name }) {
                *kept = Some(listing);
                return Ok(());
            }
        }
        let behind = usize_of(offset).saturating_sub(dots.len());
        if offset > 0 && behind >= listing.entries.len() {
            return Ok(()); // it has read all
        }
        for (at, entry) in listing.entries.iter().enumerate().skip(behind) {
            let kind = self.entry_kind(&dir, entry)?;
            let qid = Qid { version: 0, ..qid(&entry.facts, u32::from(kind) << 12) };
            let name = guest_name(&entry.name);
            let offset = (at + dots.len()) as u64 + 1;
            if !give(Entry { qid, offset, kind, name: &name }) {
                break;
            }
        }
        *kept = Some(listing);
        Ok(())
    }

    fn read_link(&self, _: Caller, node: &Node) -> Result<Vec<u8>> {
        let here = self.at(node, 0)?;
        match self.look(&here, &self.posix(&here)?)? {
            Look::Link(target) => Ok(target),
            _ => Err(Errno::EINVAL),
        }
    }

    fn make(&self, caller: Caller, dir: &Node, name: &[u8], new: NewNode<'_>) -> Result<Qid> {
        let _entered = self.interceptor.enter().map_err(of_refusal)?;
        let dir = self.dir_at(dir, 0)?;
        if self.visible_child(&dir, name, 0).is_ok() {
            return Err(Errno::EEXIST);
        }
        let made = match new {
            NewNode::Directory { mode } => self.make_dir(caller, &dir, name, mode)?,
            NewNode::Symlink { target } => self.make_link(caller, &dir, name, target)?,
            NewNode::Node { mode, .. } if matches!(mode & TYPE_BITS, 0 | TYPE_FILE) => {
                self.make_file(caller, &dir, name, mode, 0)?
            }
            // Windows has none of them.
            NewNode::Node { .. } => return Err(Errno::EPERM),
        };
        // What a link is can be seen only after it has been told.
        let made = self.again(&made, 0).and_then(|file| self.here(Ok(file)))?;
        Ok(self.attributes_of(&made)?.qid)
    }

    fn link(&self, _: Caller, node: &Node, dir: &Node, name: &[u8]) -> Result<()> {
        let _entered = self.interceptor.enter().map_err(of_refusal)?;
        self.add_name(node, dir, name)
    }

    fn unlink(&self, _: Caller, dir: &Node, name: &[u8]) -> Result<()> {
        let _entered = self.interceptor.enter().map_err(of_refusal)?;
        self.remove_name(dir, name, false)
    }

    fn remove_dir(&self, _: Caller, dir: &Node, name: &[u8]) -> Result<()> {
        let _entered = self.interceptor.enter().map_err(of_refusal)?;
        self.remove_name(dir, name, true)
    }

    fn rename(&self, _: Caller, from: (&Node, &[u8]), to: (&Node, &[u8])) -> Result<()> {
        let _entered = self.interceptor.enter().map_err(of_refusal)?;
        self.move_name(from, to)
    }

    fn xattr(&self, _: Caller, node: &Node, name: &[u8]) -> Result<Vec<u8>> {
        let here = self.at(node, 0)?;
        let kind = kind_of(&here.facts);
        self.overlay.xattr(here.place.path.as_path(), kind, name).map_err(of_overlay)
    }

    fn xattr_names(&self, _: Caller, node: &Node) -> Result<Vec<u8>> {
        let here = self.at(node, 0)?;
        let kind = kind_of(&here.facts);
        let names = self.overlay.xattrs(here.place.path.as_path(), kind).map_err(of_overlay)?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    fn set_xattr(
        &self,
        _: Caller,
        node: &Node,
        name: &[u8],
        value: &[u8],
        flags: XattrFlags,
    ) -> Result<()> {
        let how = match flags.0 {
            0 => SetXattr::Always,
            XattrFlags::CREATE => SetXattr::Create,
            XattrFlags::REPLACE => SetXattr::Replace,
            _ => return Err(Errno::EINVAL),
        };
        let _entered = self.interceptor.enter().map_err(of_refusal)?;
        self.change_xattrs(node, name, |place, kind| {
            self.overlay.set_xattr(place.path.as_path(), kind, name, value, how)
        })
    }

    fn remove_xattr(&self, _: Caller, node: &Node, name: &[u8]) -> Result<()> {
        let _entered = self.interceptor.enter().map_err(of_refusal)?;
        self.change_xattrs(node, name, |place, kind| {
            self.overlay.remove_xattr(place.path.as_path(), kind, name)
        })
    }

    fn sync(&self, _: Caller, _: &Node, open: &Opened, _data_only: bool) -> Result<()> {
        match open.flags.writes() {
            true => open.file.sync_all().map_err(of_io),
            // Nothing was written through it, and the host flushes nothing else.
            false => Ok(()),
        }
    }

    fn figures(&self, _: Caller, _: &Node) -> Result<FileSystemFigures> {
        const BLOCK: u32 = 4096;
        const V9FS_MAGIC: u32 = 0x0102_1997;
        let (total, free) = self.root.space().map_err(of_io)?;
        let free = free / u64::from(BLOCK);
        Ok(FileSystemFigures {
            kind: V9FS_MAGIC,
            block_size: BLOCK,
            blocks: total / u64::from(BLOCK),
            free,
            available: free,
            files: 0,
            free_files: 0,
            id: 0,
            longest_name: 255,
        })
    }
}

fn usize_of(offset: u64) -> usize {
    usize::try_from(offset).unwrap_or(usize::MAX)
}
