//! Conversations as they are on the wire.
#![allow(clippy::unwrap_used)]

mod common;

use common::Client;
use serde_json::json;

#[test]
fn a_session() {
    let mut client = Client::start();
    client.ask("protocol.hello", "0", json!({ "protocol_version": 1 }));
    let directories = json!([{ "path": "/home/me/project" }]);
    client.ask("session.start", "1", json!({ "working_directories": directories }));
    client.ask("agent.execute", "2", json!({ "command": "echo added 150 packages" }));
    client.ask("undo.history", "3", json!({}));
    client.ask("undo.rollback", "4", json!({ "count": 1 }));
    client.ask("undo.rollback", "5", json!({ "count": 1, "force": true }));
    client.ask("session.stop", "6", json!({}));

    insta::assert_snapshot!(client.transcript.join("\n"));
}

#[test]
fn a_safeguard() {
    let mut client = Client::start();
    client.ask(
        "safeguard.configure",
        "1",
        json!({ "delete_threshold": 50, "timeout_seconds": 30 }),
    );
    client.request("agent.execute", "2", json!({ "command": "ask" }));
    client.receive();
    client.request(
        "safeguard.confirm",
        "3",
        json!({ "safeguard_id": "sg_001", "action": "allow" }),
    );
    client.response("3");
    client.response("2");
    let mut transcript = client.transcript.clone();
    // The two answers may change places.
    let answers = transcript.len() - 2;
    transcript[answers..].sort();

    insta::assert_snapshot!(transcript.join("\n"));
}

#[test]
fn mistakes() {
    let mut client = Client::start();
    client.ask("session.dance", "1", json!({}));
    client.ask("fs.read", "2", json!({}));
    client.ask("fs.read", "3", json!({ "path": "../../etc/passwd" }));
    client.ask("agent.prompt", "4", json!({ "prompt": "fix it", "model": "large" }));
    client.ask("protocol.hello", "5", json!({ "protocol_version": 99 }));
    client.send_bytes(b"{\"type\":\"session.status\",\n");
    client.receive();

    insta::assert_snapshot!(client.transcript.join("\n"));
}
