//! A line to a shim, with a shim that says what the test wants.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use codeagent_control::{
    CommandId, CommandLine, ControlError, Exec, HostMessage, Line, LineError, MessageReader,
    MessageWriter, Order, Outcome, PROTOCOL_VERSION, ShimMessage,
};
use common::{completed, hello, output, started};

const SOON: Duration = Duration::from_secs(10);

struct FakeShim {
    socket: UnixStream,
    from_host: MessageReader<UnixStream, HostMessage>,
    to_host: MessageWriter<UnixStream, ShimMessage>,
}

impl FakeShim {
    fn new() -> (Line, Self) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        theirs.set_read_timeout(Some(SOON)).unwrap();
        theirs.set_write_timeout(Some(SOON)).unwrap();
        let from_host = MessageReader::new(theirs.try_clone().unwrap());
        let to_host = MessageWriter::new(theirs.try_clone().unwrap());
        (Line::over(&ours).unwrap(), Self { socket: theirs, from_host, to_host })
    }

    fn ready() -> (Line, Self) {
        let (line, mut shim) = Self::new();
        shim.say(hello(PROTOCOL_VERSION, 1));
        line.wait_until_ready(SOON).unwrap();
        assert!(matches!(shim.hear(), HostMessage::Hello { .. }));
        (line, shim)
    }

    fn say(&mut self, message: ShimMessage) {
        self.to_host.write(&message).unwrap();
    }

    fn hear(&mut self) -> HostMessage {
        self.from_host.read().unwrap().expect("the host is there").expect("a message")
    }

    fn take_command(&mut self) -> CommandId {
        match self.hear() {
            HostMessage::Exec(exec) => {
                self.say(started(exec.id));
                exec.id
            }
            other => panic!("no command: {other:?}"),
        }
    }
}

type Ended = Result<Outcome, LineError>;

/// A command on a thread of its own: what it says, how it ends, and the way to give it orders.
struct Running {
    says: Receiver<Vec<u8>>,
    orders: Sender<Order>,
    thread: JoinHandle<Ended>,
}

fn run(line: &Arc<Line>, command: &str) -> Running {
    let (orders, taken) = channel();
    let (say, says) = channel();
    let (line, exec) = (line.clone(), Exec::new(CommandLine::Shell(command.into())));
    let thread = thread::spawn(move || {
        line.run(exec, taken, |_, data| {
            let _ = say.send(data.to_vec());
        })
    });
    Running { says, orders, thread }
}

fn code(ended: Ended) -> Option<i32> {
    ended.unwrap().exit_code()
}

#[test]
fn commands_at_the_same_time_get_their_own_output_and_their_own_end() {
    let (line, mut shim) = FakeShim::ready();
    let line = Arc::new(line);
    let (one, two) = (run(&line, "one"), run(&line, "two"));
    let (first, second) = (shim.take_command(), shim.take_command());
    shim.say(output(second, b"of the second"));
    shim.say(output(first, b"of the first"));
    shim.say(completed(second, 2));
    shim.say(completed(first, 1));

    // Either thread may have been the first.
    let mut ends = [one, two].map(|command| {
        let says = command.says.iter().next();
        (code(command.thread.join().unwrap()), says)
    });
    ends.sort();
    assert_eq!(
        ends,
        [(Some(1), Some(b"of the first".to_vec())), (Some(2), Some(b"of the second".to_vec()))]
    );
}

#[test]
fn a_command_waits_until_the_shim_has_said_hello_and_can_be_cancelled_before() {
    let (line, mut shim) = FakeShim::new();
    let line = Arc::new(line);
    let command = run(&line, "early");
    command.orders.send(Order::Cancel).unwrap();
    assert!(matches!(shim.hear(), HostMessage::Hello { .. }));
    shim.say(hello(PROTOCOL_VERSION, 1));
    let id = shim.take_command();
    assert!(matches!(shim.hear(), HostMessage::Cancel { id: of } if of == id));
    shim.say(completed(id, 0));
    assert_eq!(code(command.thread.join().unwrap()), Some(0));
}

