//! What is done with files and directories.

use super::fids::{Fid, State};
use super::names;
use super::tree::Tree;
use crate::errno::Errno;
use crate::share::{Attributes, Change, NewNode, NewTime, OpenFlags, Result, Share, Time};
use crate::wire::{
    AT_REMOVEDIR, DATA_OVERHEAD, Frame, HEADER, Qid, READ_HEADER, Request, WireEntry, lock, setattr,
};

/// How long a request may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pace {
    /// It waits for nobody.
    Quick,
    /// It waits for whoever the undo engine waits for, if it waits for anybody.
    Mutation,
    /// As long as the disk.
    Slow,
    /// As long as somebody else holds what it wants.
    Lock,
}

pub(super) fn pace<S: Share>(tree: &Tree<S>, request: &Request<'_>) -> Pace {
    use Request as R;
    match *request {
        R::Lopen { flags, .. } if OpenFlags(flags).mutates() => Pace::Mutation,
        R::Lcreate { .. }
        | R::Symlink { .. }
        | R::Mknod { .. }
        | R::Rename { .. }
        | R::Setattr { .. }
        | R::Link { .. }
        | R::Mkdir { .. }
        | R::Renameat { .. }
        | R::Unlinkat { .. }
        | R::Write { .. }
        | R::Remove { .. } => Pace::Mutation,
        // What an attribute becomes is done when its number is given up.
        R::Clunk { fid } if tree.sets_xattr(fid) => Pace::Mutation,
        R::Fsync { .. } => Pace::Slow,
        R::Lock { flags, .. } if flags & lock::BLOCK != 0 => Pace::Lock,
        _ => Pace::Quick,
    }
}

impl<S: Share> Tree<S> {
    /// How many bytes of data fit into a message.
    pub(super) fn data_size(&self) -> u32 {
        self.msize().unwrap_or_default().saturating_sub(DATA_OVERHEAD)
    }

    /// How many fit behind the head of the answer itself.
    fn room_for_data(&self) -> u32 {
        self.msize().unwrap_or_default().saturating_sub(READ_HEADER as u32)
    }

    pub(super) fn open(&self, number: u32, flags: u32) -> Result<(Qid, u32)> {
        let fid = self.fids.get(number)?;
        let State::Walked = fid.state else { return Err(Errno::EINVAL) };
        let (flags, qid) = (OpenFlags(flags).checked()?, fid.place.qid);
        if qid.is_dir() && flags.mutates() {
            return Err(Errno::EISDIR);
        }
        if !qid.is_dir() && flags.has(OpenFlags::DIRECTORY) {
            return Err(Errno::ENOTDIR);
        }
        let open = self.share.open(fid.caller, &fid.place.node, flags)?;
        let state = State::Open { open, flags };
        let new = Fid::new(fid.caller, std::sync::Arc::clone(&fid.place), state);
        self.fids.replace(number, &fid, new)?;
        Ok((qid, self.data_size()))
    }

    /// The number of the directory stands for the new file then.
    pub(super) fn create(
        &self,
        number: u32,
        name: &[u8],
        (flags, mode, gid): (u32, u32, u32),
    ) -> Result<(Qid, u32)> {
        names::check(name)?;
        let fid = self.fids.get(number)?;
        let State::Walked = fid.state else { return Err(Errno::EINVAL) };
        let (dir, flags) = (fid.dir()?, OpenFlags(flags).checked()?);
        let created = self.share.create(fid.caller_with(gid), dir, name, flags, mode & 0o7777)?;
        let qid = created.found.qid;
        let came_by = Some((std::sync::Arc::clone(&fid.place), name));
        let place = self.fids.place(created.found, came_by)?;
        let new = Fid::new(fid.caller, place, State::Open { open: created.open, flags });
        self.fids.replace(number, &fid, new)?;
        Ok((qid, self.data_size()))
    }

    /// Straight into the answer.
    pub(super) fn read(
        &self,
        tag: u16,
        number: u32,
        offset: u64,
        count: u32,
        answer: &mut Frame,
    ) -> Result<()> {
        let fid = self.fids.get(number)?;
        let most = count.min(self.room_for_data()) as usize;
        check_range(offset, most)?;
        answer.begin(117, tag);
        answer.append(&[0; 4]);
        let room = answer.room(most);
        let got = match &fid.state {
            State::Open { open, flags } => {
                if !flags.reads() {
                    return Err(Errno::EBADF);
                }
                if fid.place.qid.is_dir() {
                    return Err(Errno::EISDIR);
                }
                self.share.read(fid.caller, &fid.place.node, open, offset, room)?
            }
            State::Xattr { value, .. } => {
                let rest = usize::try_from(offset).ok().and_then(|offset| value.get(offset..));
                let rest = rest.unwrap_or_default();
                let got = rest.len().min(most);
                room[..got].copy_from_slice(&rest[..got]);
                got
            }
            State::Walked | State::NewXattr(_) => return Err(Errno::EBADF),
        };
        let got = got.min(most);
        answer.filled(got);
        answer.patch(HEADER, got as u32);
        answer.finish();
        Ok(())
    }

