//! Questions to the user, long commands, cancels, sockets, nonsense.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::time::Duration;

use codeagent_mcp::{McpError, Settings, SocketServer};
use common::{User, bad, call, good, is_running, place, request, text, until};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use rmcp::ServiceExt;
use rmcp::model::{CallToolResponse, ProtocolVersion};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

async fn discard(version: ProtocolVersion, answer: Option<bool>) -> (bool, usize, bool) {
    let place = place();
    let client = place.connect(User::new(version, answer)).await;
    good(&client, "Bash", json!({ "command": "touch a" })).await;
    let result = call(&client, "discard_undo_history", json!({})).await;
    let history = call(&client, "get_undo_history", json!({})).await.structured_content.unwrap();
    let questions = client.service().questions.lock().unwrap().len();
    (result.is_error == Some(true), questions, history["entries"] == json!([]))
}

#[tokio::test]
async fn the_user_is_asked_in_every_era_and_decides() {
    for version in [
        ProtocolVersion::V_2025_06_18,
        ProtocolVersion::V_2025_11_25,
        ProtocolVersion::V_2026_07_28,
    ] {
        // Whether it failed, how often the user was asked, whether the history is gone.
        assert_eq!(discard(version.clone(), Some(true)).await, (false, 1, true), "{version}");
        assert_eq!(discard(version.clone(), Some(false)).await, (true, 1, false), "{version}");
        assert_eq!(discard(version.clone(), None).await, (true, 0, false), "{version}");
    }
}

#[tokio::test]
async fn somebody_at_a_frontend_can_answer_for_a_client_that_cannot_ask() {
    let place = place();
    *place.backend.elsewhere.lock().unwrap() = Some(true);
    let client = place.connect(User::new(ProtocolVersion::V_2024_11_05, None)).await;

    good(&client, "discard_undo_history", json!({})).await;
}

#[tokio::test]
async fn a_sealed_answer_counts_once_and_for_its_own_call_only() {
    let place = place();
    let client = place.connect(User::new(ProtocolVersion::V_2026_07_28, Some(true))).await;
    let first =
        client.peer().call_tool_once(request("discard_undo_history", &json!({}))).await.unwrap();
    let CallToolResponse::InputRequired(required) = first else { panic!("{first:?}") };
    let answered = |arguments: Value, state: &str| {
        let mut again = request("discard_undo_history", &arguments);
        let answer = json!({ "action": "accept", "content": { "confirm": true } });
        again.input_responses = Some([("confirm".to_owned(), answer)].into());
        again.request_state = Some(state.to_owned());
        again
    };
    let sealed = required.request_state.unwrap();
    let forged = sealed.replace('.', "x");
    let mut outcomes = Vec::new();
    for again in [
        answered(json!({ "directory": "0" }), &sealed),
        answered(json!({}), &forged),
        answered(json!({}), &sealed),
        answered(json!({}), &sealed),
    ] {
        let response = client.peer().call_tool_once(again).await.unwrap();
        outcomes.push(matches!(response, CallToolResponse::Complete(_)));
    }

    // For another call, forged, right, used again: asked anew each time but once.
    assert_eq!(outcomes, [false, false, true, false]);
}

#[tokio::test]
async fn a_long_command_goes_on_behind_its_handle_with_progress() {
    let mut place = place();
    place.settings = Settings {
        patience: Duration::from_millis(300),
        progress_interval: Duration::from_millis(20),
    };
    let client = place.client().await;
    let command = "echo begun; until test -e go; do sleep 0.01; done; echo done; touch made";

    let first = good(&client, "Bash", json!({ "command": command })).await;
    let progress = client.service().progress.lock().unwrap().clone();
    std::fs::write(place.path("go"), "").unwrap();
    let mut rest = good(&client, "Bash", json!({ "handle": "bash_1" })).await;
    while rest.contains("still running") {
        rest = good(&client, "Bash", json!({ "handle": "bash_1" })).await;
    }

    assert!(
        first.starts_with("begun\n[still running: call Bash with handle \"bash_1\""),
        "{first}"
    );
    assert!(progress.iter().any(|message| message == "begun"), "{progress:?}");
    assert!(rest.starts_with("done\n[step 1:"), "{rest}");
    assert!(bad(&client, "Bash", json!({ "handle": "bash_1" })).await.contains("no command"));
}

#[tokio::test]
async fn a_background_command_is_stopped_by_its_handle_and_by_the_end_of_its_client() {
    let place = place();
    let client = place.client().await;
    let command = |name: &str| json!({ "command": format!("echo $$ > {name}; sleep 600"), "run_in_background": true });
    good(&client, "Bash", command("one")).await;
    good(&client, "Bash", command("two")).await;
    until(|| is_running(&place.path("one")) && is_running(&place.path("two"))).await;

    let stopped = call(&client, "Bash", json!({ "handle": "bash_1", "stop": true })).await;
    until(|| !is_running(&place.path("one"))).await;
    let other_lives = is_running(&place.path("two"));
    client.cancel().await.unwrap();

    assert!(text(&stopped).contains("it was stopped"), "{}", text(&stopped));
    assert!(other_lives);
    until(|| !is_running(&place.path("two"))).await;
}

