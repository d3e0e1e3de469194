//! Every request, right and wrong.
#![allow(clippy::unwrap_used)]

mod common;

use codeagent_stdio::Request;
use common::Client;
use serde_json::{Value, json};

/// A valid payload of every operation.
fn samples() -> Vec<(&'static str, Value)> {
    vec![
        (
            "session.start",
            json!({
                "protocol_version": 1,
                "working_directories": [
                    { "path": "/home/me/project", "label": "project", "access": "read_write" },
                    { "path": "/home/me/shared", "access": "read_only" }
                ],
                "network_policy": "open",
                "vm_mode": "persistent"
            }),
        ),
        ("session.stop", json!({})),
        ("session.reset", json!({})),
        ("session.status", json!({})),
        ("undo.rollback", json!({ "count": 2, "force": true })),
        ("undo.redo", json!({ "steps": 1, "directory": "project" })),
        ("undo.preview", json!({ "directory": 1 })),
        ("undo.restore", json!({ "step_id": 7, "paths": ["src/main.rs"] })),
        ("undo.history", json!({ "limit": 5 })),
        ("undo.diff", json!({ "step_id": -2 })),
        ("undo.pin", json!({ "step_id": 7 })),
        ("undo.configure", json!({ "max_step_count": 50 })),
        ("undo.discard", json!({})),
        ("step.begin", json!({ "label": "refactoring" })),
        ("step.commit", json!({})),
        ("step.rollback", json!({})),
        ("agent.execute", json!({ "command": "npm install", "env": { "CI": "1" } })),
        ("agent.prompt", json!({ "prompt": "fix it" })),
        ("fs.list", json!({ "path": "src" })),
        ("fs.read", json!({ "path": "/home/me/project/a.txt", "limit_bytes": 10 })),
        ("fs.status", json!({})),
        ("safeguard.configure", json!({ "delete_threshold": 50, "timeout_seconds": 30 })),
        ("safeguard.confirm", json!({ "safeguard_id": "sg_001", "action": "allow" })),
        ("protocol.hello", json!({ "protocol_version": 1 })),
        ("request.cancel", json!({ "request_id": "no such request" })),
    ]
}

fn code(response: &Value) -> &str {
    response["error"]["code"].as_str().unwrap_or("ok")
}

fn field(response: &Value) -> &str {
    response["error"]["field"].as_str().unwrap_or_default()
}

/// SA-01, SA-05
#[test]
fn every_operation_reaches_the_handler_and_is_answered_under_its_id() {
    assert!(samples().iter().map(|(name, _)| *name).eq(Request::NAMES.iter().copied()));
    let mut client = Client::start();
    for (number, (name, payload)) in samples().into_iter().enumerate() {
        let response = client.ask(name, &format!("request {number}"), payload);

        assert!(
            !["missing_field", "invalid_field", "unknown_operation"].contains(&code(&response))
        );
        assert!(response.get("ignored_fields").is_none(), "{response}");
    }
    // All but `protocol.hello` and `request.cancel`, which the handler never sees.
    assert_eq!(client.toy.calls.lock().unwrap().len(), samples().len() - 2);
}

#[test]
fn an_id_may_be_a_number_and_comes_back_as_one() {
    let mut client = Client::start();
    client.send(&json!({ "type": "session.status", "request_id": 17 }));

    assert_eq!(client.receive()["request_id"], 17);
}

/// SA-02
#[test]
fn an_unknown_operation_is_an_error_with_its_name() {
    let response = Client::start().ask("session.dance", "1", json!({}));

    assert_eq!((code(&response), field(&response)), ("unknown_operation", "type"));
    assert_eq!(response["error"]["message"], "there is no operation `session.dance`");
}

/// SA-03
#[test]
fn a_missing_field_is_named() {
    for (name, payload, missing) in [
        ("session.start", json!({}), "payload.working_directories"),
        (
            "session.start",
            json!({ "working_directories": [{}] }),
            "payload.working_directories[0].path",
        ),
        ("undo.restore", json!({ "paths": ["a"] }), "payload.step_id"),
        ("agent.execute", json!({}), "payload.command"),
        ("fs.read", json!({}), "payload.path"),
        ("safeguard.confirm", json!({ "safeguard_id": "sg_001" }), "payload.action"),
    ] {
        let response = Client::start().ask(name, "1", payload);

        assert_eq!((code(&response), field(&response)), ("missing_field", missing));
    }
}

#[test]
fn a_wrong_field_is_named() {
    for (name, payload, wrong) in [
        ("undo.rollback", json!({ "count": "two" }), "payload.count"),
        ("undo.rollback", json!({ "count": -1 }), "payload.count"),
        ("undo.rollback", json!({ "count": 0 }), "payload.count"),
        ("undo.rollback", json!({ "force": true, "skip_conflicts": true }), "payload.force"),
        ("session.start", json!({ "working_directories": [] }), "payload.working_directories"),
        (
            "session.start",
            json!({ "working_directories": [{ "path": "/a", "access": "maybe" }] }),
            "payload.working_directories[0].access",
        ),
        ("agent.execute", json!({ "command": "  " }), "payload.command"),
        ("agent.execute", json!({ "command": ["ls"] }), "payload.command"),
        ("agent.execute", json!(["ls"]), "payload"),
        (
            "safeguard.confirm",
            json!({ "safeguard_id": "sg_001", "action": "perhaps" }),
            "payload.action",
        ),
        ("safeguard.configure", json!({ "delete_threshold": 0 }), "payload.delete_threshold"),
        ("undo.restore", json!({ "step_id": 7, "paths": [] }), "payload.paths"),
    ] {
        let response = Client::start().ask(name, "1", payload.clone());

        assert_eq!((code(&response), field(&response)), ("invalid_field", wrong), "{payload}");
    }
}

