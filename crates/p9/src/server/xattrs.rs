//! Extended attributes: read through a number of their own, set when one is given up.

use std::sync::Arc;

use parking_lot::Mutex;

use super::fids::{Fid, NewXattr, Room, State};
use super::names;
use super::tree::Tree;
use crate::errno::Errno;
use crate::share::{Result, Share, XattrFlags};

/// What Linux bears.
const LARGEST: u64 = 64 << 10;

/// What one client may have in memory of them, through all its numbers.
const MOST_BYTES: usize = 16 << 20;

impl<S: Share> Tree<S> {
    /// A new number for a value, or without a name for the names of all. Says how long that is.
    pub(super) fn xattr_walk(&self, number: u32, new_number: u32, name: &[u8]) -> Result<u64> {
        let fid = self.fids.get(number)?;
        self.fids.room_for(new_number)?;
        let node = &fid.place.node;
        let value = if name.is_empty() {
            self.share.xattr_names(fid.caller, node)?
        } else {
            names::check_attribute(name)?;
            self.share.xattr(fid.caller, node, name)?
        };
        let size = value.len() as u64;
        let room = Room::take(&self.xattr_bytes, value.len(), MOST_BYTES)?;
        let new = Fid::new(fid.caller, Arc::clone(&fid.place), State::Xattr { value, _room: room });
        self.fids.add(new_number, new)?;
        Ok(size)
    }

    /// The number stands for the new value from then on.
    pub(super) fn xattr_create(
        &self,
        number: u32,
        name: &[u8],
        size: u64,
        flags: u32,
    ) -> Result<()> {
        names::check_attribute(name)?;
        if size > LARGEST {
            return Err(Errno::E2BIG);
        }
        if flags & !(XattrFlags::CREATE | XattrFlags::REPLACE) != 0 {
            return Err(Errno::EINVAL);
        }
        let fid = self.fids.get(number)?;
        let State::Walked = fid.state else { return Err(Errno::EINVAL) };
        let new = NewXattr {
            name: name.into(),
            size: size as usize,
            flags: XattrFlags(flags),
            value: Vec::new(),
            _room: Room::take(&self.xattr_bytes, size as usize, MOST_BYTES)?,
        };
        let state = State::NewXattr(Mutex::new(new));
        let new = Fid::new(fid.caller, Arc::clone(&fid.place), state);
        self.fids.replace(number, &fid, new)
    }

    pub(super) fn sets_xattr(&self, number: u32) -> bool {
        self.fids.get(number).is_ok_and(|fid| matches!(fid.state, State::NewXattr(_)))
    }

    /// Its number was given up.
    pub(super) fn set_xattr_of(&self, fid: &Fid<S>) -> Result<()> {
        let State::NewXattr(new) = &fid.state else { return Ok(()) };
        let new = new.lock();
        if new.value.len() != new.size {
            return Err(Errno::EINVAL);
        }
        let node = &fid.place.node;
        // Linux removes one by replacing it with nothing; nobody else says exactly that.
        if new.size == 0 && new.flags.0 == XattrFlags::REPLACE {
            return self.share.remove_xattr(fid.caller, node, &new.name);
        }
        self.share.set_xattr(fid.caller, node, &new.name, &new.value, new.flags)
    }
}

impl NewXattr {
    /// In any pieces, one behind the other.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> Result<u32> {
        let begin = usize::try_from(offset).map_err(|_| Errno::EINVAL)?;
        if begin > self.value.len() {
            return Err(Errno::EINVAL);
        }
        if begin + data.len() > self.size {
            return Err(Errno::ENOSPC);
        }
        self.value.truncate(begin);
        self.value.extend_from_slice(data);
        Ok(data.len() as u32)
    }
}
