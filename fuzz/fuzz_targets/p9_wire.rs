//! A hostile client of the 9P server: whatever it sends, no message is read as something else than it
//! would be written as, every answer is a message, and nothing is left unanswered.
//!
//! An input is taken three times: as a stream that begins with its first byte; as the bodies of
//! messages whose sizes are right, so that more of them get past the first look; and as such messages
//! that wait, each with a tag of its own, among cancels and new conversations that meet them.
#![no_main]

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{Frame, NO_FID, NO_TAG, Reply, Request, VERSION};
use codeagent_p9::{Limits, Server};
use libfuzzer_sys::fuzz_target;

/// What is sent, in pieces.
struct Stream {
    bytes: Vec<u8>,
    at: usize,
    piece: usize,
    /// Where mutations begin to wait, and where they need not any longer.
    gates: VecDeque<(usize, Gate)>,
    memory: Memory,
}

#[derive(Clone, Copy)]
enum Gate {
    Close,
    Open,
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while let Some((_, gate)) = self.gates.pop_front_if(|(at, _)| *at <= self.at) {
            match gate {
                Gate::Close => self.memory.close_gate(),
                Gate::Open => self.memory.open_gate(),
            }
        }
        let until = self.gates.front().map_or(self.bytes.len(), |(at, _)| *at);
        let rest = &self.bytes[self.at..until];
        let count = rest.len().min(into.len()).min(self.piece);
        into[..count].copy_from_slice(&rest[..count]);
        self.at += count;
        if count == 0 {
            // Whoever hangs up leaves nobody waiting.
            self.memory.open_gate();
        }
        Ok(count)
    }
}

/// What is answered.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<Vec<Answer>>>);

#[derive(Clone, Copy)]
struct Answer {
    number: u8,
    tag: u16,
}

impl Write for Answers {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (tag, reply) = Reply::read_frame(bytes).expect("an answer is one message");
        self.0.lock().unwrap().push(Answer { number: reply.number(), tag });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, data)) = data.split_first() else { return };
    serve(data.to_vec(), piece, VecDeque::new());
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
    let answers = serve(stream, piece, VecDeque::new());
    // A lock that has to wait is the only one that has none: its client has gone.
    assert!(answers.len() <= messages + 2);
    wait(data, piece);
});

const TVERSION: u8 = 100;
const RVERSION: u8 = 101;
const TFLUSH: u8 = 108;
/// No messages: what they would be is what becomes of the gate.
const CLOSE: u8 = 254;
const OPEN: u8 = 255;

/// The same messages, while mutations wait.
fn wait(data: &[u8], piece: u8) {
    let (mut stream, mut gates) = (greeting(), VecDeque::new());
    // By tag: the number of each message, and the tag that it cancels.
    let mut sent: Vec<(u8, Option<u16>)> = vec![(0, None)];
    let mut rest = data;
    while let Some(([length, number], after)) = rest.split_first_chunk() {
        let (body, after) = after.split_at(usize::from(*length).min(after.len()));
        rest = after;
        match *number {
            CLOSE => gates.push_back((stream.len(), Gate::Close)),
            OPEN => gates.push_back((stream.len(), Gate::Open)),
            number => {
                let tag = sent.len() as u16;
                let mut body = body.to_vec();
                let mut cancels = None;
                if number == TFLUSH
                    && let [low, high] = body[..]
                {
                    let old_tag = u16::from_le_bytes([low, high]) % tag;
                    body = old_tag.to_le_bytes().to_vec();
                    cancels = Some(old_tag);
                }
                sent.push((number, cancels));
                stream.extend((body.len() as u32 + 7).to_le_bytes());
                stream.push(number);
                stream.extend(if number == TVERSION { NO_TAG } else { tag }.to_le_bytes());
                stream.extend(body);
            }
        }
    }
    let answers = serve(stream, piece, gates);
    assert!(answers.len() <= sent.len() + 1);
    in_order(&sent, &answers);
}

/// None is answered twice, none after its cancel, and none of a conversation that is over.
fn in_order(sent: &[(u8, Option<u16>)], answers: &[Answer]) {
    let versions: Vec<u16> = (0..)
        .zip(sent)
        .filter(|(_, (number, _))| *number == TVERSION)
        .map(|(tag, _)| tag)
        .collect();
    let mut is_over = vec![false; sent.len()];
    // The first one is the greeting's.
    let mut greeted = 0;
    for Answer { number, tag } in answers {
        if *tag == NO_TAG {
            if *number == RVERSION && greeted > 0 {
                let before = usize::from(versions[greeted - 1]);
                is_over[..before].fill(true);
            }
            greeted += 1;
            continue;
        }
        let tag = usize::from(*tag);
        assert!(!std::mem::replace(&mut is_over[tag], true), "no answer can come any more");
        if let (TFLUSH, Some(old_tag)) = sent[tag] {
            is_over[usize::from(old_tag)] = true;
        }
    }
}

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

/// What was answered, in its order.
fn serve(bytes: Vec<u8>, piece: u8, gates: VecDeque<(usize, Gate)>) -> Vec<Answer> {
    let memory = Memory::default();
    let answers = Answers::default();
    let limits = Limits {
        fids: 100,
        waiting: 8,
        waiting_locks: 4,
        patience: Duration::from_millis(1),
        ..Limits::default()
    };
    let piece = usize::from(piece) * 16 + 1;
    let stream = Stream { bytes, at: 0, piece, gates, memory: memory.clone() };
    // How it ends is the client's business.
    let _ = Server::new(limits).serve(memory.clone(), stream, answers.clone());
    memory.open_gate();
    assert_eq!(memory.unanswered(), 0);
    std::mem::take(&mut answers.0.lock().unwrap())
}