#[test]
fn nine_working_directories_are_too_many() {
    let directories: Vec<_> = (0..9).map(|n| json!({ "path": format!("/{n}") })).collect();
    let payload = json!({ "working_directories": directories });

    let response = Client::start().ask("session.start", "1", payload);

    assert_eq!(field(&response), "payload.working_directories");
}

#[test]
fn unknown_fields_are_ignored_and_named() {
    let mut client = Client::start();
    let payload = json!({ "count": 1, "force": true, "forced": true, "later": { "a": 1 } });

    let response = client.ask("undo.rollback", "1", payload);

    assert_eq!(response["status"], "ok");
    assert_eq!(response["ignored_fields"], json!(["payload.forced", "payload.later"]));
}

#[test]
fn what_is_wrong_with_an_envelope_is_said() {
    for (line, expected_code, expected_field, id) in [
        (r#"{"type":"session.status"}"#, "missing_field", "request_id", Value::Null),
        (r#"{"request_id":"1"}"#, "missing_field", "type", json!("1")),
        (r#"{"type":7,"request_id":"1"}"#, "invalid_field", "type", json!("1")),
        (
            r#"{"type":"session.status","request_id":[]}"#,
            "invalid_field",
            "request_id",
            Value::Null,
        ),
        (r#"["session.status","1"]"#, "malformed_json", "", Value::Null),
        (r#""session.status""#, "malformed_json", "", Value::Null),
        (r#"{"type":"session.status","request_id":"1""#, "malformed_json", "", Value::Null),
        (r#"{"type":"session.status","request_id":"1"} {}"#, "malformed_json", "", Value::Null),
        ("nonsense", "malformed_json", "", Value::Null),
    ] {
        let mut client = Client::start();
        client.send_bytes(format!("{line}\n").as_bytes());

        let response = client.receive();

        assert_eq!((code(&response), field(&response)), (expected_code, expected_field), "{line}");
        assert_eq!(response["request_id"], id, "{line}");
    }
}

/// SA-04
#[test]
fn a_version_that_is_not_spoken_here_is_refused_and_nothing_is_done() {
    let mut client = Client::start();
    let directories = json!([{ "path": "/home/me/project" }]);
    let start = json!({ "protocol_version": 99, "working_directories": directories });

    let in_payload = client.ask("session.start", "1", start);
    client.send(&json!({ "type": "session.stop", "request_id": "2", "protocol_version": 99 }));
    let in_envelope = client.response("2");

    for response in [in_payload, in_envelope] {
        assert_eq!(code(&response), "unsupported_version");
        assert_eq!(response["error"]["data"], json!({ "min": 1, "max": 1 }));
    }
    assert!(client.toy.calls.lock().unwrap().is_empty());
}

#[test]
fn the_newest_version_that_both_know_is_agreed_upon() {
    let mut client = Client::start();

    let newer = client.ask(
        "protocol.hello",
        "1",
        json!({ "protocol_version": 7, "min_protocol_version": 1 }),
    );
    let too_new = client.ask("protocol.hello", "2", json!({ "protocol_version": 7 }));
    let too_old = client.ask("protocol.hello", "3", json!({ "protocol_version": 0 }));

    assert_eq!(newer["payload"]["protocol_version"], 1);
    assert_eq!(newer["payload"]["operations"].as_array().unwrap().len(), Request::NAMES.len());
    assert_eq!(code(&too_new), "unsupported_version");
    assert_eq!(code(&too_old), "unsupported_version");
}

/// SA-10, SA-11
#[test]
fn a_path_outside_the_working_directory_is_refused() {
    for (name, path) in [
        ("fs.read", "../../etc/passwd"),
        ("fs.read", "src/../../other"),
        ("fs.read", "/etc/passwd"),
        ("fs.read", "/home/me/project/../other/secret"),
        ("fs.list", "/home/me"),
        ("fs.list", "/home/me/project2"),
    ] {
        let mut client = Client::start();

        let response = client.ask(name, "1", json!({ "path": path }));

        assert_eq!(code(&response), "path_outside_root", "{path}");
        assert!(client.toy.calls.lock().unwrap().is_empty());
    }
    let response = Client::start().ask("fs.read", "1", json!({ "path": "a\0b" }));
    assert_eq!((code(&response), field(&response)), ("invalid_field", "payload.path"));
}

#[test]
fn a_path_within_the_working_directory_is_brought_into_order() {
    let mut client = Client::start();

    client.ask("fs.list", "1", json!({ "path": "./src//../docs/" }));
    client.ask("fs.list", "2", json!({ "path": "/home/me/project/docs" }));
    client.ask("fs.list", "3", json!({}));

    assert_eq!(*client.toy.calls.lock().unwrap(), [r#""docs""#, r#""docs""#, r#"".""#]);
}
