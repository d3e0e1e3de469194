//! A hostile guest on the control channel: whatever it says, in whatever pieces, the host does not
//! panic, holds no more than a line, and closes every step it opened.
#![no_main]

use std::io;
use std::time::{Duration, Instant};

use codeagent_common::StepId;
use codeagent_control::{
    Activity, Attribution, ControlHost, Exec, HostConfig, HostMessage, LineDecoder, MAX_LINE_BYTES,
    ShimMessage, StepSink,
};
use libfuzzer_sys::fuzz_target;

#[derive(Debug, Default)]
struct Counter {
    opened: i64,
    closed: i64,
}

impl StepSink for Counter {
    type Closed = ();
    type Error = io::Error;

    fn open_step(&mut self, _: &str) -> io::Result<StepId> {
        self.opened += 1;
        Ok(StepId(self.opened))
    }

    fn close_step(&mut self, step: StepId, _: Option<i32>) -> io::Result<()> {
        self.closed += 1;
        assert_eq!(step, StepId(self.closed));
        Ok(())
    }

    fn close_quiet_ambient_step(&mut self) -> io::Result<Option<()>> {
        Ok(None)
    }

    fn activity(&self) -> Activity {
        Activity::default()
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((&piece, stream)) = data.split_first() else { return };
    let mut now = Instant::now();
    let mut host = ControlHost::new(Counter::default(), HostConfig::default(), now);
    let mut from_guest = LineDecoder::<ShimMessage>::new();
    let mut from_host = LineDecoder::<HostMessage>::new();
    for bytes in stream.chunks(usize::from(piece).max(1)) {
        from_guest.push(bytes);
        from_host.push(bytes);
        assert!(from_guest.held_bytes() <= 2 * MAX_LINE_BYTES);
        while from_host.next_message().is_some() {}
        while let Some(message) = from_guest.next_message() {
            host.receive(message, now);
            let _ = host.exec(Exec::shell("make"), Attribution::OwnStep, now);
            let _ = host.exec(Exec::shell("serve"), Attribution::Background, now);
            now += Duration::from_millis(u64::from(piece));
            host.advance(now);
            while host.next_event().is_some() {}
            while host.next_message().is_some() {}
        }
    }
    host.channel_closed(now);
    host.advance(now + Duration::from_secs(10));
    assert_eq!(host.open_step_id(), None);
    assert_eq!(host.sink().opened, host.sink().closed);
});
