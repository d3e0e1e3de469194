//! The host's state machine and the real shim in a real guest: that steps open and close as the
//! testing plan has it, whatever the serial port does to time. What the filesystem does is played.

#![cfg(all(target_os = "linux", feature = "probe"))]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::io;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use codeagent_common::StepId;
use codeagent_control::{
    Activity, Attribution, ControlHost, Event, Exec, HostConfig, LineDecoder, MessageWriter,
    ShimMessage, StepSink,
};
use common::{PATIENCE, config, image, start};

/// Steps, and a filesystem that is busy until a moment.
#[derive(Debug, Default)]
struct Steps {
    opened: i64,
    busy_until: Option<Instant>,
    ambient: bool,
}

impl StepSink for Steps {
    type Closed = Option<i32>;
    type Error = io::Error;

    fn open_step(&mut self, _: &str) -> io::Result<StepId> {
        self.opened += 1;
        Ok(StepId(self.opened))
    }

    fn close_step(&mut self, _: StepId, exit_code: Option<i32>) -> io::Result<Option<i32>> {
        Ok(exit_code)
    }

    fn close_quiet_ambient_step(&mut self) -> io::Result<Option<Option<i32>>> {
        Ok(std::mem::take(&mut self.ambient).then_some(None))
    }

    fn activity(&self) -> Activity {
        let is_busy = self.busy_until.is_some_and(|until| Instant::now() < until);
        Activity { in_flight: u64::from(is_busy), begun: 1 }
    }
}

struct Session {
    host: ControlHost<Steps>,
    channel: UnixStream,
    decoder: LineDecoder<ShimMessage>,
}

type Seen = (Instant, Event<Option<i32>>);

impl Session {
    /// Everything that happens up to the wanted event, and when.
    fn events_until(&mut self, wanted: impl Fn(&Event<Option<i32>>) -> bool) -> Vec<Seen> {
        let mut events = Vec::new();
        let give_up_at = Instant::now() + PATIENCE;
        loop {
            while let Some(message) = self.host.next_message() {
                MessageWriter::new(&self.channel).write(&message).unwrap();
            }
            while let Some(event) = self.host.next_event() {
                assert!(!matches!(event, Event::Violation(_)), "{event:?}");
                let is_last = wanted(&event);
                events.push((Instant::now(), event));
                if is_last {
                    return events;
                }
            }
            assert!(Instant::now() < give_up_at, "never happened; so far: {events:?}");
            self.hear();
            while let Some(message) = self.decoder.next_message() {
                self.host.receive(message, Instant::now());
            }
            self.host.advance(Instant::now());
        }
    }

    fn hear(&mut self) {
        let left = self.host.next_deadline().saturating_duration_since(Instant::now());
        self.channel.set_read_timeout(Some(left.max(Duration::from_millis(1)))).unwrap();
        let mut chunk = [0; 64 * 1024];
        match io::Read::read(&mut self.channel, &mut chunk) {
            Ok(count) => self.decoder.push(&chunk[..count]),
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock, "{error}"),
        }
    }

    /// Runs a command while the filesystem is busy for so long after its end; from its end to the
    /// close of its step.
    fn settling_time(&mut self, busy_for: Duration) -> Duration {
        let exec = Exec::shell("exit 3");
        self.host.exec(exec, Attribution::OwnStep, Instant::now()).unwrap();
        self.events_until(|event| matches!(event, Event::Started { .. }));
        self.host.sink_mut().busy_until = Some(Instant::now() + PATIENCE);
        let ended = self.events_until(|event| matches!(event, Event::Ended { .. }));
        self.host.sink_mut().busy_until = Some(Instant::now() + busy_for);
        let closed = self.events_until(|event| matches!(event, Event::StepClosed { .. }));
        let (at, event) = closed.last().unwrap();
        assert!(matches!(event, Event::StepClosed { closed: Some(3), .. }), "{event:?}");
        *at - ended.last().unwrap().0
    }
}

/// CC-08 to CC-12
#[test]
fn steps_of_commands_in_a_guest_open_and_close_in_time() {
    let Some(image) = image("steps_of_commands_in_a_guest_open_and_close_in_time") else { return };
    let machine = start(config(image));
    let host = ControlHost::new(Steps::default(), HostConfig::default(), Instant::now());
    let channel = machine.control().try_clone().unwrap();
    let mut session = Session { host, channel, decoder: LineDecoder::new() };
    session.events_until(|event| matches!(event, Event::Ready));

    // CC-09: nothing is late, so it closes after 100 ms of quiet.
    let took = session.settling_time(Duration::ZERO);
    assert!((Duration::from_millis(90)..Duration::from_secs(1)).contains(&took), "{took:?}");
    // CC-10: a late write is waited for, and its 100 ms of quiet after it.
    let took = session.settling_time(Duration::from_millis(700));
    assert!((Duration::from_millis(790)..Duration::from_millis(1900)).contains(&took), "{took:?}");
    // CC-11: one that never ends is not waited for longer than 2 s.
    let took = session.settling_time(PATIENCE);
    assert!((Duration::from_millis(1900)..Duration::from_secs(4)).contains(&took), "{took:?}");
    // CC-12: what comes after that has a step of its own, which is not the command's.
    session.host.sink_mut().ambient = true;
    let events = session.events_until(|event| matches!(event, Event::AmbientStepClosed { .. }));
    assert!(
        !events.iter().any(|(_, event)| matches!(event, Event::StepClosed { .. })),
        "{events:?}"
    );
    assert_eq!(session.host.sink().opened, 3);
}
