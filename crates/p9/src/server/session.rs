//! One client: its requests on their way, and the stream that its answers go to.

use std::collections::HashMap;
use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use codeagent_common::Pool;
use foldhash::fast::RandomState;
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;

use super::operations::{Pace, pace};
use super::tree::Tree;
use super::{Limits, ServeError};
use crate::errno::Errno;
use crate::locks::Locks;
use crate::share::Share;
use crate::wire::{Frame, HEADER, NO_TAG, Reply, Request, VERSION, VERSION_UNKNOWN, lock};

/// Cancels that wait for what they cancel; a client has no more tags.
const MOST_FLUSHES: usize = 1 << 16;

pub(super) struct Session<S: Share, W> {
    tree: Tree<S>,
    limits: Limits,
    outlet: Mutex<Outlet<W>>,
    /// Which conversation it is: each `Tversion` begins another, and answers of the former would be
    /// taken for its own. Changed while `outlet` is held.
    conversation: AtomicU64,
    flight: Mutex<Flight>,
    /// One of them has come to its end.
    landing: Condvar,
    /// The client has gone: no lock is waited for any more.
    closing: AtomicBool,
    pool: Pool,
    /// Locks have one of their own: however many are waited for, they keep no mutation waiting.
    lock_pool: Pool,
}

struct Outlet<W> {
    write: W,
    /// Nobody is there any more.
    broken: bool,
}

/// What the thread that reads has at hand.
#[derive(Default)]
pub(super) struct Buffers {
    answer: Frame,
}

/// Requests that were handed over, and have no answer yet.
#[derive(Default)]
struct Flight {
    /// Of this conversation.
    requests: HashMap<u16, Pending, RandomState>,
    /// Of any.
    count: usize,
    bytes: usize,
    flushes: usize,
    /// Somebody has waited in vain for one of them to come to its end. Nobody else waits before one
    /// has: what is read next would wait, too.
    stuck: bool,
}

#[derive(Default)]
struct Pending {
    /// Nobody wants it any more. What has begun goes on; a lock is waited for no longer.
    cancelled: bool,
    /// The tags that cancelled it, answered when it cannot be any more, in their order.
    flushes: SmallVec<[u16; 1]>,
}

