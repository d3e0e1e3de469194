//! What a client's numbers stand for.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::errno::Errno;
use crate::locks::Holder;
use crate::share::{Caller, Found, OpenFlags, Result, Share, XattrFlags};
use crate::wire::Qid;

/// A directory, and a name in it.
pub(super) type Name<S> = (Arc<Place<S>>, Box<[u8]>);

/// A node, and the way that led to it.
pub(super) struct Place<S: Share> {
    pub(super) node: S::Node,
    pub(super) qid: Qid,
    /// None for the root. May be out of date: then the name leads to another file, or to none.
    came_by: Mutex<Option<Name<S>>>,
    /// How many places a client has.
    count: Arc<AtomicUsize>,
}

impl<S: Share> Place<S> {
    pub(super) fn new(
        found: Found<S::Node>,
        came_by: Option<(Arc<Self>, &[u8])>,
        count: &Arc<AtomicUsize>,
    ) -> Arc<Self> {
        count.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            node: found.node,
            qid: found.qid,
            came_by: Mutex::new(came_by.map(|(dir, name)| (dir, name.into()))),
            count: Arc::clone(count),
        })
    }

    /// The directory it was found in, and its name there.
    pub(super) fn came_by(&self) -> Option<Name<S>> {
        self.came_by.lock().clone()
    }

    /// It has another name now. Only [`Fids::moved`] may call it.
    fn move_to(self: &Arc<Self>, dir: &Arc<Self>, name: &[u8]) {
        // Ways that are out of date must not become a circle.
        let mut above = Some(Arc::clone(dir));
        while let Some(place) = above {
            if Arc::ptr_eq(&place, self) {
                *self.came_by.lock() = None;
                return;
            }
            above = place.came_by().map(|(dir, _)| dir);
        }
        *self.came_by.lock() = Some((Arc::clone(dir), name.into()));
    }
}

impl<S: Share> Drop for Place<S> {
    /// One after the other: a way can be longer than a stack is deep.
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        let mut next = self.came_by.get_mut().take();
        while let Some((dir, _)) = next {
            next = Arc::into_inner(dir).and_then(|mut dir| dir.came_by.get_mut().take());
        }
    }
}

/// What a number stands for. It never changes: when a file is opened, its number stands for another
/// of these, and requests that are at work with the former one go on with that.
pub(super) struct Fid<S: Share> {
    pub(super) caller: Caller,
    pub(super) place: Arc<Place<S>>,
    pub(super) state: State<S>,
    /// There as soon as it has locked something; gives that up when it is dropped.
    pub(super) holder: OnceLock<Holder>,
    /// The number stands for it no longer: whoever waits on its behalf need not.
    pub(super) given_up: AtomicBool,
}

pub(super) enum State<S: Share> {
    Walked,
    Open {
        open: S::Open,
        flags: OpenFlags,
    },
    /// A value, or the list of names.
    Xattr {
        value: Vec<u8>,
        _room: Room,
    },
    NewXattr(Mutex<NewXattr>),
}

/// An attribute that is set when its number is given up.
#[derive(Debug)]
pub(super) struct NewXattr {
    pub(super) name: Box<[u8]>,
    pub(super) size: usize,
    pub(super) flags: XattrFlags,
    pub(super) value: Vec<u8>,
    pub(super) _room: Room,
}

/// Memory that a client's numbers take, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    taken: Arc<AtomicUsize>,
    bytes: usize,
}