    pub(super) fn read_dir(
        &self,
        tag: u16,
        number: u32,
        offset: u64,
        count: u32,
        answer: &mut Frame,
    ) -> Result<()> {
        let fid = self.fids.get(number)?;
        let (open, _) = fid.opened()?;
        if !fid.place.qid.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        let most = count.min(self.room_for_data()) as usize;
        answer.begin(41, tag);
        answer.append(&[0; 4]);
        let mut too_large = false;
        self.share.list(fid.caller, &fid.place.node, open, offset, &mut |entry| {
            let (qid, offset, kind) = (entry.qid, entry.offset, entry.kind);
            let entry = WireEntry { qid, offset, kind, name: entry.name };
            let used = answer.length() - READ_HEADER;
            if used + entry.size() > most {
                too_large |= used == 0;
                return false;
            }
            answer.entry(&entry);
            true
        })?;
        if too_large {
            // An empty answer would be the end of the directory.
            return Err(Errno::EINVAL);
        }
        answer.patch(HEADER, (answer.length() - READ_HEADER) as u32);
        answer.finish();
        Ok(())
    }

    pub(super) fn write(&self, number: u32, offset: u64, data: &[u8]) -> Result<u32> {
        let fid = self.fids.get(number)?;
        check_range(offset, data.len())?;
        match &fid.state {
            State::Open { open, flags } => {
                if !flags.writes() {
                    return Err(Errno::EBADF);
                }
                let node = &fid.place.node;
                let written = self.share.write(fid.caller, node, open, offset, data)?;
                Ok(written.min(data.len()) as u32)
            }
            State::NewXattr(new) => new.lock().write(offset, data),
            State::Walked | State::Xattr { .. } => Err(Errno::EBADF),
        }
    }

    pub(super) fn attributes(&self, number: u32, wanted: u64) -> Result<Attributes> {
        let fid = self.fids.get(number)?;
        self.share.attributes(fid.caller, &fid.place.node, fid.open(), wanted)
    }

    pub(super) fn change(
        &self,
        number: u32,
        valid: u32,
        mode: u32,
        (uid, gid): (u32, u32),
        size: u64,
        (accessed, modified): (Time, Time),
    ) -> Result<()> {
        let fid = self.fids.get(number)?;
        let has = |bit| valid & bit != 0;
        let time = |wanted, set, at: Time| match (has(wanted), has(set)) {
            (false, _) => Ok(None),
            (true, false) => Ok(Some(NewTime::Now)),
            (true, true) if at.nanoseconds < 1_000_000_000 => Ok(Some(NewTime::At(at))),
            (true, true) => Err(Errno::EINVAL),
        };
        let change = Change {
            mode: has(setattr::MODE).then_some(mode & 0o7777),
            uid: has(setattr::UID).then_some(uid),
            gid: has(setattr::GID).then_some(gid),
            size: has(setattr::SIZE).then_some(size),
            accessed: time(setattr::ACCESSED, setattr::ACCESSED_SET, accessed)?,
            modified: time(setattr::MODIFIED, setattr::MODIFIED_SET, modified)?,
            changed_now: has(setattr::CHANGED),
        };
        if change.size.is_some() {
            check_range(size, 0)?;
            if fid.place.qid.is_dir() {
                return Err(Errno::EISDIR);
            }
        }
        let open = match &fid.state {
            State::Open { open, flags } if flags.writes() => Some(open),
            _ => None,
        };
        self.share.change(fid.caller, &fid.place.node, open, &change)
    }

    pub(super) fn make(&self, number: u32, name: &[u8], gid: u32, new: NewNode<'_>) -> Result<Qid> {
        names::check(name)?;
        let fid = self.fids.get(number)?;
        let new = match new {
            NewNode::Directory { mode } => NewNode::Directory { mode: mode & 0o7777 },
            new => new,
        };
        self.share.make(fid.caller_with(gid), fid.dir()?, name, new)
    }

    pub(super) fn link(&self, dir: u32, number: u32, name: &[u8]) -> Result<()> {
        names::check(name)?;
        let (dir, fid) = (self.fids.get(dir)?, self.fids.get(number)?);
        let into = dir.dir()?;
        if fid.place.qid.is_dir() {
            return Err(Errno::EPERM);
        }
        self.share.link(dir.caller, &fid.place.node, into, name)
    }

    pub(super) fn unlink(&self, number: u32, name: &[u8], flags: u32) -> Result<()> {
        names::check(name)?;
        let fid = self.fids.get(number)?;
        match flags {
            0 => self.share.unlink(fid.caller, fid.dir()?, name),
            AT_REMOVEDIR => self.share.remove_dir(fid.caller, fid.dir()?, name),
            _ => Err(Errno::EINVAL),
        }
    }

    pub(super) fn rename_at(&self, from: (u32, &[u8]), to: (u32, &[u8])) -> Result<()> {
        names::check(from.1)?;
        names::check(to.1)?;
        let (old, new) = (self.fids.get(from.0)?, self.fids.get(to.0)?);
        self.share.rename(old.caller, (old.dir()?, from.1), (new.dir()?, to.1))
    }

    pub(super) fn read_link(&self, number: u32) -> Result<Vec<u8>> {
        let fid = self.fids.get(number)?;
        let target = self.share.read_link(fid.caller, &fid.place.node)?;
        let most = (self.msize().unwrap_or_default() as usize).saturating_sub(HEADER + 2);
        if target.len() > most.min(u16::MAX.into()) {
            return Err(Errno::EMSGSIZE);
        }
        Ok(target)
    }

    pub(super) fn sync(&self, number: u32, data_only: bool) -> Result<()> {
        let fid = self.fids.get(number)?;
        let (open, _) = fid.opened()?;
        self.share.sync(fid.caller, &fid.place.node, open, data_only)
    }
}

/// No file has bytes that a signed number cannot say.
fn check_range(offset: u64, count: usize) -> Result<()> {
    match offset.checked_add(count as u64) {
        Some(end) if i64::try_from(end).is_ok() => Ok(()),
        _ => Err(Errno::EINVAL),
    }
}
