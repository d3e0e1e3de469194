//! A hostile guest on the control channel: whatever it says, in whatever pieces, the host does not
//! panic, holds no more than a line, and every command it began ends once.
#![no_main]

use std::collections::HashSet;
use std::time::{Duration, Instant};

use codeagent_control::{
    ControlHost, Event, Exec, HostMessage, LineDecoder, MAX_LINE_BYTES, ShimMessage,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((&piece, stream)) = data.split_first() else { return };
    let mut now = Instant::now();
    let mut host = ControlHost::new();
    let mut running = HashSet::new();
    let mut from_guest = LineDecoder::<ShimMessage>::new();
    let mut from_host = LineDecoder::<HostMessage>::new();
    for bytes in stream.chunks(usize::from(piece).max(1)) {
        from_guest.push(bytes);
        from_host.push(bytes);
        assert!(from_guest.held_bytes() <= 2 * MAX_LINE_BYTES);
        while from_host.next_message().is_some() {}
        while let Some(message) = from_guest.next_message() {
            host.receive(message);
            running.extend(host.exec(Exec::shell("make"), now));
            now += Duration::from_millis(u64::from(piece));
            host.advance(now);
            end(&mut host, &mut running);
            while host.next_message().is_some() {}
        }
    }
    host.channel_closed();
    end(&mut host, &mut running);
    assert!(running.is_empty());
});

fn end(host: &mut ControlHost, running: &mut HashSet<codeagent_control::CommandId>) {
    while let Some(event) = host.next_event() {
        if let Event::Ended { id, .. } = event {
            assert!(running.remove(&id));
        }
    }
}