#[test]
fn whoever_does_not_read_holds_up_the_shim_but_no_cancel() {
    const PIECE: usize = 256 << 10;
    let (line, mut shim) = FakeShim::ready();
    let (read_on, may_read) = channel::<()>();
    let (orders, taken) = channel();
    let exec = Exec::new(CommandLine::Shell("much".into()));
    let command = thread::spawn(move || {
        let mut bytes = 0;
        let ended = line.run(exec, taken, |_, data| {
            bytes += data.len();
            let _ = may_read.recv(); // fails once everything may be read
        });
        (ended, bytes)
    });
    let id = shim.take_command();
    let mut written = 0;
    shim.socket.set_write_timeout(Some(Duration::from_millis(200))).unwrap();
    while shim.to_host.write(&output(id, &vec![b'x'; PIECE])).is_ok() {
        written += 1;
        assert!(written < 64, "nothing holds the shim up");
    }
    orders.send(Order::Cancel).unwrap();
    assert!(matches!(shim.hear(), HostMessage::Cancel { id: of } if of == id));
    drop(read_on);
    drop(shim);
    let (ended, bytes) = command.join().unwrap();
    assert!(bytes >= written * PIECE, "{bytes} of {written} pieces");
    assert_eq!(ended.unwrap(), Outcome::ShimLost);
}

#[test]
fn a_shim_that_does_not_read_holds_up_nobody_and_is_given_up() {
    let (line, mut shim) = FakeShim::ready();
    let line = Arc::new(line);
    let first = run(&line, "first");
    shim.take_command();
    // More than any socket holds on its way.
    let second = run(&line, &"x".repeat(900 << 10));
    let (done, is_done) = channel();
    let stopping = Arc::clone(&line);
    thread::spawn(move || {
        for _ in 0..100 {
            stopping.notify_rollback(codeagent_common::StepId(1)).unwrap();
        }
        done.send(()).unwrap();
    });
    is_done.recv_timeout(SOON).expect("whoever sends something is not held up");
    first.orders.send(Order::Cancel).unwrap();
    for command in [first, second] {
        let ended = command.thread.join().unwrap();
        assert!(matches!(ended, Err(LineError::Control(ControlError::Unread))), "{ended:?}");
    }
    let next = run(&line, "next").thread.join().unwrap();
    assert!(matches!(next, Err(LineError::Control(ControlError::Unread))), "{next:?}");
}

#[test]
fn a_shim_that_stands_still_need_not_read() {
    let (line, mut shim) = FakeShim::ready();
    let line = Arc::new(line);
    line.stand_still().unwrap();
    let command = run(&line, &"x".repeat(900 << 10));
    // Longer than a shim may leave lying what it is sent.
    thread::sleep(Duration::from_secs(11));
    line.go_on().unwrap();
    let id = shim.take_command();
    shim.say(completed(id, 0));
    assert_eq!(code(command.thread.join().unwrap()), Some(0));
}

#[test]
fn a_shim_that_goes_takes_all_commands_with_it_and_the_next_is_told() {
    let (line, mut shim) = FakeShim::ready();
    let line = Arc::new(line);
    let command = run(&line, "lost");
    shim.take_command();
    drop(shim);
    assert_eq!(command.thread.join().unwrap().unwrap(), Outcome::ShimLost);

    let next = run(&line, "too late").thread.join().unwrap();
    assert!(matches!(next, Err(LineError::Control(ControlError::Disconnected))), "{next:?}");
    let ready = line.wait_until_ready(SOON);
    assert!(matches!(ready, Err(LineError::Control(ControlError::Disconnected))), "{ready:?}");
}

#[test]
fn input_goes_to_its_command_and_whoever_sent_it_hears_that_it_was_taken() {
    let (line, mut shim) = FakeShim::ready();
    let (orders, taken) = channel();
    let mut exec = Exec::new(CommandLine::Shell("cat".into()));
    exec.stdin = codeagent_control::Stdin::Stream;
    let command = thread::spawn(move || line.run(exec, taken, |_, _| {}));
    let id = shim.take_command();
    let (tell, told) = channel();
    orders.send(Order::Input { data: b"some".to_vec(), eof: true }).unwrap();
    orders.send(Order::TellWhenTaken(tell)).unwrap();
    match shim.hear() {
        HostMessage::Stdin { id: of, data, eof } => {
            assert_eq!((of, data.as_bytes(), eof), (id, &b"some"[..], true));
        }
        other => panic!("no input: {other:?}"),
    }
    told.recv_timeout(SOON).unwrap();
    shim.say(completed(id, 0));
    assert_eq!(code(command.join().unwrap()), Some(0));
}
