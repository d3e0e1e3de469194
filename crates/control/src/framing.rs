//! One message a line, over any byte stream.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::marker::PhantomData;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{ControlError, LineFault, Result};

/// No line may be longer, its newline not counted. A longer one is skipped as it arrives.
pub const MAX_LINE_BYTES: usize = 1024 * 1024;

/// A kind of message that travels in one direction.
pub trait Message: Serialize + DeserializeOwned {
    /// The values of `type`; tells an unknown message from a broken one.
    const TYPES: &'static [&'static str];
}

/// A message as a line, newline included.
pub fn encode<M: Message>(message: &M) -> Result<Vec<u8>> {
    let mut line = serde_json::to_vec(message)?;
    if line.len() > MAX_LINE_BYTES {
        return Err(ControlError::MessageTooLong {
            size_bytes: line.len(),
            limit_bytes: MAX_LINE_BYTES,
        });
    }
    line.push(b'\n');
    Ok(line)
}

/// Cuts a byte stream into messages; does no I/O, so it serves threads and async runtimes alike.
#[derive(Debug)]
pub struct LineDecoder<M> {
    /// The beginning of a line that has not ended yet. Never longer than the limit.
    partial: Vec<u8>,
    /// The line went past the limit: everything up to its newline is dropped.
    skipping: bool,
    ready: VecDeque<Result<M, LineFault>>,
}

impl<M> Default for LineDecoder<M> {
    fn default() -> Self {
        Self { partial: Vec::new(), skipping: false, ready: VecDeque::new() }
    }
}

impl<M: Message> LineDecoder<M> {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, mut bytes: &[u8]) {
        while let Some(newline) = bytes.iter().position(|byte| *byte == b'\n') {
            self.extend(&bytes[..newline]);
            self.end_line();
            bytes = &bytes[newline + 1..];
        }
        self.extend(bytes);
    }

    /// The next message, or what was in its place.
    pub fn next_message(&mut self) -> Option<Result<M, LineFault>> {
        self.ready.pop_front()
    }

    /// The memory that an unfinished line takes.
    pub fn held_bytes(&self) -> usize {
        self.partial.capacity()
    }

    fn extend(&mut self, bytes: &[u8]) {
        if self.skipping {
            return;
        }
        if self.partial.len() + bytes.len() > MAX_LINE_BYTES {
            self.partial = Vec::new();
            self.skipping = true;
            self.ready.push_back(Err(LineFault::TooLong { limit_bytes: MAX_LINE_BYTES }));
            return;
        }
        self.partial.extend_from_slice(bytes);
    }

    fn end_line(&mut self) {
        if !std::mem::take(&mut self.skipping) && !self.partial.trim_ascii().is_empty() {
            self.ready.push_back(parse(&self.partial));
        }
        self.partial.clear();
        // One long line must not hold its memory for the rest of the session.
        self.partial.shrink_to(64 * 1024);
    }
}

fn parse<M: Message>(line: &[u8]) -> Result<M, LineFault> {
    serde_json::from_slice(line).map_err(|_| diagnose::<M>(line))
}

/// Why a line is no message. Looks at `type` alone, so that a hostile line costs no memory.
fn diagnose<M: Message>(line: &[u8]) -> LineFault {
    #[derive(serde::Deserialize)]
    struct Envelope {
        r#type: String,
    }
    match serde_json::from_slice::<Envelope>(line) {
        Ok(Envelope { r#type: name }) => match M::TYPES.iter().find(|known| **known == name) {
            Some(known) => LineFault::InvalidFields { name: known },
            None => LineFault::UnknownType { name: presentable(&name) },
        },
        Err(error) if error.is_data() => LineFault::MissingType,
        Err(error) => LineFault::MalformedJson { column: error.column() },
    }
}

/// A name from the other side, short and harmless enough for a log.
fn presentable(name: &str) -> String {
    name.chars().take(64).map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Reads messages from a blocking stream.
#[derive(Debug)]
pub struct MessageReader<R, M> {
    stream: R,
    decoder: LineDecoder<M>,
    chunk: Box<[u8]>,
}

impl<R: Read, M: Message> MessageReader<R, M> {
    pub fn new(stream: R) -> Self {
        Self { stream, decoder: LineDecoder::new(), chunk: vec![0; 16 * 1024].into() }
    }

    /// The next message, or what was in its place; `None` at the end of the stream. A line that
    /// the end cut off is dropped.
    pub fn read(&mut self) -> io::Result<Option<Result<M, LineFault>>> {
        loop {
            if let Some(message) = self.decoder.next_message() {
                return Ok(Some(message));
            }
            match self.stream.read(&mut self.chunk) {
                Ok(0) => return Ok(None),
                Ok(count) => self.decoder.push(&self.chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Writes messages to a blocking stream, each at once.
#[derive(Debug)]
pub struct MessageWriter<W, M> {
    stream: W,
    message: PhantomData<fn(&M)>,
}

impl<W: Write, M: Message> MessageWriter<W, M> {
    pub fn new(stream: W) -> Self {
        Self { stream, message: PhantomData }
    }

    /// A message past the limit is refused before a byte of it is written.
    pub fn write(&mut self, message: &M) -> io::Result<()> {
        let line = encode(message).map_err(io::Error::other)?;
        self.stream.write_all(&line)?;
        self.stream.flush()
    }
}
