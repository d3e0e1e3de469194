//! Where messages end in a stream of bytes: each begins with its length, in four bytes.

const SIZE_BYTES: usize = 4;

/// Follows the messages of one direction.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// What has been seen of the size of a message.
    size: [u8; SIZE_BYTES],
    size_seen: usize,
    /// What is still to come of the message whose size is known.
    left: usize,
}

impl Frames {
    /// Takes note of the next bytes; says behind which of them the last message ends that is whole.
    pub(crate) fn advance(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0;
        let mut end = None;
        while at < bytes.len() {
            if self.left == 0 {
                self.size[self.size_seen] = bytes[at];
                self.size_seen += 1;
                at += 1;
                if self.size_seen < SIZE_BYTES {
                    continue;
                }
                self.size_seen = 0;
                self.left = (u32::from_le_bytes(self.size) as usize).saturating_sub(SIZE_BYTES);
            }
            let taken = self.left.min(bytes.len() - at);
            self.left -= taken;
            at += taken;
            if self.left == 0 {
                end = Some(at);
            }
        }
        end
    }
}
