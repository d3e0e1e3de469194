//! The last of what QEMU and the kernel of the guest say. There is no bound to it, so only the end
//! is kept: that is where the reason of a death stands.

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

const KEPT_BYTES: usize = 16 * 1024;

/// What was said last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    /// Follows a stream until it ends.
    pub(crate) fn follow(
        name: &str,
        mut stream: impl Read + Send + 'static,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let tail = Self::default();
        let ours = tail.clone();
        let read = move || {
            let mut chunk = [0; 4096];
            loop {
                match stream.read(&mut chunk) {
                    Ok(0) => return,
                    Ok(count) => ours.push(&chunk[..count]),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        };
        Ok((tail, thread::Builder::new().name(name.to_owned()).spawn(read)?))
    }

    fn push(&self, bytes: &[u8]) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.extend_from_slice(bytes);
        let excess = kept.len().saturating_sub(KEPT_BYTES);
        kept.drain(..excess);
    }

    pub(crate) fn text(&self) -> String {
        let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&kept);
        text.chars().filter(|c| *c == '\n' || !c.is_control()).collect::<String>().trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_end_is_kept() {
        let (tail, thread) = Tail::follow("test", io::repeat(b'x').take(1 << 20)).unwrap();
        thread.join().unwrap();
        assert_eq!(tail.text().len(), KEPT_BYTES);
    }

    #[test]
    fn what_a_guest_says_cannot_play_tricks_on_a_terminal() {
        let (tail, thread) = Tail::follow("test", &b"\x1b[2Jpanic\r\nhere\n"[..]).unwrap();
        thread.join().unwrap();
        assert_eq!(tail.text(), "[2Jpanic\nhere");
    }
}
