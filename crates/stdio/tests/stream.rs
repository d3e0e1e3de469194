//! How requests, responses and events share two streams.
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use codeagent_stdio::{Event, Limits, MAX_LINE_BYTES, Warning};
use common::Client;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};

fn small() -> Limits {
    Limits {
        unread_output_bytes: 64 * 1024,
        unread_event_bytes: 96 * 1024,
        unread_response_bytes: 128 * 1024,
        ..Limits::default()
    }
}

fn execute(client: &mut Client, id: &str, command: &str) {
    client.request("agent.execute", id, json!({ "command": command }));
}

fn started(client: &Client, command: &str) -> usize {
    client.toy.calls.lock().unwrap().iter().filter(|call| call.contains(command)).count()
}

fn is_started(client: &Client, command: &str) -> bool {
    started(client, command) > 0
}

fn wait_until(condition: impl Fn() -> bool) {
    let deadline = std::time::Instant::now() + common::PATIENCE;
    while !condition() {
        assert!(std::time::Instant::now() < deadline, "it did not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn warning(message: &str) -> Event {
    Event::Warning(Warning {
        code: "test".into(),
        message: message.into(),
        step_id: None,
        directory: None,
        paths: vec![],
    })
}

/// SA-05, SA-06
#[test]
fn responses_and_events_interleave_and_each_says_what_it_belongs_to() {
    let mut client = Client::start();
    for n in 0..50 {
        execute(&mut client, &format!("e{n}"), &format!("echo {n}"));
        client.request("session.status", &format!("s{n}"), json!({}));
    }

    let (mut statuses, mut ends, mut outputs, mut steps) = (0, 0, 0, 0);
    for _ in 0..200 {
        let message = client.receive();
        let id = message["request_id"].as_str().unwrap_or_default();
        match message["type"].as_str().unwrap() {
            "event.terminal_output" => {
                let payload = &message["payload"];
                let id = payload["request_id"].as_str().unwrap();
                assert_eq!(payload["data"].as_str().unwrap(), &id[1..]);
                outputs += 1;
            }
            "event.step_completed" => steps += 1,
            _ if id.starts_with('s') => statuses += 1,
            _ => ends += usize::from(message["payload"]["exit_code"] == 0),
        }
    }

    assert_eq!((statuses, ends, outputs, steps), (50, 50, 50, 50));
}

#[test]
fn a_long_request_holds_up_neither_others_nor_its_own_cancel() {
    let mut client = Client::start();
    // All threads of that lane, and one that waits for a thread.
    for n in 0..17 {
        execute(&mut client, &format!("w{n}"), "wait");
    }

    assert_eq!(client.ask("session.status", "s", json!({}))["status"], "ok");
    wait_until(|| started(&client, "wait") == 16);
    for n in (0..17).rev() {
        let cancel = json!({ "request_id": format!("w{n}") });
        assert_eq!(client.ask("request.cancel", "c", cancel)["status"], "ok");
    }

    // The one that had not begun never begins.
    assert_eq!(client.response("w16")["error"]["code"], "cancelled");
    for n in 0..16 {
        assert_eq!(client.response(&format!("w{n}"))["payload"]["cancelled"], true);
    }
}

#[test]
fn a_safeguard_is_answered_while_all_long_requests_wait() {
    let mut client = Client::start();
    for n in 0..15 {
        execute(&mut client, &format!("w{n}"), "wait");
    }
    execute(&mut client, "ask", "ask");
    let question = client.wait_for(|message| message["type"] == "event.safeguard_triggered");

    let id = question["payload"]["safeguard_id"].clone();
    let answer = json!({ "safeguard_id": id, "action": "allow" });

    assert_eq!(client.ask("safeguard.confirm", "c", answer)["status"], "ok");
    assert_eq!(client.response("ask")["payload"]["exit_code"], 0);
    for n in 0..15 {
        client.ask("request.cancel", "c", json!({ "request_id": format!("w{n}") }));
    }
}

#[test]
fn what_was_answered_cannot_be_cancelled_and_an_open_id_cannot_be_used_again() {
    let mut client = Client::start();
    client.ask("session.status", "1", json!({}));
    let late = client.ask("request.cancel", "c", json!({ "request_id": "1" }));
    let oneself = client.ask("request.cancel", "c", json!({ "request_id": "c" }));
    execute(&mut client, "w", "wait");
    wait_until(|| is_started(&client, "wait"));
    let again = client.ask("session.status", "w", json!({}));
    client.ask("request.cancel", "c", json!({ "request_id": "w" }));

    assert_eq!(late["error"]["code"], "request_not_found");
    assert_eq!(oneself["error"]["code"], "request_not_found");
    assert_eq!(again["error"]["code"], "duplicate_request");
    assert_eq!(client.response("w")["payload"]["cancelled"], true);
}

#[test]
fn too_many_requests_are_refused_and_the_rest_is_answered() {
    let limits = Limits { threads_per_lane: 1, waiting_bytes_per_lane: 200, ..Limits::default() };
    let mut client = Client::start_with(limits);
    execute(&mut client, "w", "wait");
    execute(&mut client, "1", "echo 1");
    execute(&mut client, "2", "echo 2");
    execute(&mut client, "3", "echo 3");

    assert_eq!(client.response("3")["error"]["code"], "busy");
    client.ask("request.cancel", "c", json!({ "request_id": "w" }));
    assert_eq!(client.response("1")["status"], "ok");
    assert_eq!(client.response("2")["status"], "ok");
}

#[test]
fn a_mistake_of_the_handler_is_an_error_and_not_silence() {
    let mut client = Client::start();
    execute(&mut client, "1", "panic");

    assert_eq!(client.response("1")["error"]["code"], "internal");
    assert_eq!(client.ask("session.status", "2", json!({}))["status"], "ok");
}

/// SA-12
#[test]
fn a_line_past_the_limit_is_answered_and_skipped_and_nothing_else_is_lost() {
    let mut client = Client::start();
    let request = |id: &str, size| json!({ "type": "agent.prompt", "request_id": id, "payload": { "prompt": "x".repeat(size) } });
    let overhead = request("1", 0).to_string().len();
    client.request("session.status", "before", json!({}));
    client.send(&request("1", MAX_LINE_BYTES - overhead + 1));
    client.send(&request("2", MAX_LINE_BYTES - overhead));
    client.send_bytes(&[vec![b'y'; 40 << 20], vec![b'\n']].concat());
    client.request("session.status", "after", json!({}));

    for line in [2, 4] {
        let refused = client.wait_for(|message| message["request_id"].is_null());
        assert_eq!(refused["error"]["code"], "message_too_long");
        assert_eq!(refused["error"]["data"]["line"], line);
    }
    assert_eq!(client.response("before")["status"], "ok");
    assert_eq!(client.response("2")["error"]["code"], "not_configured");
    assert_eq!(client.response("after")["status"], "ok");
}

#[test]
fn an_answer_past_the_limit_is_an_error() {
    let mut client = Client::start_with(Limits { response_bytes: 1000, ..Limits::default() });

    let response = client.ask("fs.read", "1", json!({ "path": "a", "limit_bytes": 2000 }));

    assert_eq!(response["error"]["code"], "message_too_long");
}

/// SA-09
#[test]
fn a_client_that_stops_reading_blocks_no_operation_and_costs_bounded_memory() {
    let mut client = Client::start_unread(small());
    execute(&mut client, "flood", &format!("flood {}", 64 << 20));
    execute(&mut client, "w", "wait");
    wait_until(|| is_started(&client, "wait"));
    client.request("request.cancel", "c", json!({ "request_id": "w" }));
    client.request("session.status", "s", json!({}));
    wait_until(|| is_started(&client, "SessionStatusQuery") && is_started(&client, "flooded"));

    client.read();
    let mut received = 0;
    let mut missed = 0;
    let mut answered = Vec::new();
    while answered.len() < 4 {
        let message = client.receive();
        match message["type"].as_str().unwrap() {
            "event.terminal_output" => received += 1,
            "event.lagged" => missed += message["payload"]["missed"].as_u64().unwrap(),
            _ => answered.push(message["request_id"].as_str().unwrap().to_owned()),
        }
    }
    answered.sort();

    assert_eq!(answered, ["c", "flood", "s", "w"]);
    // What was in the pipe, in the outbox, and in the hand of the writer.
    assert!(received < 64, "{received} events were kept");
    assert_eq!(received + missed, (64 << 20) / 4096);
}

#[test]
fn output_gives_way_to_other_events() {
    let mut client = Client::start_unread(small());
    execute(&mut client, "flood", &format!("flood {}", 1 << 20));
    wait_until(|| is_started(&client, "flooded"));
    client.toy.emit(&warning("matters"));

    client.read();

    client.wait_for(|message| message["payload"]["message"] == "matters");
}

#[test]
fn no_response_is_lost_however_slowly_the_client_reads() {
    let limits = Limits { unread_response_bytes: 4096, ..small() };
    let mut client = Client::start_unread(limits);
    // Far more than pipe and outbox hold; who asks has to wait, so that happens elsewhere.
    let requests: Vec<u8> = (0..5000)
        .flat_map(|n| format!("{{\"type\":\"session.status\",\"request_id\":{n}}}\n").into_bytes())
        .collect();
    client.read();
    client.send_bytes(&requests);
    client.hang_up();

    let mut ids: Vec<i64> = client
        .receive_all()
        .iter()
        .map(|message| message["request_id"].as_i64().unwrap())
        .collect();
    ids.sort_unstable();

    assert_eq!(ids, (0..5000).collect::<Vec<_>>());
}

#[test]
fn the_end_of_the_requests_is_not_the_end_of_the_answers() {
    let mut client = Client::start();
    client.send_bytes(
        br#"{"type":"agent.execute","request_id":"1","payload":{"command":"echo last"}}"#,
    );
    client.hang_up();

    let received = client.receive_all();
    client.join();

    assert_eq!(received.last().unwrap()["status"], "ok");
    assert_eq!(received[0]["payload"]["data"], "last");
}

#[test]
fn a_client_that_goes_away_cancels_what_it_asked_for() {
    let mut client = Client::start_unread(Limits::default());
    execute(&mut client, "w", "wait");
    wait_until(|| is_started(&client, "wait"));
    client.stop_listening();
    client.request("session.status", "s", json!({}));
    client.hang_up();

    // It would wait a minute, and then fail.
    client.join();
}

#[test]
fn a_client_that_never_reads_does_not_keep_the_server() {
    let limits = Limits { patience: Duration::from_millis(50), ..small() };
    let mut client = Client::start_unread(limits);
    execute(&mut client, "1", "flood 1000000");
    client.hang_up();

    client.join();
}

/// Lines that are nearly requests, and lines that are nothing.
fn malformed_lines(count: usize) -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let request = r#"{"type":"undo.rollback","request_id":"x","payload":{"count":1,"force":true}}"#;
    let line = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..200),
        (0..request.len(), any::<u8>()).prop_map(move |(at, byte)| {
            let mut line = request.as_bytes().to_vec();
            line[at] = byte;
            line
        }),
        (1..request.len()).prop_map(move |length| request.as_bytes()[..length].to_vec()),
        "[\\[\\{\",:0-9a-z\\\\]{1,100}".prop_map(String::into_bytes),
    ];
    let good = |line: &Vec<u8>| {
        !line.contains(&b'\n')
            && !line.trim_ascii().is_empty()
            && serde_json::from_slice::<Value>(line).is_err()
    };
    std::iter::repeat_with(|| line.new_tree(&mut runner).unwrap().current())
        .filter(good)
        .take(count)
        .collect()
}

#[test]
fn ten_thousand_malformed_lines_are_answered_one_by_one() {
    let mut client = Client::start();
    let lines = malformed_lines(10_000);
    let stream: Vec<u8> = lines.iter().flat_map(|line| [line.as_slice(), b"\n"].concat()).collect();
    client.send_bytes(&stream);
    client.request("session.status", "after", json!({}));
    client.hang_up();

    let received = client.receive_all();

    let refused = |message: &&Value| message["error"]["code"] == "malformed_json";
    assert_eq!(received.iter().filter(refused).count(), 10_000);
    assert_eq!(received.last().unwrap()["request_id"], "after");
}
