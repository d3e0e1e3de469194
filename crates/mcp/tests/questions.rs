//! Questions that come up while a command runs, asked by clients that call again with the answer.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

mod common;

use std::time::{Duration, Instant};

use codeagent_mcp::OpenQuestion;
use common::{Client, Place, User, bad, call, good, place, request, text, until};
use rmcp::model::{CallToolRequestParams, CallToolResponse, CallToolResult, ProtocolVersion};
use serde_json::{Value, json};

fn question(message: &str, time: Duration) -> OpenQuestion {
    OpenQuestion::new(message, Instant::now() + time)
}

const LONG: Duration = Duration::from_secs(600);

/// With these questions before anything is kept, and a client of the newest era.
async fn asking(questions: &[OpenQuestion], answer: bool) -> (Place, Client) {
    let place = place();
    *place.backend.questions.lock().unwrap() = questions.to_vec();
    let client = place.connect(User::new(ProtocolVersion::V_2026_07_28, Some(answer))).await;
    (place, client)
}

/// A command that says outside of the folder how often it ran.
fn command(place: &Place) -> Value {
    json!({ "command": format!("echo ran >> {}; touch made", times(place).display()) })
}

fn times(place: &Place) -> std::path::PathBuf {
    place.root.path().join("times")
}

fn ran(place: &Place) -> usize {
    std::fs::read_to_string(times(place)).unwrap_or_default().lines().count()
}

/// The state of the question that a call is answered with.
async fn asked(client: &Client, arguments: &Value) -> String {
    let response = client.peer().call_tool_once(request("Bash", arguments)).await.unwrap();
    let CallToolResponse::InputRequired(required) = response else { panic!("{response:?}") };
    required.request_state.unwrap()
}

fn answered(arguments: &Value, state: &str, answer: bool) -> CallToolRequestParams {
    let mut again = request("Bash", arguments);
    let answer = json!({ "action": "accept", "content": { "confirm": answer } });
    again.input_responses = Some([("confirm".to_owned(), answer)].into());
    again.request_state = Some(state.to_owned());
    again
}

