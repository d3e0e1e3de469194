//! JSON Schemas of everything that travels, made from the types.

use schemars::generate::SchemaSettings;
use schemars::{Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::envelope::RequestId;
use crate::event::Event;
use crate::failure::Failure;
use crate::operations;

/// The files of `docs/schema/`: name and content.
pub fn documents() -> Vec<(&'static str, Value)> {
    vec![
        ("stdio-requests.schema.json", requests()),
        ("stdio-responses.schema.json", responses()),
        ("stdio-events.schema.json", events()),
    ]
}

fn generator(for_reading: bool) -> SchemaGenerator {
    let settings = SchemaSettings::draft2020_12();
    if for_reading { settings.for_deserialize() } else { settings.for_serialize() }.into_generator()
}

fn document(
    title: &str,
    description: &str,
    one_of: Vec<Value>,
    mut types: SchemaGenerator,
) -> Value {
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": title,
        "description": description,
        "oneOf": one_of,
        "$defs": types.take_definitions(true),
    })
}

fn requests() -> Value {
    let mut types = generator(true);
    let id = types.subschema_for::<RequestId>();
    let one_of = operations::schemas(&mut types)
        .into_iter()
        .map(|(name, payload, _)| {
            let needs_payload = has_required(&payload, types.definitions());
            let mut required = vec!["type", "request_id"];
            required.extend(needs_payload.then_some("payload"));
            json!({
                "title": name,
                "type": "object",
                "properties": {
                    "type": { "const": name },
                    "request_id": id,
                    "protocol_version": { "type": "integer", "minimum": 1 },
                    "payload": payload,
                },
                "required": required,
            })
        })
        .collect();
    document("Requests", "A line to the sandbox.", one_of, types)
}

/// Whether a payload has fields that cannot be left out.
fn has_required(schema: &Schema, definitions: &Map<String, Value>) -> bool {
    let Some(name) = schema.get("$ref").and_then(Value::as_str) else {
        return schema.get("required").is_some();
    };
    let definition = name.rsplit('/').next().and_then(|name| definitions.get(name));
    definition.is_some_and(|definition| definition.get("required").is_some())
}

fn responses() -> Value {
    let mut types = generator(false);
    let id = types.subschema_for::<RequestId>();
    let failure = types.subschema_for::<Failure>();
    let ignored = json!({ "type": "array", "items": { "type": "string" } });
    let mut one_of: Vec<Value> = operations::schemas(&mut types)
        .into_iter()
        .map(|(name, _, reply)| {
            let mut properties = json!({
                "type": { "const": "response" },
                "request_id": id,
                "status": { "const": "ok" },
                "ignored_fields": ignored,
            });
            let mut required = vec!["type", "request_id", "status"];
            if reply.get("type") != Some(&json!("null")) {
                properties["payload"] = json!(reply);
                required.push("payload");
            }
            json!({
                "title": format!("to {name}"),
                "type": "object",
                "properties": properties,
                "required": required,
            })
        })
        .collect();
    one_of.push(json!({
        "title": "failure",
        "type": "object",
        "properties": {
            "type": { "const": "response" },
            "request_id": { "oneOf": [id, { "type": "null" }] },
            "status": { "const": "error" },
            "error": failure,
            "ignored_fields": ignored,
        },
        "required": ["type", "request_id", "status", "error"],
    }));
    let mut document = document("Responses", "The answer to a request.", one_of, types);
    // Several operations answer with the same type.
    if let Some(alternatives) = document.as_object_mut().and_then(|all| all.remove("oneOf")) {
        document["anyOf"] = alternatives;
    }
    document
}

fn events() -> Value {
    let mut types = generator(false);
    let mut schema = <Event as schemars::JsonSchema>::json_schema(&mut types);
    let one_of = match schema.remove("oneOf") {
        Some(Value::Array(alternatives)) => alternatives,
        _ => Vec::new(),
    };
    document("Events", "What the sandbox says unasked.", one_of, types)
}
