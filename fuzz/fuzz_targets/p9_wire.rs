//! A hostile client of the 9P server: whatever it sends, no message is read as something else than it
//! would be written as, every answer is a message, and nothing is left unanswered.
//!
//! An input is taken twice: as a stream that begins with its first byte, and as the bodies of
//! messages whose sizes are right, so that more of them get past the first look.
#![no_main]

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};

use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{Frame, NO_FID, NO_TAG, Reply, Request, VERSION};
use codeagent_p9::{Limits, Server};
use libfuzzer_sys::fuzz_target;

/// What is sent, in pieces.
struct Stream {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let rest = &self.bytes[self.at..];
        let count = rest.len().min(into.len()).min(self.piece);
        into[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        Ok(count)
    }
}

/// What is answered.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<u8>>>);

impl Write for Answers {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Reply::read_frame(bytes).expect("an answer is one message");
        self.0.lock().unwrap().extend_from_slice(&bytes[..7]);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, data)) = data.split_first() else { return };
    serve(data.to_vec(), piece);
    let mut stream = greeting();
    let mut rest = data;
    let mut messages = 0;
    while let Some(([length, number], after)) = rest.split_first_chunk() {
        let (body, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        read_both_ways(*number, body);
        stream.extend((body.len() as u32 + 7).to_le_bytes());
        stream.push(*number);
        stream.extend([*number, 0]);
        stream.extend(body);
        messages += 1;
    }
    let answers = serve(stream, piece);
    // A lock that has to wait is the only one that has none: its client has gone.
    assert!(answers <= messages + 2);
});

/// What can be read is what would be written.
fn read_both_ways(number: u8, body: &[u8]) {
    let mut frame = Frame::default();
    if let Ok(request) = Request::read(number, body) {
        frame.request(1, &request);
        assert_eq!(&frame.bytes()[7..], body);
    }
    if let Ok(reply) = Reply::read(number, body) {
        frame.reply(1, &reply);
        assert_eq!(&frame.bytes()[7..], body);
    }
}

/// A conversation that has begun, with the root under 0.
fn greeting() -> Vec<u8> {
    let mut frame = Frame::default();
    frame.request(NO_TAG, &Request::Version { msize: 8192, version: VERSION });
    let mut stream = frame.bytes().to_vec();
    let (user, tree) = (&b""[..], &b""[..]);
    frame.request(0, &Request::Attach { fid: 0, auth_fid: NO_FID, user, tree, uid: 0 });
    stream.extend(frame.bytes());
    stream
}

/// How many answers there were.
fn serve(bytes: Vec<u8>, piece: u8) -> usize {
    let memory = Memory::default();
    let answers = Answers::default();
    let limits = Limits { fids: 100, waiting: 8, waiting_locks: 4, ..Limits::default() };
    let stream = Stream { bytes, at: 0, piece: usize::from(piece) * 16 + 1 };
    // How it ends is the client's business.
    let _ = Server::new(limits).serve(memory.clone(), stream, answers.clone());
    assert_eq!(memory.unanswered(), 0);
    let all = answers.0.lock().unwrap();
    all.len() / 7
}
