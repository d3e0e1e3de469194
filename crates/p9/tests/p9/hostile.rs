//! Whatever a client sends, everything is answered with a message, and the server ends when it does.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use codeagent_p9::memory::Memory;
use codeagent_p9::wire::{Frame, NO_FID, NO_TAG, Reply, Request, VERSION};
use codeagent_p9::{Limits, Server};
use proptest::prelude::*;

/// Of the message that begins a conversation.
const VERSION_NUMBER: u8 = 100;

/// How many answers there were; each is one message.
#[derive(Clone, Default)]
struct Answers(Arc<Mutex<usize>>);

impl Write for Answers {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Reply::read_frame(bytes).unwrap();
        *self.0.lock().unwrap() += 1;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn serve(stream: &[u8]) -> usize {
    let (memory, answers) = (Memory::default(), Answers::default());
    let limits = Limits { fids: 100, waiting: 8, waiting_locks: 4, ..Limits::default() };
    // How it ends is the client's business.
    let _ = Server::new(limits).serve(memory.clone(), stream, answers.clone());
    assert_eq!(memory.unanswered(), 0);
    *answers.0.lock().unwrap()
}

fn greeting() -> Vec<u8> {
    let mut frame = Frame::default();
    frame.request(NO_TAG, &Request::Version { msize: 8192, version: VERSION });
    let mut stream = frame.bytes().to_vec();
    let (user, tree) = (&b""[..], &b""[..]);
    frame.request(0, &Request::Attach { fid: 0, auth_fid: NO_FID, user, tree, uid: 0 });
    stream.extend(frame.bytes());
    stream
}

/// Numbers and names are few, so that they meet.
fn body() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        (0_u32..4).prop_map(|number| number.to_le_bytes().to_vec()),
        (0_u64..20).prop_map(|number| number.to_le_bytes().to_vec()),
        (0_u8..4).prop_map(|name| vec![1, 0, b'a' + name]),
        any::<u8>().prop_map(|byte| vec![byte]),
        Just(vec![0xff; 4]),
    ];
    proptest::collection::vec(word, 0..10).prop_map(|words| words.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn any_bytes_end_in_order(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        serve(&bytes);
        serve(&[greeting(), bytes].concat());
    }

    /// But for those of a conversation that was over before their turn came.
    #[test]
    fn any_messages_are_each_answered(
        messages in proptest::collection::vec(
            (proptest::sample::select(Request::NUMBERS), body()), 0..60),
    ) {
        let messages: Vec<_> =
            messages.into_iter().filter(|(number, _)| *number != VERSION_NUMBER).collect();
        let mut stream = greeting();
        for (tag, (number, body)) in (1_u16..).zip(&messages) {
            stream.extend((body.len() as u32 + 7).to_le_bytes());
            stream.push(*number);
            stream.extend(tag.to_le_bytes());
            stream.extend(body);
        }
        prop_assert_eq!(serve(&stream), messages.len() + 2);
    }
}