impl<S: Share, W: Write + Send + 'static> Session<S, W> {
    pub(super) fn new(
        share: S,
        write: W,
        locks: Arc<Locks>,
        connection: u64,
        limits: Limits,
    ) -> Self {
        Self {
            tree: Tree::new(share, locks, connection, limits),
            limits,
            outlet: Mutex::new(Outlet { write, broken: false }),
            conversation: AtomicU64::new(0),
            flight: Mutex::default(),
            landing: Condvar::new(),
            closing: AtomicBool::new(false),
            pool: Pool::default(),
            lock_pool: Pool::default(),
        }
    }

    pub(super) fn largest_message(&self) -> usize {
        self.tree.msize().unwrap_or(self.limits.msize) as usize
    }

    /// Takes a message, whose size is right.
    pub(super) fn take(
        self: &Arc<Self>,
        message: &[u8],
        buffers: &mut Buffers,
    ) -> Result<(), ServeError> {
        let _taken = self.tree.share.taken();
        let conversation = self.conversation.load(Ordering::Relaxed);
        let answer = &mut buffers.answer;
        let Some(([_, _, _, _, number, low, high], fields)) = message.split_first_chunk::<HEADER>()
        else {
            return Ok(()); // whoever cut it has seen to that
        };
        let tag = u16::from_le_bytes([*low, *high]);
        let request = match Request::read(*number, fields) {
            Ok(request) => request,
            Err(_) => {
                let errno = match Request::NUMBERS.contains(number) {
                    true => Errno::EPROTO,
                    // What there is no such message for, clients do in another way.
                    false => Errno::EOPNOTSUPP,
                };
                answer.reply(tag, &Reply::Error { errno: errno.0 });
                return self.send(conversation, answer);
            }
        };
        match request {
            Request::Version { msize, version } => {
                return self.begin_anew(tag, msize, version, answer);
            }
            Request::Flush { old_tag } => {
                if self.flush(tag, old_tag) {
                    return Ok(());
                }
                answer.reply(tag, &Reply::Flush {});
            }
            _ if self.tree.msize().is_none() => {
                answer.reply(tag, &Reply::Error { errno: Errno::EPROTO.0 });
            }
            request => {
                let pace = pace(&self.tree, &request);
                let waits = match pace {
                    Pace::Quick => false,
                    Pace::Mutation => self.tree.share.may_wait(),
                    Pace::Slow => true,
                    Pace::Lock => {
                        // Most are free, and need no thread.
                        self.serve(tag, request, answer, &|| true);
                        is_blocked(answer)
                    }
                };
                match waits.then(|| self.hand_over(tag, message, &request)) {
                    Some(Ok(())) => return Ok(()),
                    Some(Err(refused)) => self.refuse(tag, request, &refused, answer),
                    None if pace == Pace::Lock => {}
                    None => self.serve(tag, request, answer, &|| false),
                }
            }
        }
        self.send(conversation, answer)
    }

    /// What cannot be handed over.
    fn refuse(&self, tag: u16, request: Request<'_>, refused: &Refused, answer: &mut Frame) {
        match (refused, request) {
            (Refused::TagInUse, _) => {
                answer.reply(tag, &Reply::Error { errno: Errno::EINVAL.0 });
            }
            // Waits for the disk and for nobody else.
            (Refused::TooMany, request @ Request::Fsync { .. }) => {
                self.serve(tag, request, answer, &|| false);
            }
            // The answer is there already: it is blocked.
            (Refused::TooMany, Request::Lock { .. }) => {}
            // Whatever the answer is, clients use the number again.
            (Refused::TooMany, Request::Clunk { fid } | Request::Remove { fid }) => {
                let _ = self.tree.give_up(fid); // or it never stood for anything
                answer.reply(tag, &Reply::Error { errno: Errno::ENOSPC.0 });
            }
            (Refused::TooMany, _) => {
                answer.reply(tag, &Reply::Error { errno: Errno::ENOSPC.0 });
            }
        }
    }

    fn hand_over(
        self: &Arc<Self>,
        tag: u16,
        message: &[u8],
        request: &Request<'_>,
    ) -> Result<(), Refused> {
        let conversation = self.conversation.load(Ordering::Relaxed);
        let bytes = message.len();
        {
            let mut flight = self.flight.lock();
            if flight.requests.contains_key(&tag) {
                return Err(Refused::TagInUse);
            }
            while flight.count >= self.limits.waiting
                || flight.bytes + bytes > self.limits.waiting_bytes
            {
                if flight.stuck {
                    return Err(Refused::TooMany);
                }
                flight.stuck = self.landing.wait_for(&mut flight, self.limits.patience).timed_out();
            }
            flight.count += 1;
            flight.bytes += bytes;
            flight.requests.insert(tag, Pending::default());
        }
        let message: Box<[u8]> = message.into();
        let (session, taken) = (Arc::clone(self), self.tree.share.taken());
        let job = move || {
            let _taken = taken;
            session.serve_later(conversation, tag, &message);
        };
        let (pool, most) = match request {
            Request::Lock { .. } => (&self.lock_pool, self.limits.waiting_locks),
            // They have been counted. One that has just been answered may still be in the pool.
            _ => (&self.pool, usize::MAX),
        };
        if pool.take(most, job) {
            return Ok(());
        }
        self.landed(conversation, tag, bytes);
        Err(Refused::TooMany)
    }

    fn serve_later(&self, conversation: u64, tag: u16, message: &[u8]) {
        let is_current = || self.conversation.load(Ordering::Acquire) == conversation;
        let wanted = {
            let flight = self.flight.lock();
            is_current() && flight.requests.get(&tag).is_some_and(|pending| !pending.cancelled)
        };
        if wanted && let Ok((tag, request)) = Request::read_frame(message) {
            let is_cancelled = || {
                !is_current()
                    || self.closing.load(Ordering::Acquire)
                    || self.flight.lock().requests.get(&tag).is_none_or(|pending| pending.cancelled)
            };
            let mut answer = Frame::default();
            let is_lock = matches!(request, Request::Lock { .. });
            let mut serve = || self.serve(tag, request, &mut answer, &is_cancelled);
            match is_lock {
                // Whoever has it may take for ever, and no step is to wait for that.
                true => serve(),
                false => self.tree.share.until_told(serve),
            }
            return self.conclude(conversation, tag, message.len(), Some(answer));
        }
        self.conclude(conversation, tag, message.len(), None);
    }

    /// Answers a request that was handed over, and then whoever has cancelled it. Its tag is free
    /// before the client can know: it may use it again at once.
    fn conclude(&self, conversation: u64, tag: u16, bytes: usize, answer: Option<Frame>) {
        let mut outlet = self.outlet.lock();
        let flushes = self.landed(conversation, tag, bytes);
        if let Some(answer) = answer {
            let _ = self.write(&mut outlet, conversation, &answer); // or the client has gone
        }
        let mut answer = Frame::default();
        for tag in flushes {
            answer.reply(tag, &Reply::Flush {});
            let _ = self.write(&mut outlet, conversation, &answer);
        }
    }

    /// It has its answer, or never gets one. Says who has cancelled it.
    fn landed(&self, conversation: u64, tag: u16, bytes: usize) -> SmallVec<[u16; 1]> {
        let mut flight = self.flight.lock();
        flight.count -= 1;
        flight.bytes -= bytes;
        flight.stuck = false;
        self.landing.notify_one();
        if self.conversation.load(Ordering::Acquire) != conversation {
            return SmallVec::new();
        }
        let flushes = flight.requests.remove(&tag).unwrap_or_default().flushes;
        flight.flushes -= flushes.len();
        flushes
    }

    /// Whether the answer has to wait. What has none to wait for has been answered already: those
    /// that are not handed over are, before the next is read.
    fn flush(&self, tag: u16, old_tag: u16) -> bool {
        let mut flight = self.flight.lock();
        if flight.flushes >= MOST_FLUSHES {
            return false;
        }
        let pending = match flight.requests.contains_key(&old_tag) {
            true => flight.requests.get_mut(&old_tag),
            // A cancel can be cancelled, too.
            false => flight.requests.values_mut().find(|other| other.flushes.contains(&old_tag)),
        };
        let Some(pending) = pending else { return false };
        pending.cancelled = true;
        pending.flushes.push(tag);
        flight.flushes += 1;
        drop(flight);
        self.tree.locks.look_again();
        true
    }

    /// Whatever it is, it is answered.
    fn serve(
        &self,
        tag: u16,
        request: Request<'_>,
        answer: &mut Frame,
        is_cancelled: &dyn Fn() -> bool,
    ) {
        let served = || self.tree.serve(tag, request, answer, is_cancelled);
        let errno = match catch_unwind(AssertUnwindSafe(served)) {
            Ok(Ok(())) => return,
            Ok(Err(errno)) => errno,
            Err(_mistake_of_ours) => Errno::EIO,
        };
        answer.reply(tag, &Reply::Error { errno: errno.0 });
    }

    /// A new conversation: nothing of the former counts any more.
    fn begin_anew(
        &self,
        tag: u16,
        msize: u32,
        version: &[u8],
        answer: &mut Frame,
    ) -> Result<(), ServeError> {
        let conversation = {
            let _outlet = self.outlet.lock();
            let mut flight = self.flight.lock();
            flight.requests.clear();
            flight.flushes = 0;
            self.conversation.fetch_add(1, Ordering::AcqRel) + 1
        };
        self.tree.clear();
        if tag != NO_TAG || msize < super::LEAST_MSIZE {
            self.tree.set_msize(None);
            let errno = if tag == NO_TAG { Errno::EMSGSIZE } else { Errno::EPROTO };
            answer.reply(tag, &Reply::Error { errno: errno.0 });
            return self.send(conversation, answer);
        }
        let msize = msize.min(self.limits.msize);
        let speaks = version == VERSION;
        self.tree.set_msize(speaks.then_some(msize));
        let version = if speaks { VERSION } else { VERSION_UNKNOWN };
        answer.reply(tag, &Reply::Version { msize, version });
        self.send(conversation, answer)
    }

    fn send(&self, conversation: u64, answer: &Frame) -> Result<(), ServeError> {
        self.write(&mut self.outlet.lock(), conversation, answer)
    }

    fn write(
        &self,
        outlet: &mut Outlet<W>,
        conversation: u64,
        answer: &Frame,
    ) -> Result<(), ServeError> {
        if outlet.broken {
            return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        }
        if self.conversation.load(Ordering::Acquire) != conversation {
            return Ok(());
        }
        let sent = outlet.write.write_all(answer.bytes()).and_then(|()| outlet.write.flush());
        outlet.broken = sent.is_err();
        Ok(sent?)
    }

    /// The client has gone: waits until everything that it asked for is done.
    pub(super) fn finish(&self) {
        self.closing.store(true, Ordering::Release);
        self.tree.locks.look_again();
        self.lock_pool.end();
        // A mutation that was asked for happens.
        self.pool.end();
        self.tree.clear();
    }
}

/// An answer that tells somebody who wants to wait that it would have to.
fn is_blocked(answer: &Frame) -> bool {
    let Ok((_, Reply::Lock { status })) = Reply::read_frame(answer.bytes()) else { return false };
    status == lock::BLOCKED
}

enum Refused {
    TagInUse,
    TooMany,
}
