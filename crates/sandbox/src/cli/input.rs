//! Our standard input goes to the command, no faster than it takes it.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, Sender, channel};

use codeagent_control::Order;

use super::ask::{TERMINAL, has_input, wait_for_input};
use crate::error::Result;

const CHUNK_BYTES: usize = 64 << 10;

/// So many chunks are on their way to a command that has not taken them.
const UNDER_WAY: usize = 4;

/// On a thread of its own, until the input or the command has ended.
pub(crate) fn pass_input_on(orders: Sender<Order>) -> Result<()> {
    std::thread::Builder::new().name("input".into()).spawn(move || {
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut under_way: VecDeque<Receiver<()>> = VecDeque::new();
        loop {
            let Some(read) = read_chunk(&mut buffer) else { continue };
            let (taken, is_taken) = channel();
            let order = Order::Input { data: buffer[..read].to_vec(), eof: read == 0 };
            let sent = orders.send(order).and_then(|()| orders.send(Order::TellWhenTaken(taken)));
            if sent.is_err() || read == 0 {
                return;
            }
            under_way.push_back(is_taken);
            if under_way.len() == UNDER_WAY
                && let Some(oldest) = under_way.pop_front()
            {
                let _ = oldest.recv(); // a command that has ended takes nothing any more
            }
        }
    })?;
    Ok(())
}

/// `None` if somebody else, who asks a question, has read it.
fn read_chunk(buffer: &mut [u8]) -> Option<usize> {
    wait_for_input();
    let _terminal = TERMINAL.lock();
    has_input().then(|| io::stdin().lock().read(buffer).unwrap_or(0))
}