async fn complete(client: &Client, again: CallToolRequestParams) -> CallToolResult {
    match client.peer().call_tool_once(again).await.unwrap() {
        CallToolResponse::Complete(result) => result,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_command_runs_once_and_does_what_the_user_says() {
    for answer in [true, false] {
        let questions = ["one", "two", "two"].map(|message| question(message, LONG));
        let (place, client) = asking(&questions, answer).await;
        let result = call(&client, "Bash", command(&place)).await;
        assert_eq!(result.is_error == Some(true), !answer, "{}", text(&result));
        assert_eq!((ran(&place), place.path("made").exists()), (1, answer));
        // One after the other, also if they say the same; none after a no.
        let asked = client.service().questions.lock().unwrap().clone();
        assert_eq!(asked, if answer { vec!["one", "two", "two"] } else { vec!["one"] });
    }
}

#[tokio::test]
async fn an_answer_without_its_question_starts_nothing() {
    let (place, client) = asking(&[question("sure?", LONG)], true).await;
    let arguments = command(&place);
    let state = asked(&client, &arguments).await;
    let mut stateless = answered(&arguments, "", true);
    stateless.request_state = None;
    let other = json!({ "command": "touch other" });
    for wrong in [
        answered(&arguments, &state.replace('.', "x"), true),
        answered(&other, &state, true),
        stateless,
    ] {
        let said = text(&complete(&client, wrong).await);
        assert!(said.contains("nothing was started") && said.contains("bash_1"), "{said}");
    }
    let right = complete(&client, answered(&arguments, &state, true)).await;
    let again = complete(&client, answered(&arguments, &state, true)).await;

    assert_ne!(right.is_error, Some(true), "{}", text(&right));
    assert_eq!(again.is_error, Some(true), "{}", text(&again));
    assert_eq!((ran(&place), place.path("other").exists()), (1, false));
}

#[tokio::test]
async fn whoever_waits_for_a_background_command_gets_its_question() {
    let (place, client) = asking(&[question("sure?", LONG)], true).await;
    let mut arguments = command(&place);
    arguments["run_in_background"] = json!(true);
    let begun = good(&client, "Bash", arguments).await;
    assert!(begun.contains("bash_1"), "{begun}");
    until(|| ran(&place) == 1).await;
    let end = good(&client, "Bash", json!({ "handle": "bash_1" })).await;
    assert!(end.contains("(no output)"), "{end}");
    assert_eq!(*client.service().questions.lock().unwrap(), ["sure?"]);
    assert_eq!(ran(&place), 1);
}

#[tokio::test]
async fn an_answer_that_comes_too_late_is_told_with_the_end_of_the_command() {
    let (place, client) = asking(&[question("sure?", Duration::from_secs(2))], true).await;
    let arguments = command(&place);
    let state = asked(&client, &arguments).await;
    // What it did is taken back when its time is over.
    until(|| !place.path("made").exists()).await;
    let result = complete(&client, answered(&arguments, &state, true)).await;
    let said = text(&result);
    assert_eq!(result.is_error, Some(true), "{said}");
    assert!(
        said.contains("too late") && said.contains("it was denied (safeguard_denied)"),
        "{said}"
    );
    assert!(bad(&client, "Bash", json!({ "handle": "bash_1" })).await.contains("no command"));
    assert_eq!(ran(&place), 1);
}

#[tokio::test]
async fn a_question_that_somebody_else_settled_does_not_keep_its_command() {
    let open = question("sure?", LONG);
    let (place, client) = asking(std::slice::from_ref(&open), true).await;
    let arguments = command(&place);
    let state = asked(&client, &arguments).await;
    open.settled.cancel();
    let said = text(&complete(&client, answered(&arguments, &state, true)).await);
    assert!(said.contains("had been settled"), "{said}");
}

#[tokio::test]
async fn a_command_with_a_question_is_stopped_by_its_handle() {
    let (place, client) = asking(&[question("sure?", LONG)], true).await;
    asked(&client, &command(&place)).await;
    let stopped = bad(&client, "Bash", json!({ "handle": "bash_1", "stop": true })).await;
    assert!(stopped.contains("denied"), "{stopped}");
    assert!(!place.path("made").exists());
    assert_eq!(*client.service().questions.lock().unwrap(), [""; 0]);
}

#[tokio::test]
async fn the_question_of_a_client_that_has_gone_is_not_kept_open() {
    let (place, client) = asking(&[question("sure?", LONG)], true).await;
    asked(&client, &command(&place)).await;
    client.cancel().await.unwrap();
    until(|| !place.path("made").exists()).await;
    place.backend.questions.lock().unwrap().clear();
    // Nothing is held: the next command has its turn.
    let next = place.connect(User::new(ProtocolVersion::V_2026_07_28, None)).await;
    good(&next, "Bash", json!({ "command": "touch next" })).await;
}

#[tokio::test]
async fn ends_that_nobody_asks_for_do_not_keep_others_from_running() {
    let (place, client) = asking(&[], true).await;
    for nth in 1..=40 {
        let line = format!("until test -e go{nth}; do sleep 0.005; done; touch done{nth}");
        let said =
            good(&client, "Bash", json!({ "command": line, "run_in_background": true })).await;
        assert!(said.contains(&format!("bash_{nth}\"")), "{said}");
        std::fs::write(place.path(&format!("go{nth}")), "").unwrap();
        until(|| place.path(&format!("done{nth}")).exists()).await;
    }
    // The oldest are forgotten.
    assert!(bad(&client, "Bash", json!({ "handle": "bash_1" })).await.contains("no command"));
    let newest = good(&client, "Bash", json!({ "handle": "bash_40" })).await;
    assert!(newest.contains("(no output)"), "{newest}");
}

#[tokio::test]
async fn older_clients_are_asked_while_the_call_waits() {
    for answer in [true, false] {
        let place = place();
        *place.backend.questions.lock().unwrap() = vec![question("sure?", LONG)];
        let user = User::new(ProtocolVersion::V_2025_11_25, Some(answer));
        let client = place.connect(user).await;
        let result = call(&client, "Bash", command(&place)).await;
        assert_eq!(result.is_error == Some(true), !answer, "{}", text(&result));
        assert_eq!((ran(&place), place.path("made").exists()), (1, answer));
        assert_eq!(*client.service().questions.lock().unwrap(), ["sure?"]);
    }
}
