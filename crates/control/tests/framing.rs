//! Lines: what is a message, what is not, and that nothing breaks the channel.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use codeagent_common::StepId;
use codeagent_control::{
    ByteString, Cause, CommandId, CommandLine, ControlError, Exec, ExitStatus, HostMessage,
    Leftovers, LineDecoder, LineFault, MAX_LINE_BYTES, Message, MessageReader, MessageWriter,
    PtySize, ShimErrorCode, ShimMessage, Stdin, Stream, User, encode,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

fn decode<M: Message>(bytes: &[u8]) -> Vec<Result<M, LineFault>> {
    let mut decoder = LineDecoder::new();
    decoder.push(bytes);
    std::iter::from_fn(|| decoder.next_message()).collect()
}

const PONG: ShimMessage = ShimMessage::Pong { token: 7 };
const PONG_LINE: &str = "{\"type\":\"pong\",\"token\":7}\n";

#[track_caller]
fn assert_skipped(line: &str, fault: LineFault) {
    let stream = format!("{line}\n{PONG_LINE}");
    assert_eq!(decode(stream.as_bytes()), [Err(fault), Ok(PONG)]);
}

/// CC-02
#[test]
fn malformed_json_is_reported_and_the_channel_goes_on() {
    assert_skipped("{\"type\":\"pong\",", LineFault::MalformedJson { column: 15 });
    assert_skipped("\u{0}\u{1}garbage", LineFault::MalformedJson { column: 1 });
    assert_skipped("[1,2]", LineFault::MissingType);
    assert_skipped("{\"token\":7}", LineFault::MissingType);
    assert_skipped(
        "{\"type\":\"pong\",\"token\":\"seven\"}",
        LineFault::InvalidFields { name: "pong" },
    );
}

/// CC-02
#[test]
fn deep_nesting_is_malformed_and_does_not_exhaust_the_stack() {
    let nested = "[".repeat(500_000);
    let stream = format!("{{\"type\":\"pong\",\"token\":{nested}\n{PONG_LINE}");
    let messages = decode::<ShimMessage>(stream.as_bytes());
    assert!(matches!(messages[0], Err(LineFault::MalformedJson { .. })), "{:?}", messages[0]);
    assert_eq!(messages[1], Ok(PONG));
}

/// CC-03
#[test]
fn an_unknown_type_is_reported_and_the_channel_goes_on() {
    assert_skipped("{\"type\":\"dance\"}", LineFault::UnknownType { name: "dance".into() });
}

/// CC-03
#[test]
fn the_name_of_an_unknown_type_is_cut_short() {
    let name = format!("\\u001b{}", "x".repeat(1000));
    let reported = format!("?{}", "x".repeat(63));
    assert_skipped(&format!("{{\"type\":\"{name}\"}}"), LineFault::UnknownType { name: reported });
}

#[test]
fn unknown_fields_are_ignored() {
    let line = b"{\"type\":\"pong\",\"token\":7,\"mood\":\"good\"}\r\n\n";
    assert_eq!(decode(line), [Ok(PONG)]);
}

/// CC-04
#[test]
fn an_oversized_line_is_skipped_as_it_arrives() {
    let mut decoder = LineDecoder::new();
    let chunk = [b'a'; 64 * 1024];
    let mut most_held = 0;
    for _ in 0..1024 {
        decoder.push(&chunk);
        most_held = most_held.max(decoder.held_bytes());
    }
    decoder.push(b"\n");
    decoder.push(PONG_LINE.as_bytes());

    let fault = LineFault::TooLong { limit_bytes: MAX_LINE_BYTES };
    let messages: Vec<_> = std::iter::from_fn(|| decoder.next_message()).collect();
    assert_eq!(messages, [Err(fault), Ok(PONG)]);
    assert!(most_held <= 2 * MAX_LINE_BYTES, "{most_held} bytes were held");
    assert!(decoder.held_bytes() < 1024 * 1024);
}

/// CC-04
#[test]
fn the_limit_is_exact() {
    let frame = "{\"type\":\"pong\",\"token\":7}";
    let longest = format!("{frame}{}\n", " ".repeat(MAX_LINE_BYTES - frame.len()));
    assert_eq!(decode(longest.as_bytes()), [Ok(PONG)]);
    let too_long = format!(" {longest}");
    let fault = LineFault::TooLong { limit_bytes: MAX_LINE_BYTES };
    assert_eq!(decode::<ShimMessage>(too_long.as_bytes()), [Err(fault)]);
}

/// CC-04
#[test]
fn a_message_past_the_limit_is_not_sent() {
    let message = HostMessage::Exec(Exec::shell("x".repeat(MAX_LINE_BYTES)));
    let error = encode(&message).unwrap_err();
    assert!(matches!(error, ControlError::MessageTooLong { .. }), "{error}");
    let mut sent = Vec::new();
    MessageWriter::new(&mut sent).write(&message).unwrap_err();
    assert!(sent.is_empty());
}

#[test]
fn a_line_cut_off_by_the_end_is_dropped() {
    let mut reader = MessageReader::<_, ShimMessage>::new(&PONG_LINE.as_bytes()[..10]);
    assert!(reader.read().unwrap().is_none());
}

#[test]
fn the_wire_looks_as_documented() {
    let exec = HostMessage::Exec(Exec {
        id: CommandId(42),
        cwd: Some("/mnt/working".into()),
        ..Exec::shell("npm install")
    });
    let completed = |status, cause| ShimMessage::StepCompleted { id: CommandId(42), status, cause };
    let line = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    assert_eq!(
        line(encode(&exec).unwrap()),
        "{\"type\":\"exec\",\"id\":42,\"command\":\"npm install\",\"cwd\":\"/mnt/working\"}\n"
    );
    assert_eq!(
        line(encode(&completed(ExitStatus::ExitCode(0), Cause::Exited)).unwrap()),
        "{\"type\":\"step_completed\",\"id\":42,\"exit_code\":0}\n"
    );
    assert_eq!(
        line(encode(&completed(ExitStatus::Signal(15), Cause::Cancelled)).unwrap()),
        "{\"type\":\"step_completed\",\"id\":42,\"signal\":15,\"cause\":\"cancelled\"}\n"
    );
}

#[test]
fn every_message_is_in_the_list_of_types() {
    fn is_listed<M: Message>(message: &M) -> Result<(), TestCaseError> {
        let value = serde_json::to_value(message).unwrap();
        prop_assert!(M::TYPES.contains(&value["type"].as_str().unwrap()), "{}", value);
        Ok(())
    }
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    runner.run(&host_message(), |message| is_listed(&message)).unwrap();
    runner.run(&shim_message(), |message| is_listed(&message)).unwrap();
}

fn bytes() -> impl Strategy<Value = ByteString> {
    prop_oneof![
        vec(any::<u8>(), 0..64).prop_map(ByteString::from),
        ".{0,32}".prop_map(ByteString::from),
    ]
}

fn id() -> impl Strategy<Value = CommandId> {
    any::<u64>().prop_map(CommandId)
}

fn size() -> impl Strategy<Value = PtySize> {
    any::<(u16, u16)>().prop_map(|(rows, columns)| PtySize { rows, columns })
}

fn exec() -> impl Strategy<Value = Exec> {
    let command = prop_oneof![
        bytes().prop_map(CommandLine::Shell),
        vec(bytes(), 0..4).prop_map(CommandLine::Argv),
    ];
    let user = proptest::option::of(any::<(u32, u32)>().prop_map(|(uid, gid)| User { uid, gid }));
    let what = (id(), command, btree_map(".{1,8}", bytes(), 0..3), any::<bool>());
    let how = (proptest::option::of(bytes()), user, proptest::option::of(size()));
    let more = (any::<(bool, bool)>(), any::<Option<u64>>(), any::<u64>());
    (what, how, more).prop_map(|((id, command, env, clear_env), (cwd, user, pty), more)| {
        let ((stream, kill), timeout_ms, grace_ms) = more;
        let stdin = if stream { Stdin::Stream } else { Stdin::Null };
        let leftovers = if kill { Leftovers::Kill } else { Leftovers::Keep };
        Exec {
            id,
            command,
            label: None,
            env,
            clear_env,
            cwd,
            user,
            pty,
            stdin,
            timeout_ms,
            grace_ms,
            leftovers,
        }
    })
}

fn host_message() -> impl Strategy<Value = HostMessage> {
    prop_oneof![
        any::<u32>().prop_map(|version| HostMessage::Hello { version }),
        exec().prop_map(HostMessage::Exec),
        (id(), bytes(), any::<bool>()).prop_map(|(id, data, eof)| HostMessage::Stdin {
            id,
            data,
            eof
        }),
        (id(), size()).prop_map(|(id, size)| HostMessage::Resize { id, size }),
        (id(), any::<i32>()).prop_map(|(id, signal)| HostMessage::Signal { id, signal }),
        id().prop_map(|id| HostMessage::Cancel { id }),
        any::<i64>().prop_map(|step| HostMessage::RollbackNotify { step_id: StepId(step) }),
        any::<u64>().prop_map(|token| HostMessage::Ping { token }),
        Just(HostMessage::Shutdown),
    ]
}

fn shim_message() -> impl Strategy<Value = ShimMessage> {
    let stream = prop_oneof![Just(Stream::Stdout), Just(Stream::Stderr)];
    let status = prop_oneof![
        any::<i32>().prop_map(ExitStatus::ExitCode),
        any::<i32>().prop_map(ExitStatus::Signal),
    ];
    let cause = prop_oneof![Just(Cause::Exited), Just(Cause::Cancelled), Just(Cause::TimedOut)];
    prop_oneof![
        any::<(u32, u64)>()
            .prop_map(|(version, instance)| ShimMessage::Hello { version, instance }),
        id().prop_map(|id| ShimMessage::StepStarted { id }),
        (id(), stream, bytes()).prop_map(|(id, stream, data)| ShimMessage::Output {
            id,
            stream,
            data
        }),
        (id(), any::<u32>())
            .prop_map(|(id, bytes)| ShimMessage::StdinAccepted { id, bytes: bytes as usize }),
        (id(), status, cause).prop_map(|(id, status, cause)| ShimMessage::StepCompleted {
            id,
            status,
            cause
        }),
        any::<i64>().prop_map(|step| ShimMessage::RollbackNoted { step_id: StepId(step) }),
        any::<u64>().prop_map(|token| ShimMessage::Pong { token }),
        (proptest::option::of(id()), ".{0,32}").prop_map(|(id, message)| ShimMessage::Error {
            id,
            code: ShimErrorCode::SpawnFailed,
            message
        }),
    ]
}

proptest! {
    #[test]
    fn host_messages_come_back_as_they_were(messages in vec(host_message(), 0..8)) {
        let stream: Vec<u8> = messages.iter().flat_map(|m| encode(m).unwrap()).collect();
        let expected: Vec<_> = messages.into_iter().map(Ok).collect();
        prop_assert_eq!(decode::<HostMessage>(&stream), expected);
    }

    #[test]
    fn shim_messages_come_back_however_the_stream_is_cut(
        messages in vec(shim_message(), 1..8),
        piece in 1usize..40,
    ) {
        let stream: Vec<u8> = messages.iter().flat_map(|m| encode(m).unwrap()).collect();
        let mut decoder = LineDecoder::new();
        stream.chunks(piece).for_each(|part| decoder.push(part));
        let decoded: Vec<_> = std::iter::from_fn(|| decoder.next_message()).collect();
        let expected: Vec<_> = messages.into_iter().map(Ok).collect();
        prop_assert_eq!(decoded, expected);
    }

    #[test]
    fn arbitrary_bytes_never_panic_and_never_break_the_channel(noise in vec(any::<u8>(), 0..400)) {
        let mut stream = noise;
        stream.extend_from_slice(b"\n");
        stream.extend_from_slice(PONG_LINE.as_bytes());
        let messages = decode::<ShimMessage>(&stream);
        prop_assert_eq!(messages.last(), Some(&Ok(PONG)));
        let _ = decode::<HostMessage>(&stream);
    }

    #[test]
    fn almost_messages_never_panic(
        message in shim_message(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
    ) {
        let mut line = encode(&message).unwrap();
        let at = at.index(line.len());
        line[at] = byte;
        let _ = decode::<ShimMessage>(&line);
    }
}