#[tokio::test]
async fn a_cancelled_call_takes_its_command_with_it() {
    let place = place();
    let client = place.client().await;
    let pid = place.path("pid");
    let calling =
        client.call_tool(request("Bash", &json!({ "command": "echo $$ > pid; sleep 600" })));

    // Dropping the call sends the protocol's cancel.
    tokio::select! {
        _ = calling => panic!("it cannot end"),
        () = until(|| is_running(&pid)) => {}
    }

    until(|| !is_running(&pid)).await;
    assert_eq!(good(&client, "Bash", json!({ "command": "echo next" })).await, "next");
}

#[tokio::test]
async fn calls_run_side_by_side() {
    let place = place();
    let client = place.client().await;
    let waiting = client.call_tool(request(
        "Bash",
        &json!({ "command": "until test -e src/go; do sleep 0.01; done" }),
    ));
    let other = async {
        good(&client, "read_file", json!({ "file_path": "src/main.rs" })).await;
        std::fs::write(place.path("src/go"), "").unwrap();
    };

    let (waited, ()) = tokio::join!(waiting, other);

    assert_ne!(waited.unwrap().is_error, Some(true));
}

struct Raw {
    read: BufReader<tokio::io::ReadHalf<tokio::io::DuplexStream>>,
    write: tokio::io::WriteHalf<tokio::io::DuplexStream>,
}

impl Raw {
    async fn send(&mut self, line: &[u8]) {
        self.write.write_all(&[line, b"\n"].concat()).await.unwrap();
    }

    async fn next(&mut self) -> Value {
        next(&mut self.read).await
    }

    /// The response with that id; others are passed over.
    async fn response(&mut self, id: u64) -> Value {
        loop {
            let message = self.next().await;
            if message["id"] == id {
                return message;
            }
        }
    }
}

async fn next(read: &mut BufReader<tokio::io::ReadHalf<tokio::io::DuplexStream>>) -> Value {
    let mut line = String::new();
    let read = tokio::time::timeout(common::PATIENCE, read.read_line(&mut line));
    assert!(read.await.expect("nothing came").unwrap() > 0, "it hung up");
    serde_json::from_str(&line).unwrap()
}

async fn raw(place: &common::Place) -> Raw {
    let (here, there) = tokio::io::duplex(1 << 20);
    let (read, write) = tokio::io::split(there);
    let backend = Arc::clone(&place.backend);
    tokio::spawn(codeagent_mcp::serve(read, write, backend, Settings::default()));
    let (read, write) = tokio::io::split(here);
    let mut raw = Raw { read: BufReader::new(read), write };
    let hello = json!({ "jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": { "name": "raw", "version": "1" } } });
    raw.send(hello.to_string().as_bytes()).await;
    raw.response(0).await;
    raw.send(br#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#).await;
    raw
}

