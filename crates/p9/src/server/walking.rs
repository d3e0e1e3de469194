//! How numbers come to stand for files, and cease to.

use std::sync::Arc;

use super::fids::{Fid, Name, Place, State};
use super::names;
use super::tree::Tree;
use crate::errno::Errno;
use crate::share::{Caller, Result, Share};
use crate::wire::{NO_FID, NO_USER, Names, Qid, Qids};

/// Whom a client means that names nobody.
const NOBODY: u32 = 65_534;

impl<S: Share> Tree<S> {
    pub(super) fn attach(&self, number: u32, auth_fid: u32, uid: u32) -> Result<Qid> {
        if auth_fid != NO_FID {
            return Err(Errno::EBADF);
        }
        self.fids.room_for(number)?;
        let uid = if uid == NO_USER { NOBODY } else { uid };
        let caller = Caller { uid, gid: uid };
        let root = self.share.root(caller)?;
        let qid = root.qid;
        let place = self.fids.place(root, None)?;
        self.fids.add(number, Fid::new(caller, place, State::Walked))?;
        Ok(qid)
    }

    pub(super) fn walk(&self, number: u32, new_number: u32, names: Names<'_>) -> Result<Qids> {
        let fid = self.fids.get(number)?;
        match fid.state {
            State::Xattr { .. } | State::NewXattr(_) => return Err(Errno::EINVAL),
            State::Open { .. } if number == new_number => return Err(Errno::EINVAL),
            State::Open { .. } | State::Walked => {}
        }
        if number != new_number {
            self.fids.room_for(new_number)?;
        }
        let mut place = Arc::clone(&fid.place);
        let mut qids = Qids::default();
        for name in names.iter() {
            match self.step(fid.caller, &place, name) {
                Ok(next) => place = next,
                Err(errno) if qids.as_slice().is_empty() => return Err(errno),
                // So far, and no new number.
                Err(_) => return Ok(qids),
            }
            qids.push(place.qid);
        }
        let new = Fid::new(fid.caller, place, State::Walked);
        if number == new_number {
            self.fids.replace(number, &fid, new)?;
        } else {
            self.fids.add(new_number, new)?;
        }
        Ok(qids)
    }

    fn step(&self, caller: Caller, from: &Arc<Place<S>>, name: &[u8]) -> Result<Arc<Place<S>>> {
        if !from.qid.is_dir() {
            return Err(Errno::ENOTDIR);
        }
        if name == b".." {
            // Nothing is above the root.
            let above = from.came_by().map(|(dir, _)| dir);
            return Ok(above.unwrap_or_else(|| Arc::clone(from)));
        }
        names::check(name)?;
        let found = self.share.lookup(caller, &from.node, name)?;
        self.fids.place(found, Some((Arc::clone(from), name)))
    }

    /// Gives a number up, whatever else goes wrong.
    pub(super) fn clunk(&self, number: u32) -> Result<()> {
        let fid = self.give_up(number)?;
        self.set_xattr_of(&fid)
    }

    /// The number stands for nothing from then on.
    pub(super) fn give_up(&self, number: u32) -> Result<Arc<Fid<S>>> {
        let fid = self.fids.remove(number)?;
        if fid.holder.get().is_some() {
            self.locks.look_again();
        }
        Ok(fid)
    }

    /// Removes what a number stands for, and gives the number up even if that fails.
    pub(super) fn remove(&self, number: u32) -> Result<()> {
        let fid = self.give_up(number)?;
        let (dir, name) = self.name_of(&fid)?;
        match fid.place.qid.is_dir() {
            true => self.share.remove_dir(fid.caller, &dir.node, &name),
            false => self.share.unlink(fid.caller, &dir.node, &name),
        }
    }

    /// The name of what a number stands for, if it still has the one it was found by.
    pub(super) fn name_of(&self, fid: &Fid<S>) -> Result<Name<S>> {
        let (dir, name) = fid.place.came_by().ok_or(Errno::EBUSY)?;
        let found = self.share.lookup(fid.caller, &dir.node, &name)?;
        if found.qid.path != fid.place.qid.path {
            return Err(Errno::ENOENT);
        }
        Ok((dir, name))
    }

    /// By a number of the file itself, which goes with it.
    pub(super) fn rename(&self, number: u32, dir: u32, name: &[u8]) -> Result<()> {
        names::check(name)?;
        let (fid, to) = (self.fids.get(number)?, self.fids.get(dir)?);
        let to_dir = to.dir()?;
        let (from, old_name) = self.name_of(&fid)?;
        self.share.rename(fid.caller, (&from.node, &old_name), (to_dir, name))?;
        self.fids.moved(&fid.place, &to.place, name);
        Ok(())
    }
}