impl Room {
    /// Of `most`, which all that count here share.
    pub(super) fn take(taken: &Arc<AtomicUsize>, bytes: usize, most: usize) -> Result<Self> {
        let room = Self { taken: Arc::clone(taken), bytes };
        if taken.fetch_add(bytes, Ordering::Relaxed) + bytes > most {
            return Err(Errno::ENOSPC);
        }
        Ok(room)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl<S: Share> Fid<S> {
    pub(super) fn new(caller: Caller, place: Arc<Place<S>>, state: State<S>) -> Arc<Self> {
        let (holder, given_up) = (OnceLock::new(), AtomicBool::new(false));
        Arc::new(Self { caller, place, state, holder, given_up })
    }

    pub(super) fn open(&self) -> Option<&S::Open> {
        match &self.state {
            State::Open { open, .. } => Some(open),
            _ => None,
        }
    }

    /// What it was opened as, if it was.
    pub(super) fn opened(&self) -> Result<(&S::Open, OpenFlags)> {
        match &self.state {
            State::Open { open, flags } => Ok((open, *flags)),
            _ => Err(Errno::EBADF),
        }
    }

    /// On behalf of the same user, with another group.
    pub(super) fn caller_with(&self, gid: u32) -> Caller {
        Caller { gid, ..self.caller }
    }

    /// The node that new names are made in.
    pub(super) fn dir(&self) -> Result<&S::Node> {
        if self.place.qid.is_dir() { Ok(&self.place.node) } else { Err(Errno::ENOTDIR) }
    }
}

pub(super) struct Fids<S: Share> {
    all: Mutex<HashMap<u32, Arc<Fid<S>>, RandomState>>,
    most: usize,
    places: Arc<AtomicUsize>,
    /// Held while a way is looked up and changed: two changes that did not know of each other could
    /// make a circle, which nobody would ever drop.
    moving: Mutex<()>,
}

impl<S: Share> Fids<S> {
    pub(super) fn new(most: usize) -> Self {
        Self { all: Mutex::default(), most, places: Arc::default(), moving: Mutex::default() }
    }

    pub(super) fn get(&self, number: u32) -> Result<Arc<Fid<S>>> {
        self.all.lock().get(&number).cloned().ok_or(Errno::EBADF)
    }

    /// Whether there could be a new one, before there is something to undo.
    pub(super) fn room_for(&self, number: u32) -> Result<()> {
        let all = self.all.lock();
        if all.contains_key(&number) {
            return Err(Errno::EINVAL);
        }
        if all.len() >= self.most { Err(Errno::EMFILE) } else { Ok(()) }
    }

    /// A number that stands for nothing yet.
    pub(super) fn add(&self, number: u32, fid: Arc<Fid<S>>) -> Result<()> {
        let mut all = self.all.lock();
        let room = all.len() < self.most;
        match all.entry(number) {
            Entry::Occupied(_) => Err(Errno::EINVAL),
            Entry::Vacant(_) if !room => Err(Errno::EMFILE),
            Entry::Vacant(place) => {
                place.insert(fid);
                Ok(())
            }
        }
    }

    /// Unless the number stands for something else meanwhile.
    pub(super) fn replace(&self, number: u32, old: &Arc<Fid<S>>, new: Arc<Fid<S>>) -> Result<()> {
        match self.all.lock().get_mut(&number) {
            Some(current) if Arc::ptr_eq(current, old) => {
                *current = new;
                Ok(())
            }
            _ => Err(Errno::EBADF),
        }
    }

    pub(super) fn remove(&self, number: u32) -> Result<Arc<Fid<S>>> {
        let fid = self.all.lock().remove(&number).ok_or(Errno::EBADF)?;
        fid.given_up.store(true, Ordering::Release);
        Ok(fid)
    }

    pub(super) fn clear(&self) -> Vec<Arc<Fid<S>>> {
        let all: Vec<_> = self.all.lock().drain().map(|(_, fid)| fid).collect();
        all.iter().for_each(|fid| fid.given_up.store(true, Ordering::Release));
        all
    }

    /// A place on the way, unless there are far more than a client has numbers for.
    pub(super) fn place(
        &self,
        found: Found<S::Node>,
        came_by: Option<(Arc<Place<S>>, &[u8])>,
    ) -> Result<Arc<Place<S>>> {
        if self.places.load(Ordering::Relaxed) >= self.most.saturating_mul(2) {
            return Err(Errno::EMFILE);
        }
        Ok(Place::new(found, came_by, &self.places))
    }

    /// What a number stands for has another name now.
    pub(super) fn moved(&self, place: &Arc<Place<S>>, dir: &Arc<Place<S>>, name: &[u8]) {
        let _moving = self.moving.lock();
        place.move_to(dir, name);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::sync::Barrier;

    use super::*;
    use crate::memory::Memory;

    /// Two that go into each other at once: one of the ways ends.
    #[test]
    fn ways_never_become_a_circle() {
        let (memory, fids) = (Memory::default(), Fids::<Memory>::new(100));
        let caller = Caller { uid: 0, gid: 0 };
        let new = || fids.place(memory.root(caller).unwrap(), None).unwrap();
        for _ in 0..2000 {
            let (one, two, both) = (new(), new(), Barrier::new(2));
            let go = |place: &Arc<Place<Memory>>, dir: &Arc<Place<Memory>>| {
                both.wait();
                fids.moved(place, dir, b"name");
            };
            std::thread::scope(|threads| {
                threads.spawn(|| go(&one, &two));
                go(&two, &one);
            });
            assert!(one.came_by().is_none() || two.came_by().is_none());
        }
        assert_eq!(fids.places.load(Ordering::Relaxed), 0, "all of them could be dropped");
    }
}
