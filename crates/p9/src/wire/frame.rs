//! One message on its way out.

use super::fields::Field;
use super::{HEADER, Reply, Request, WireEntry};

/// A message's bytes. It is used again for the next one: memory is set aside, and cleared, only for
/// the longest.
#[derive(Debug, Default)]
pub struct Frame {
    /// As many as there ever were.
    bytes: Vec<u8>,
    length: usize,
}

impl Frame {
    /// What it holds becomes this request.
    pub fn request(&mut self, tag: u16, request: &Request<'_>) {
        self.begin(request.number(), tag);
        request.put(self);
        self.finish();
    }

    /// What it holds becomes this reply.
    pub fn reply(&mut self, tag: u16, reply: &Reply<'_>) {
        self.begin(reply.number(), tag);
        reply.put(self);
        self.finish();
    }

    /// The message.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub(crate) fn begin(&mut self, number: u8, tag: u16) {
        self.length = 0;
        0_u32.put(self);
        number.put(self);
        tag.put(self);
    }

    /// Writes the size, now that it is known.
    pub(crate) fn finish(&mut self) {
        let size = (self.length as u32).to_le_bytes();
        if let Some(place) = self.bytes.first_chunk_mut() {
            *place = size;
        }
    }

    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Room for `count` bytes behind what is there. They count when [`Frame::filled`] says so.
    pub(crate) fn room(&mut self, count: usize) -> &mut [u8] {
        let end = self.length + count;
        if self.bytes.len() < end {
            self.bytes.resize(end.max(HEADER + 64), 0);
        }
        &mut self.bytes[self.length..end]
    }

    pub(crate) fn filled(&mut self, count: usize) {
        self.length = (self.length + count).min(self.bytes.len());
    }

    /// Writes a number into what is there already.
    pub(crate) fn patch(&mut self, at: usize, number: u32) {
        if let Some(place) = self.bytes.get_mut(at..at + 4) {
            place.copy_from_slice(&number.to_le_bytes());
        }
    }

    pub(crate) fn length(&self) -> usize {
        self.length
    }

    pub(crate) fn entry(&mut self, entry: &WireEntry<'_>) {
        entry.put(self);
    }
}
