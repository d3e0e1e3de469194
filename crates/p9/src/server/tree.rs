//! The folder as one client knows it: its numbers, and what is done with them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use super::Limits;
use super::fids::Fids;
use crate::errno::Errno;
use crate::locks::Locks;
use crate::share::{NewNode, Result, Share};
use crate::wire::{Frame, Reply, Request};

pub(super) struct Tree<S: Share> {
    pub(super) share: S,
    pub(super) fids: Fids<S>,
    pub(super) locks: Arc<Locks>,
    pub(super) connection: u64,
    /// What values of extended attributes take.
    pub(super) xattr_bytes: Arc<AtomicUsize>,
    /// What was agreed on; 0 before anything was.
    msize: AtomicU32,
}

impl<S: Share> Tree<S> {
    pub(super) fn new(share: S, locks: Arc<Locks>, connection: u64, limits: Limits) -> Self {
        let fids = Fids::new(limits.fids);
        let xattr_bytes = Arc::default();
        Self { share, fids, locks, connection, xattr_bytes, msize: AtomicU32::new(0) }
    }

    pub(super) fn msize(&self) -> Option<u32> {
        Some(self.msize.load(Ordering::Relaxed)).filter(|msize| *msize > 0)
    }

    pub(super) fn set_msize(&self, msize: Option<u32>) {
        self.msize.store(msize.unwrap_or(0), Ordering::Relaxed);
    }

    /// Gives up every number.
    pub(super) fn clear(&self) {
        let given_up = self.fids.clear();
        self.locks.look_again();
        drop(given_up);
    }

    /// Does what is asked for and writes the answer. `is_cancelled` ends waiting for a lock.
    pub(super) fn serve(
        &self,
        tag: u16,
        request: Request<'_>,
        answer: &mut Frame,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<()> {
        use Request as R;
        let target;
        let holder;
        let reply = match request {
            R::Read { fid, offset, count } => return self.read(tag, fid, offset, count, answer),
            R::Readdir { fid, offset, count } => {
                return self.read_dir(tag, fid, offset, count, answer);
            }
            R::Getattr { fid, wanted } => {
                Reply::Getattr { attributes: self.attributes(fid, wanted)? }
            }
            R::Walk { fid, new_fid, names } => {
                Reply::Walk { qids: self.walk(fid, new_fid, names)? }
            }
            R::Clunk { fid } => self.clunk(fid).map(|()| Reply::Clunk {})?,
            R::Lopen { fid, flags } => {
                let (qid, iounit) = self.open(fid, flags)?;
                Reply::Lopen { qid, iounit }
            }
            R::Lcreate { fid, name, flags, mode, gid } => {
                let (qid, iounit) = self.create(fid, name, (flags, mode, gid))?;
                Reply::Lcreate { qid, iounit }
            }
            R::Write { fid, offset, data } => {
                Reply::Write { count: self.write(fid, offset, data.0)? }
            }
            R::Setattr { fid, valid, mode, uid, gid, size, accessed, modified } => {
                let owners = (uid, gid);
                self.change(fid, valid, mode, owners, size, (accessed, modified))?;
                Reply::Setattr {}
            }
            R::Unlinkat { dir, name, flags } => {
                self.unlink(dir, name, flags)?;
                Reply::Unlinkat {}
            }
            R::Mkdir { dir, name, mode, gid } => {
                Reply::Mkdir { qid: self.make(dir, name, gid, NewNode::Directory { mode })? }
            }
            R::Symlink { dir, name, target, gid } => {
                super::names::check_target(target)?;
                Reply::Symlink { qid: self.make(dir, name, gid, NewNode::Symlink { target })? }
            }
            R::Mknod { dir, name, mode, major, minor, gid } => {
                let new = NewNode::Node { mode, major, minor };
                Reply::Mknod { qid: self.make(dir, name, gid, new)? }
            }
            R::Renameat { old_dir, old_name, new_dir, new_name } => {
                self.rename_at((old_dir, old_name), (new_dir, new_name))?;
                Reply::Renameat {}
            }
            R::Rename { fid, dir, name } => {
                self.rename(fid, dir, name)?;
                Reply::Rename {}
            }
            R::Remove { fid } => {
                self.remove(fid)?;
                Reply::Remove {}
            }
            R::Link { dir, fid, name } => {
                self.link(dir, fid, name)?;
                Reply::Link {}
            }
            R::Readlink { fid } => {
                target = self.read_link(fid)?;
                Reply::Readlink { target: &target }
            }
            R::Xattrwalk { fid, new_fid, name } => {
                Reply::Xattrwalk { size: self.xattr_walk(fid, new_fid, name)? }
            }
            R::Xattrcreate { fid, name, size, flags } => {
                self.xattr_create(fid, name, size, flags)?;
                Reply::Xattrcreate {}
            }
            R::Fsync { fid, data_only } => {
                self.sync(fid, data_only != 0)?;
                Reply::Fsync {}
            }
            R::Lock { fid, kind, flags, start, length, process, client } => {
                let owner = (client, process);
                let status = self.lock(fid, kind, flags, (start, length), owner, is_cancelled)?;
                Reply::Lock { status }
            }
            R::Getlock { fid, kind, start, length, process, client } => {
                match self.find_lock(fid, kind, (start, length), (client, process))? {
                    Some(held) => {
                        holder = held;
                        Reply::Getlock {
                            kind: holder.range.kind(),
                            start: holder.range.start,
                            length: holder.range.length(),
                            process: holder.owner.process,
                            client: &holder.owner.client,
                        }
                    }
                    None => {
                        let kind = crate::wire::lock::UNLOCK;
                        Reply::Getlock { kind, start, length, process, client }
                    }
                }
            }
            R::Statfs { fid } => {
                let fid = self.fids.get(fid)?;
                Reply::Statfs { figures: self.share.figures(fid.caller, &fid.place.node)? }
            }
            R::Attach { fid, auth_fid, uid, .. } => {
                Reply::Attach { qid: self.attach(fid, auth_fid, uid)? }
            }
            // Whoever has the stream may use it: there is nothing to authenticate with.
            R::Auth { .. } => return Err(Errno::ENOENT),
            // Dealt with where conversations are.
            R::Version { .. } | R::Flush { .. } => return Err(Errno::EPROTO),
        };
        answer.reply(tag, &reply);
        Ok(())
    }
}