/// MC-01
#[tokio::test]
async fn requests_are_answered_as_json_rpc_wants_it() {
    let place = place();
    let mut raw = raw(&place).await;
    raw.send(br#"{"jsonrpc":"2.0","id":1,"method":"no/such/method"}"#).await;
    raw.send(br#"{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"dance"}}"#).await;
    raw.send(br#"{"jsonrpc":"2.0","id":3,"method":"ping"}"#).await;
    raw.send(br#"{"jsonrpc":"2.0","id":4,"method":"tools/call"}"#).await;
    raw.send(br#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":7}}"#).await;

    assert_eq!(raw.response(1).await["error"]["code"], -32601);
    assert_eq!(raw.response(2).await["error"]["code"], -32602);
    assert_eq!(raw.response(3).await["result"], json!({}));
    for id in [4, 5] {
        let error = raw.response(id).await["error"].clone();
        assert_eq!(error["code"], -32602, "{error}");
        assert!(error["message"].as_str().unwrap().contains("name of a tool"), "{error}");
    }
    raw.send(br#"{"jsonrpc":"1.0","id":6,"method":"ping"}"#).await;
    assert_eq!(raw.response(6).await["error"]["code"], -32600);
}

#[tokio::test]
async fn a_line_that_cannot_be_read_is_answered_and_the_next_one_is_read() {
    let place = place();
    let mut raw = raw(&place).await;
    let too_long = vec![b' '; (16 << 20) + 1];
    for (line, code) in [
        (&b"not json"[..], -32700),
        (br#"{"jsonrpc":"2.0","id":1,"method":"ping""#, -32700),
        (b"{\"jsonrpc\":\"2.0\",\"id\":\"\xff\"}", -32700),
        (br#"{"foo":"bar"}"#, -32600),
        (br#"{"jsonrpc":"2.0","id":1.5,"method":"ping"}"#, -32600),
        (br#"[]"#, -32600),
        (&too_long, -32600),
    ] {
        raw.send(line).await;
        let answer = raw.next().await;
        assert_eq!(answer["error"]["code"], code, "{answer}");
        assert!(answer["id"].is_null(), "{answer}");
    }
    // These are no requests.
    for line in [&b""[..], b"\r", b"  ", br#"{"jsonrpc":"2.0","method":"notifications/new"}"#] {
        raw.send(line).await;
    }
    raw.send(b"\xEF\xBB\xBF{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}\r").await;

    let answer = raw.next().await;

    assert_eq!(answer, json!({ "jsonrpc": "2.0", "id": 1, "result": {} }));
}

fn malformed_lines(count: usize) -> Vec<Vec<u8>> {
    let mut runner = TestRunner::deterministic();
    let good = r#"{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"undo","arguments":{"steps":1}}}"#;
    let line = prop_oneof![
        proptest::collection::vec(any::<u8>(), 1..200),
        (0..good.len(), any::<u8>()).prop_map(move |(at, byte)| {
            let mut line = good.as_bytes().to_vec();
            line[at] = byte;
            line
        }),
        (1..good.len()).prop_map(move |length| good.as_bytes()[..length].to_vec()),
        "[\\[\\{\",:0-9a-z\\\\]{1,100}".prop_map(String::into_bytes),
    ];
    let wanted =
        |line: &Vec<u8>| !line.contains(&b'\n') && serde_json::from_slice::<Value>(line).is_err();
    std::iter::repeat_with(|| line.new_tree(&mut runner).unwrap().current())
        .filter(wanted)
        .take(count)
        .collect()
}

#[tokio::test]
async fn ten_thousand_malformed_lines_do_no_harm() {
    let place = place();
    let Raw { mut read, mut write } = raw(&place).await;
    let lines = malformed_lines(10_000);
    let blank = |line: &&Vec<u8>| line.iter().all(u8::is_ascii_whitespace);
    let expected = lines.len() - lines.iter().filter(blank).count();
    let writing = tokio::spawn(async move {
        for line in lines {
            write.write_all(&[&line, &b"\n"[..]].concat()).await.unwrap();
        }
        write
            .write_all(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"tools/list\"}\n")
            .await
            .unwrap();
        write
    });
    for _ in 0..expected {
        assert_eq!(next(&mut read).await["error"]["code"], -32700);
    }

    let response = next(&mut read).await;

    assert_eq!(response["result"]["tools"].as_array().unwrap().len(), 16);
    drop(writing.await.unwrap());
}

#[tokio::test]
async fn a_server_that_is_dropped_takes_its_commands_with_it() {
    let place = place();
    let path = place.root.path().join("mcp.sock");
    let server = SocketServer::bind(&path).unwrap();
    let token = format!("token {}\n", server.token());
    let backend = Arc::clone(&place.backend);
    let serving = tokio::spawn(async move { server.serve(backend, Settings::default()).await });
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream.write_all(token.as_bytes()).await.unwrap();
    let client = User::new(ProtocolVersion::V_2025_11_25, None).serve(stream).await.unwrap();
    let command = json!({ "command": "echo $$ > pid; sleep 600", "run_in_background": true });
    good(&client, "Bash", command).await;
    until(|| is_running(&place.path("pid"))).await;

    serving.abort();

    until(|| !is_running(&place.path("pid"))).await;
}

/// MC-07
#[tokio::test]
async fn a_socket_serves_several_clients_that_have_the_token() {
    let place = place();
    let path = place.root.path().join("mcp.sock");
    // Left behind by somebody who was killed.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let server = SocketServer::bind(&path).unwrap();
    let token = server.token().to_owned();
    let backend = Arc::clone(&place.backend);
    let serving = tokio::spawn(async move { server.serve(backend, Settings::default()).await });
    let connect = async |token: &str| {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        stream.write_all(format!("token {token}\n").as_bytes()).await.unwrap();
        stream
    };
    let user = || User::new(ProtocolVersion::V_2025_11_25, None);

    let one = user().serve(connect(&token).await).await.unwrap();
    let two = user().serve(connect(&token).await).await.unwrap();
    good(&one, "write_file", json!({ "file_path": "shared", "content": "x" })).await;
    let undone = good(&two, "undo", json!({})).await;
    let mut thief = connect("guessed").await;
    let mut nothing = Vec::new();

    assert!(undone.contains("D shared"));
    assert_eq!(thief.read_to_end(&mut nothing).await.unwrap(), 0);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(SocketServer::bind(&path), Err(McpError::InUse(_))));
    serving.abort();
    until(|| !path.exists()).await;
}
