//! Bytes in JSON: as text where they are text, in base64 where they are not. Nothing is lost.

use std::borrow::Cow;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A string of arbitrary bytes: output, input, an argument, a path.
#[derive(Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ByteString(Vec<u8>);

impl ByteString {
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// For people: what is not UTF-8 is replaced.
    pub fn to_text(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }

    /// The bytes as text, unless base64 is shorter: a control character takes six bytes in JSON,
    /// and a stream of them must not become a line past the limit.
    fn as_short_text(&self) -> Option<&str> {
        let text = std::str::from_utf8(&self.0).ok()?;
        let escaped = text.bytes().filter(|byte| *byte < 0x20 && !b"\n\r\t".contains(byte)).count();
        (escaped * 5 <= text.len() / 3 + 16).then_some(text)
    }
}

#[derive(Serialize)]
struct Encoded {
    base64: String,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Wire<'a> {
    Text(#[serde(borrow)] Cow<'a, str>),
    Encoded { base64: Cow<'a, str> },
}

impl Serialize for ByteString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.as_short_text() {
            Some(text) => serializer.serialize_str(text),
            None => Encoded { base64: STANDARD.encode(&self.0) }.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for ByteString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Wire::deserialize(deserializer)? {
            Wire::Text(text) => Ok(Self(text.into_owned().into_bytes())),
            Wire::Encoded { base64 } => {
                STANDARD.decode(base64.as_bytes()).map(Self).map_err(D::Error::custom)
            }
        }
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for ByteString {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ByteString".into()
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({
            "description": "Bytes: as text where they are text, in base64 where they are not.",
            "oneOf": [
                { "type": "string" },
                {
                    "type": "object",
                    "properties": { "base64": { "type": "string" } },
                    "required": ["base64"]
                }
            ]
        })
    }
}

impl fmt::Debug for ByteString {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl From<Vec<u8>> for ByteString {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl From<&[u8]> for ByteString {
    fn from(bytes: &[u8]) -> Self {
        Self(bytes.to_vec())
    }
}

impl From<&str> for ByteString {
    fn from(text: &str) -> Self {
        Self(text.as_bytes().to_vec())
    }
}

impl From<String> for ByteString {
    fn from(text: String) -> Self {
        Self(text.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(bytes: &[u8]) -> String {
        serde_json::to_string(&ByteString::from(bytes)).unwrap()
    }

    #[test]
    fn text_stays_readable() {
        assert_eq!(json("añadido 150\n".as_bytes()), r#""añadido 150\n""#);
    }

    #[test]
    fn what_is_not_text_is_base64() {
        assert_eq!(json(b"\x00\xff"), r#"{"base64":"AP8="}"#);
    }

    #[test]
    fn control_characters_do_not_swell_a_line() {
        assert!(json(&[0; 3000]).len() < 4100);
    }

    #[test]
    fn broken_base64_is_an_error() {
        assert!(serde_json::from_str::<ByteString>(r#"{"base64":"=="}"#).is_err());
    }
}
