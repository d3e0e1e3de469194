//! What is around every request and response.

use std::borrow::Cow;
use std::fmt;

use codeagent_common::ErrorCode;
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use crate::failure::{Failure, Outcome};
use crate::{MIN_PROTOCOL_VERSION, PROTOCOL_VERSION};

/// Longer ones are refused: an id is kept and repeated.
const MAX_ID_BYTES: usize = 256;

/// Chosen by the client; comes back in the response as it was.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum RequestId {
    Text(String),
    Number(i64),
}

impl<'de> Deserialize<'de> for RequestId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a string or an integer")]
        enum Wire {
            Text(String),
            Number(i64),
        }
        match Wire::deserialize(deserializer)? {
            Wire::Text(text) if text.len() > MAX_ID_BYTES => {
                Err(D::Error::custom(format!("longer than {MAX_ID_BYTES} bytes")))
            }
            Wire::Text(text) => Ok(Self::Text(text)),
            Wire::Number(number) => Ok(Self::Number(number)),
        }
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
        }
    }
}

impl From<&str> for RequestId {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// A request whose payload has not been looked at.
#[derive(Debug)]
pub struct Envelope<'a> {
    pub name: Cow<'a, str>,
    pub request_id: RequestId,
    pub payload: Option<&'a RawValue>,
}

/// A failure, and the request it answers, as far as that could be told.
#[derive(Debug, PartialEq)]
pub struct Refusal {
    pub request_id: Option<RequestId>,
    pub failure: Failure,
}

impl Refusal {
    pub(crate) fn new(request_id: Option<RequestId>, failure: Failure) -> Box<Self> {
        Box::new(Self { request_id, failure })
    }
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(borrow, rename = "type")]
    name: Option<Cow<'a, str>>,
    request_id: Option<RequestId>,
    protocol_version: Option<u32>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
}

/// The id alone, where the rest of the envelope is not what it should be.
#[derive(Deserialize)]
struct OnlyId {
    request_id: Option<RequestId>,
}

impl<'a> Envelope<'a> {
    pub fn parse(line: &'a [u8]) -> Result<Self, Box<Refusal>> {
        let line = std::str::from_utf8(line)
            .map_err(|error| Refusal::new(None, malformed(error.valid_up_to() + 1)))?;
        // Serde would take an array for a structure without names.
        if !line.trim_ascii_start().starts_with('{') {
            return Err(Refusal::new(None, malformed(1)));
        }
        let mut json = serde_json::Deserializer::from_str(line);
        let wire: Wire<'a> = match serde_path_to_error::deserialize(&mut json) {
            Ok(wire) => wire,
            Err(error) => return Err(refuse_envelope(line, &error)),
        };
        if let Err(error) = json.end() {
            return Err(Refusal::new(None, malformed(error.column())));
        }
        let Some(request_id) = wire.request_id else {
            return Err(Refusal::new(None, missing("request_id")));
        };
        let refuse = |failure| Refusal::new(Some(request_id.clone()), failure);
        if let Some(version) = wire.protocol_version {
            check_version(version).map_err(|failure| refuse(failure.at("protocol_version")))?;
        }
        let name = wire.name.ok_or_else(|| refuse(missing("type")))?;
        Ok(Self { name, request_id, payload: wire.payload })
    }
}

fn refuse_envelope(
    line: &str,
    error: &serde_path_to_error::Error<serde_json::Error>,
) -> Box<Refusal> {
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(line) {
        return Refusal::new(None, malformed(error.column()));
    }
    let request_id = serde_json::from_str::<OnlyId>(line).ok().and_then(|only| only.request_id);
    Refusal::new(request_id, invalid("", error))
}

fn malformed(column: usize) -> Failure {
    let message = format!("the line is no JSON object, which shows at column {column}");
    Failure::new(ErrorCode::MalformedJson, message)
}

fn missing(field: &str) -> Failure {
    Failure::new(ErrorCode::MissingField, format!("the field `{field}` is missing")).at(field)
}

/// What serde says about a value, with the field it says it about. `within` is where the value was.
pub(crate) fn invalid(
    within: &str,
    error: &serde_path_to_error::Error<serde_json::Error>,
) -> Failure {
    let path = error.path().to_string();
    let mut field = match (within, path.as_str()) {
        (within, ".") => within.to_owned(),
        ("", path) => path.to_owned(),
        (within, path) => format!("{within}.{path}"),
    };
    let text = error.inner().to_string();
    // Positions within a part of the line would mislead.
    let text = text.split(" at line ").next().unwrap_or_default();
    if let Some(name) = text.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'))
    {
        field = if field.is_empty() { name.to_owned() } else { format!("{field}.{name}") };
        return missing(&field);
    }
    if field.is_empty() {
        return Failure::new(ErrorCode::InvalidField, format!("the message is wrong: {text}"));
    }
    Failure::new(ErrorCode::InvalidField, format!("the field `{field}` is wrong: {text}")).at(field)
}

/// Whether this version is spoken here.
pub(crate) fn check_version(version: u32) -> Outcome<()> {
    if (MIN_PROTOCOL_VERSION..=PROTOCOL_VERSION).contains(&version) {
        return Ok(());
    }
    let message = format!(
        "version {version} of the protocol is not spoken here, only {MIN_PROTOCOL_VERSION} to \
         {PROTOCOL_VERSION}"
    );
    let supported = serde_json::json!({ "min": MIN_PROTOCOL_VERSION, "max": PROTOCOL_VERSION });
    Err(Failure::new(ErrorCode::UnsupportedVersion, message).with_data(&supported))
}

/// What goes back.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename = "response")]
pub(crate) struct Response<'a> {
    /// `null` if the line did not say.
    pub(crate) request_id: Option<&'a RequestId>,
    pub(crate) status: Status,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Failure>,
    /// Fields of the request that mean nothing here.
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(crate) ignored_fields: &'a [String],
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    Ok,
    Error,
}

impl<'a> Response<'a> {
    pub(crate) fn failed(request_id: Option<&'a RequestId>, failure: Failure) -> Self {
        Self {
            request_id,
            status: Status::Error,
            payload: None,
            error: Some(failure),
            ignored_fields: &[],
        }
    }

    pub(crate) fn ok(request_id: &'a RequestId, payload: Option<Box<RawValue>>) -> Self {
        Self {
            request_id: Some(request_id),
            status: Status::Ok,
            payload,
            error: None,
            ignored_fields: &[],
        }
    }
}
