//! Opening a file where passthrough is possible.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use codeagent_fs::behind_handle;
use fuser::{Errno, FileHandle, FopenFlags, Generation, ReplyCreate, ReplyOpen};
use virtiofsd::filesystem::{Context, Entry, FileSystem, OpenOptions};

use super::backing;
use super::modes::{Access, Entered, InTheWay, Modes};
use crate::attributes::to_fuse;
use crate::replies::{errno, fopen, reply_open};

/// How long somebody who wants to read and write waits for readers to close the file.
const PATIENCE: Duration = Duration::from_secs(2);

type Opened = (Option<u64>, OpenOptions);

/// One request to open a file.
pub(crate) struct Opening<F> {
    pub(crate) fs: Arc<F>,
    pub(crate) modes: Arc<Modes>,
    pub(crate) ctx: Context,
    pub(crate) inode: u64,
    pub(crate) kill_priv: bool,
    pub(crate) flags: i32,
}

impl<F> Opening<F>
where
    F: FileSystem<Inode = u64, Handle = u64> + Send + Sync + 'static,
{
    pub(crate) fn answer(self, reply: ReplyOpen) {
        let access = Access::of(self.flags);
        let outcome = match access {
            Access::Reading => {
                let file = |opened: &Opened| self.host_file(opened);
                self.modes.enter_reading(self.inode, || self.open(), file)
            }
            Access::Writing | Access::Both => match self.modes.enter(self.inode, access) {
                Ok(entered) => self.open_entered(entered),
                Err(InTheWay) => return self.answer_later(reply, access),
            },
        };
        Self::send(reply, access, outcome);
    }

    /// In a thread of its own: the others may be needed to serve those it waits for.
    fn answer_later(self, reply: ReplyOpen, access: Access) {
        if !self.modes.may_wait() {
            return reply.error(Errno::ETXTBSY);
        }
        let modes = Arc::clone(&self.modes);
        let wait = move || {
            let deadline = Instant::now() + PATIENCE;
            let entered = self.modes.enter_after_readers(self.inode, access, deadline);
            self.modes.waits_no_more();
            match entered {
                Ok(entered) => Self::send(reply, access, self.open_entered(entered)),
                Err(InTheWay) => reply.error(Errno::ETXTBSY),
            }
        };
        let thread = std::thread::Builder::new().name("waits-to-open".into());
        if thread.spawn(wait).is_err() {
            modes.waits_no_more(); // the request was dropped, and has failed
        }
    }

    fn open(&self) -> io::Result<Opened> {
        self.fs.open(self.ctx, self.inode, self.kill_priv, self.flags as u32)
    }

    fn open_entered(&self, entered: Entered) -> io::Result<(Opened, Entered)> {
        self.modes.or_leave(self.inode, self.open()).map(|opened| (opened, entered))
    }

    fn host_file(&self, opened: &Opened) -> io::Result<std::fs::File> {
        let handle = opened.0.ok_or(io::ErrorKind::NotFound)?;
        behind_handle(&*self.fs, self.ctx, self.inode, handle)
    }

    fn send(reply: ReplyOpen, access: Access, outcome: io::Result<(Opened, Entered)>) {
        match outcome {
            Ok(((handle, _), Entered::Passthrough(number))) => {
                backing::reply_open(reply, handle.unwrap_or(0), how(access), number);
            }
            Ok((opened, Entered::Ordinarily)) => reply_open(reply, Ok(opened)),
            Err(error) => reply.error(errno(error)),
        }
    }
}

/// Of a file in passthrough. Each write still comes to us.
fn how(access: Access) -> FopenFlags {
    match access {
        Access::Reading => FopenFlags::empty(),
        Access::Writing | Access::Both => FopenFlags::FOPEN_DIRECT_IO,
    }
}

/// The answer to the making of a file, which somebody else may just have made and opened. If readers
/// stand in the way, what was opened is to be closed again.
pub(crate) fn reply_created(
    modes: Option<&Modes>,
    reply: ReplyCreate,
    flags: i32,
    entry: &Entry,
    opened: Opened,
) -> Result<(), InTheWay> {
    let access = Access::of(flags);
    let entered = match modes {
        None => Entered::Ordinarily,
        Some(modes) => match modes.enter(entry.inode, access) {
            Ok(entered) => entered,
            Err(InTheWay) => {
                reply.error(Errno::ETXTBSY);
                return Err(InTheWay);
            }
        },
    };
    let handle = opened.0.unwrap_or(0);
    match entered {
        Entered::Passthrough(number) => {
            backing::reply_create(reply, entry, handle, how(access), number);
        }
        Entered::Ordinarily => reply.created(
            &entry.attr_timeout,
            &to_fuse(entry.inode, &entry.attr),
            Generation(entry.generation),
            FileHandle(handle),
            fopen(opened.1),
        ),
    }
    Ok(())
}
