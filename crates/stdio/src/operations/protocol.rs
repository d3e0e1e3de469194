//! `protocol.hello` and `request.cancel`: answered here, whatever the handler is doing.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::envelope::{RequestId, check_version};
use crate::failure::Outcome;
use crate::{MAX_LINE_BYTES, MIN_PROTOCOL_VERSION, PROTOCOL_VERSION};

/// Which version the client speaks. Optional; a client that says nothing speaks version 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Hello {
    /// The newest version the client knows.
    pub protocol_version: u32,
    /// The oldest one it would put up with.
    #[serde(default)]
    pub min_protocol_version: Option<u32>,
}

/// What both sides speak from now on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Greeting {
    /// The newest version that both know.
    pub protocol_version: u32,
    pub server_version: String,
    pub max_line_bytes: usize,
    pub operations: Vec<String>,
}

impl Hello {
    pub(crate) const NAME: &'static str = "protocol.hello";

    pub(crate) fn answer(&self) -> Outcome<Greeting> {
        let common = self.protocol_version.min(PROTOCOL_VERSION);
        let oldest = self.min_protocol_version.unwrap_or(self.protocol_version);
        // A client that insists on something newer, or is older than anything we speak.
        if oldest > PROTOCOL_VERSION || common < MIN_PROTOCOL_VERSION {
            check_version(self.protocol_version)
                .map_err(|failure| failure.at("payload.protocol_version"))?;
        }
        Ok(Greeting {
            protocol_version: common,
            server_version: env!("CARGO_PKG_VERSION").to_owned(),
            max_line_bytes: MAX_LINE_BYTES,
            operations: super::Request::NAMES.iter().map(|&name| name.to_owned()).collect(),
        })
    }
}

/// The answer to that request is no longer wanted. It still gets one, with the code `cancelled` if
/// it had not been done by then.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cancel {
    pub request_id: RequestId,
}

impl Cancel {
    pub(crate) const NAME: &'static str = "request.cancel";
}
