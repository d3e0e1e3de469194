//! Locks, as requests ask for them.

use std::sync::atomic::Ordering;

use super::tree::Tree;
use crate::errno::Errno;
use crate::locks::{Held, Owner, Range, Unlock};
use crate::share::{Result, Share};
use crate::wire::lock;

impl<S: Share> Tree<S> {
    pub(super) fn lock(
        &self,
        number: u32,
        kind: u8,
        flags: u32,
        (start, length): (u64, u64),
        (client, process): (&[u8], u32),
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<u8> {
        let fid = self.fids.get(number)?;
        fid.opened()?;
        let owner = Owner::new(self.connection, client, process)?;
        let range = Range::new(kind == lock::WRITE, start, length)?;
        let file = fid.place.qid.path;
        match kind {
            lock::UNLOCK => {
                let (holder, would_wait) = (fid.holder.get(), flags & lock::BLOCK != 0);
                let unlock = Unlock { owner: &owner, holder, would_wait };
                self.locks.unlock(file, unlock, &range)?;
                return Ok(lock::SUCCESS);
            }
            lock::READ | lock::WRITE => {}
            _ => return Err(Errno::EINVAL),
        }
        let holder = fid.holder.get_or_init(|| self.locks.holder(self.connection, file));
        let until = || is_cancelled() || fid.given_up.load(Ordering::Acquire);
        let locked = match flags & lock::BLOCK {
            0 => self.locks.lock(holder, &owner, &range)?,
            // Even who cannot wait gets what is free.
            _ => {
                self.locks.lock(holder, &owner, &range)?
                    || self.locks.wait(holder, &owner, &range, until)?
            }
        };
        Ok(if locked { lock::SUCCESS } else { lock::BLOCKED })
    }

    /// What would be in the way.
    pub(super) fn find_lock(
        &self,
        number: u32,
        kind: u8,
        (start, length): (u64, u64),
        (client, process): (&[u8], u32),
    ) -> Result<Option<Held>> {
        let fid = self.fids.get(number)?;
        fid.opened()?;
        let exclusive = match kind {
            lock::READ => false,
            // Linux asks for the holder without saying what it would want.
            lock::WRITE | lock::UNLOCK => true,
            _ => return Err(Errno::EINVAL),
        };
        let owner = Owner::new(self.connection, client, process)?;
        let range = Range::new(exclusive, start, length)?;
        Ok(self.locks.conflict(fid.place.qid.path, &owner, &range))
    }
}
