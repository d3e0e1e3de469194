//! What a worker has its owner do: telling the kernel about files takes a capability that the
//! worker has given up.
//!
//! The two talk over a socket of packets. A worker that somebody has taken over gains nothing: the
//! owner accepts files of the folder's filesystem that the worker has opened, and Landlock lets it
//! open only what it may change anyway.

use std::collections::HashSet;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, FileType, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketFlags, SocketType, recv, recvmsg, sendmsg,
    shutdown, socketpair,
};

use super::backing::{Backing, Device};

/// An owner that takes longer is not waited for again.
const PATIENCE: Duration = Duration::from_secs(1);

/// Files that the kernel holds open for one worker; as many as it may have open at once.
const MOST: usize = 100_000;

/// With a file: open it. The answer is its number, or an error number below zero.
const OPEN: u8 = 1;
/// Behind it a number, which nobody uses any more.
const CLOSE: u8 = 2;

const ORDER_BYTES: usize = 5;

/// The owner's end, served by a thread. It holds the kernel's end of the mount, which must not
/// outlive the worker: whoever uses the mount would wait for ever. So the thread ends, and lets go of
/// it, as soon as the worker has gone or this is dropped.
#[derive(Debug)]
pub(crate) struct Broker {
    socket: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Broker {
    /// Serves a worker whose folder this is. The second socket is the worker's.
    pub(crate) fn start(device: Device, folder: BorrowedFd<'_>) -> io::Result<(Self, OwnedFd)> {
        let (kind, flags) = (SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(AddressFamily::UNIX, kind, flags, None)?;
        let serving = Serving {
            socket: ours.try_clone()?,
            device,
            filesystem: look(folder)?.0,
            open: HashSet::new(),
        };
        let thread = std::thread::Builder::new().name("broker".into());
        let thread = thread.spawn(move || serving.serve())?;
        Ok((Self { socket: ours, thread: Some(thread) }, theirs))
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = shutdown(&self.socket, Shutdown::Both); // or the worker has gone already
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Serving {
    socket: OwnedFd,
    device: Device,
    filesystem: (u32, u32),
    /// What the worker may close.
    open: HashSet<u32>,
}

impl Serving {
    fn serve(mut self) {
        while let Ok(Some((order, file))) = receive(self.socket.as_fd()) {
            let number = u32::from_le_bytes([order[1], order[2], order[3], order[4]]);
            match order[0] {
                OPEN => {
                    let answer = self.open(file).unwrap_or_else(|errno| -errno.raw_os_error());
                    let bytes = answer.to_le_bytes();
                    if rustix::net::send(&self.socket, &bytes, SendFlags::NOSIGNAL).is_err() {
                        return;
                    }
                }
                CLOSE if self.open.remove(&number) => self.device.close(number),
                _ => {}
            }
        }
    }

    fn open(&mut self, file: Option<OwnedFd>) -> Result<i32, Errno> {
        let file = file.ok_or(Errno::INVAL)?;
        self.check(&file)?;
        if self.open.len() >= MOST {
            return Err(Errno::NFILE);
        }
        let number = self
            .device
            .open(file.as_fd())
            .map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
        let answer = i32::try_from(number).map_err(|_| Errno::OVERFLOW)?;
        self.open.insert(number);
        Ok(answer)
    }

    /// Landlock lets a worker find any file, but not open it: found is not enough.
    fn check(&self, file: &OwnedFd) -> Result<(), Errno> {
        let flags = rustix::fs::fcntl_getfl(file)?;
        let (filesystem, kind) = look(file.as_fd())?;
        if flags.contains(OFlags::PATH)
            || flags & OFlags::ACCMODE == OFlags::WRONLY
            || kind != FileType::RegularFile
        {
            return Err(Errno::INVAL);
        }
        if filesystem != self.filesystem {
            return Err(Errno::XDEV);
        }
        Ok(())
    }
}

/// The filesystem and the kind of a file. What another server would have to be asked for is not:
/// it may be the worker itself, who waits for us.
fn look(file: BorrowedFd<'_>) -> Result<((u32, u32), FileType), Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let found = rustix::fs::statx(file, "", flags, StatxFlags::TYPE)?;
    let filesystem = (found.stx_dev_major, found.stx_dev_minor);
    Ok((filesystem, FileType::from_raw_mode(found.stx_mode.into())))
}

fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<([u8; ORDER_BYTES], Option<OwnedFd>)>> {
    let mut order = [0; ORDER_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = rustix::io::retry_on_intr(|| {
        let mut into = [IoSliceMut::new(&mut order)];
        recvmsg(socket, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    })?;
    let file = ancillary.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut files) => files.next(),
        _ => None,
    });
    Ok((received.bytes > 0).then_some((order, file)))
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Helper {
    /// Locked from a question to its answer.
    socket: Mutex<OwnedFd>,
}

impl Helper {
    pub(crate) fn new(socket: OwnedFd) -> io::Result<Self> {
        for which in [Timeout::Recv, Timeout::Send] {
            set_socket_timeout(&socket, which, Some(PATIENCE))?;
        }
        Ok(Self { socket: Mutex::new(socket) })
    }
}

impl Backing for Helper {
    fn open(&self, file: BorrowedFd<'_>) -> io::Result<u32> {
        let socket = self.socket.lock();
        let outcome = send(&socket, [OPEN, 0, 0, 0, 0], Some(file)).and_then(|()| {
            let mut answer = [0; 4];
            match rustix::io::retry_on_intr(|| recv(&*socket, &mut answer, RecvFlags::empty()))? {
                (_, 4) => Ok(i32::from_le_bytes(answer)),
                _ => Err(Errno::PIPE),
            }
        });
        match outcome {
            Ok(answer) => u32::try_from(answer)
                .map_err(|_| io::Error::from_raw_os_error(answer.saturating_neg())),
            Err(errno) => {
                // An answer that comes late must not be taken for that to another question.
                let _ = shutdown(&*socket, Shutdown::Both);
                Err(errno.into())
            }
        }
    }

    fn close(&self, number: u32) {
        let [a, b, c, d] = number.to_le_bytes();
        // An owner that has gone cannot; then the kernel does when the mount ends.
        let _ = send(&self.socket.lock(), [CLOSE, a, b, c, d], None);
    }
}

fn send(
    socket: &OwnedFd,
    order: [u8; ORDER_BYTES],
    file: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<_> = file.into_iter().collect();
    if !files.is_empty() {
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
    }
    rustix::io::retry_on_intr(|| {
        sendmsg(socket, &[IoSlice::new(&order)], &mut ancillary, SendFlags::NOSIGNAL)
    })
    .map(|_| ())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs::File;

    use rustix::fs::{Mode, OFlags};

    use super::*;

    /// With a device that refuses everything in a way of its own.
    fn broker(folder: &std::path::Path) -> (Broker, Helper) {
        let folder = File::open(folder).unwrap();
        let device = Device(File::open("/dev/null").unwrap().into());
        let (broker, theirs) = Broker::start(device, folder.as_fd()).unwrap();
        (broker, Helper::new(theirs).unwrap())
    }

    #[test]
    fn only_open_files_of_the_folders_filesystem_get_to_the_kernel() {
        let folder = tempfile::tempdir().unwrap();
        let (_broker, helper) = broker(folder.path());
        let path = folder.path().join("file");
        std::fs::write(&path, "content").unwrap();
        let refusal = |path: &std::path::Path, flags| {
            let file = rustix::fs::open(path, flags, Mode::empty()).unwrap();
            helper.open(file.as_fd()).unwrap_err().raw_os_error()
        };
        assert_eq!(refusal(&path, OFlags::RDONLY), Some(libc::ENOTTY), "the device refuses it");
        assert_eq!(refusal(&path, OFlags::RDWR), Some(libc::ENOTTY));
        assert_eq!(refusal(&path, OFlags::WRONLY), Some(libc::EINVAL));
        assert_eq!(refusal(&path, OFlags::PATH), Some(libc::EINVAL));
        assert_eq!(refusal(folder.path(), OFlags::RDONLY), Some(libc::EINVAL));
        assert_eq!(refusal("/dev/null".as_ref(), OFlags::RDONLY), Some(libc::EINVAL));
        assert_eq!(refusal("/proc/version".as_ref(), OFlags::RDONLY), Some(libc::EXDEV));
    }

    #[test]
    fn nonsense_is_survived_and_an_end_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let (broker, helper) = broker(folder.path());
        for order in [[0; ORDER_BYTES], [CLOSE, 7, 0, 0, 0], [255; ORDER_BYTES]] {
            send(&helper.socket.lock(), order, None).unwrap();
        }
        let file = tempfile::tempfile_in(folder.path()).unwrap();
        assert_eq!(helper.open(file.as_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
        drop(broker);
        assert!(helper.open(file.as_fd()).is_err());
        helper.close(7);
    }
}
