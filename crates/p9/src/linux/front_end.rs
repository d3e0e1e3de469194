//! A guest with a folder over 9P, as one of those that a worker serves.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use codeagent_fs::{GuestView, Owners};
use codeagent_worker::{Ended, FrontEnd, WorkerFs};

use super::Shared;
use crate::server::{Limits, Server};

/// Says that what follows is for a guest over 9P. Other front ends' options do not begin so.
const MARK: &[u8] = b"9p\0";

/// How a guest is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct NinePOptions {
    /// `None`: users and groups have the same numbers on both sides.
    pub owners: Option<Owners>,
}

impl NinePOptions {
    /// What goes with the request to attach.
    pub fn encode(self) -> Vec<u8> {
        [MARK, &Owners::encode(self.owners)].concat()
    }

    /// `None`: they are for another front end.
    fn decode(bytes: &[u8]) -> io::Result<Option<Self>> {
        let Some(owners) = bytes.strip_prefix(MARK) else { return Ok(None) };
        Ok(Some(Self { owners: Owners::decode(owners)? }))
    }
}

/// Serves guests over 9P, and leaves to another front end what is not for one.
#[derive(Debug)]
pub struct NinePFrontEnd<Other> {
    other: Other,
    /// One for all guests that have the folder: it has their locks.
    server: Arc<Server>,
}

impl<Other> NinePFrontEnd<Other> {
    pub fn new(other: Other) -> Self {
        Self { other, server: Arc::new(Server::for_kernels(Limits::default())) }
    }
}

impl<Other: FrontEnd> FrontEnd for NinePFrontEnd<Other> {
    /// For a guest, `channel` is a connected socket, whose other end QEMU has.
    fn serve(
        &self,
        fs: Arc<WorkerFs>,
        channel: OwnedFd,
        helper: Option<OwnedFd>,
        options: &[u8],
        ended: Ended,
    ) -> io::Result<()> {
        let Some(NinePOptions { owners }) = NinePOptions::decode(options)? else {
            return self.other.serve(fs, channel, helper, options, ended);
        };
        let read = UnixStream::from(channel);
        let write = read.try_clone()?;
        let share = Shared::new(Arc::new(GuestView::new(fs, owners)));
        let server = Arc::clone(&self.server);
        let life = move || {
            // However it went: QEMU is no more, or its guest makes no sense and is of no use to anybody.
            let _ = server.serve(share, &read, write);
            let _ = read.shutdown(std::net::Shutdown::Both);
            ended();
        };
        std::thread::Builder::new().name("guest-9p".into()).spawn(life)?;
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use codeagent_fs::Ids;

    use super::*;

    #[test]
    fn options_arrive_as_they_were_sent_and_those_of_others_are_left_to_them() {
        let owners = Owners { host: Ids { uid: 1, gid: 2 }, guest: Ids { uid: 3, gid: u32::MAX } };
        for owners in [None, Some(owners)] {
            let options = NinePOptions { owners };
            assert_eq!(NinePOptions::decode(&options.encode()).unwrap(), Some(options));
        }
        assert_eq!(NinePOptions::decode(b"guest\0").unwrap(), None);
        assert!(NinePOptions::decode(b"9p\0\x01").is_err());
    }
}
