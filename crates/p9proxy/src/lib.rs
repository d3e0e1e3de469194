//! Carries 9P between the kernel of a guest and the serial port that leads to the host. The kernel
//! cannot write to the port by itself (`trans=fd` takes files that it can write to from within, and
//! the port is none), so it has a socket, and two threads carry what comes out of either end to the
//! other:
//!
//! ```text
//!   kernel (9p, trans=fd) ── socket pair ── Relay: two threads ── port ── QEMU ── server on the host
//! ```
//!
//! The threads belong to process 1, so that nothing in the guest can end them, neither root nor a
//! lack of memory: with them would go every access to the folder.

#![forbid(unsafe_code)]
#![cfg(target_os = "linux")]

mod frames;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::Duration;

use frames::Frames;

/// What is carried at once: the kernel's own port takes no more.
const BUFFER_BYTES: usize = 32 << 10;

/// How long to wait for memory before asking again.
const NO_MEMORY: Duration = Duration::from_millis(10);

/// Begins to carry, for as long as both ends live. What comes back is the kernel's end: the mount
/// keeps it open.
pub fn relay(port: File) -> io::Result<UnixStream> {
    let (ours, kernels) = UnixStream::pair()?;
    let (from_port, to_port) = (port.try_clone()?, port);
    let (from_kernel, to_kernel) = (ours.try_clone()?, ours);
    spawn("p9-to-host", move || to_host_until_the_end(from_kernel, to_port))?;
    spawn("p9-to-kernel", move || to_kernel_until_the_end(from_port, to_kernel))?;
    Ok(kernels)
}

fn spawn(name: &str, carry: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.into()).spawn(carry).map(drop)
}

/// Until the file system is unmounted, or the host has gone: what is not carried any more must not be
/// waited for.
fn to_host_until_the_end(kernel: UnixStream, port: impl Write) {
    let _ = to_host(&kernel, port); // however it went, it is over
    let _ = kernel.shutdown(Shutdown::Both);
}

fn to_host(mut kernel: impl Read, mut port: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match kernel.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(count) => write_all(&mut port, &buffer[..count])?,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// The port needs memory for each piece; what there is none for now, there is a moment later.
fn write_all(port: &mut impl Write, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match port.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::OutOfMemory => thread::sleep(NO_MEMORY),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// With the socket closed, whoever waits in the kernel for an answer gets an error instead of
/// waiting for ever.
fn to_kernel_until_the_end(port: impl Read, kernel: UnixStream) {
    let _ = to_kernel(port, &kernel); // however it went, it is over
    let _ = kernel.shutdown(Shutdown::Both);
}

/// The port gives a page at once, and each piece that is passed on wakes the kernel up. So messages
/// are passed on whole, as far as they fit into the buffer.
fn to_kernel(mut port: impl Read, mut kernel: impl Write) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    let mut frames = Frames::default();
    let mut held = 0;
    loop {
        let count = match port.read(&mut buffer[held..]) {
            Ok(0) => return kernel.write_all(&buffer[..held]),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let whole = frames.advance(&buffer[held..held + count]);
        held += count;
        let ready = match whole {
            _ if held == buffer.len() => held,
            // What of a message came before this piece goes with it.
            Some(end) => held - count + end,
            None => 0,
        };
        if ready > 0 {
            kernel.write_all(&buffer[..ready])?;
            buffer.copy_within(ready..held, 0);
            held -= ready;
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Gives what it was made of piece by piece, as the port does.
    struct Pieces(Vec<Vec<u8>>);

    impl Read for Pieces {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            if self.0.is_empty() {
                return Ok(0);
            }
            let piece = &mut self.0[0];
            let count = piece.len().min(buffer.len());
            buffer[..count].copy_from_slice(&piece[..count]);
            piece.drain(..count);
            if piece.is_empty() {
                self.0.remove(0);
            }
            Ok(count)
        }
    }

    #[derive(Default)]
    struct Writes(Vec<Vec<u8>>);

    impl Write for Writes {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.push(bytes.to_vec());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn message(length: u32) -> Vec<u8> {
        let mut bytes = length.to_le_bytes().to_vec();
        bytes.resize(length as usize, 7);
        bytes
    }

    fn carried(pieces: Vec<Vec<u8>>) -> Vec<usize> {
        let sent = pieces.concat();
        let mut writes = Writes::default();
        to_kernel(Pieces(pieces), &mut writes).unwrap();
        assert_eq!(writes.0.concat(), sent[..writes.0.concat().len()], "nothing is changed");
        writes.0.iter().map(Vec::len).collect()
    }

    #[test]
    fn a_message_in_pieces_is_passed_on_as_one() {
        let pieces = message(10_000).chunks(4096).map(<[u8]>::to_vec).collect();
        assert_eq!(carried(pieces), [10_000]);
    }

    #[test]
    fn messages_that_come_together_go_together_and_the_rest_later() {
        let bytes = [message(7), message(20), message(11)].concat();
        let pieces = vec![bytes[..30].to_vec(), bytes[30..].to_vec()];
        assert_eq!(carried(pieces), [27, 11]);
    }

    #[test]
    fn a_size_in_two_pieces_is_understood() {
        let bytes = [message(9), message(12)].concat();
        let pieces = vec![bytes[..2].to_vec(), bytes[2..11].to_vec(), bytes[11..].to_vec()];
        assert_eq!(carried(pieces), [9, 12]);
    }

    #[test]
    fn a_message_that_is_larger_than_the_buffer_is_passed_on_in_parts() {
        let length = 2 * BUFFER_BYTES + 100;
        let pieces = message(length as u32).chunks(4096).map(<[u8]>::to_vec).collect();
        assert_eq!(carried(pieces), [BUFFER_BYTES, BUFFER_BYTES, 100]);
    }

    #[test]
    fn what_is_no_message_is_passed_on_all_the_same() {
        let pieces = vec![vec![0; 10], vec![1, 0, 0, 0, 9]];
        assert_eq!(carried(pieces).iter().sum::<usize>(), 15);
    }

    /// Takes nothing for lack of memory now and then, and a few bytes otherwise.
    struct Narrow(Vec<u8>, bool);

    impl Write for Narrow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.1 = !self.1;
            if self.1 {
                return Err(io::ErrorKind::OutOfMemory.into());
            }
            let count = bytes.len().min(3);
            self.0.extend_from_slice(&bytes[..count]);
            Ok(count)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_there_is_no_memory_for_is_carried_later() {
        let mut port = Narrow(Vec::new(), false);
        to_host(&message(20)[..], &mut port).unwrap();
        assert_eq!(port.0, message(20));
    }

    #[test]
    fn a_port_that_takes_nothing_any_more_is_the_end_for_whoever_waits() {
        let (ours, mut kernels) = UnixStream::pair().unwrap();
        kernels.write_all(&message(9)).unwrap();
        to_host_until_the_end(ours, &mut [][..]);
        assert_eq!(kernels.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn whoever_waits_for_an_answer_hears_when_the_host_is_gone() {
        let (ours, mut kernels) = UnixStream::pair().unwrap();
        to_kernel_until_the_end(io::empty(), ours);
        assert_eq!(kernels.read(&mut [0; 8]).unwrap(), 0);
    }
}
