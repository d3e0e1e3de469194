//! The MCP server: what agents use the sandbox through.
//!
//! Whoever has a session implements [`Backend`], in ordinary blocking code, and gives it to
//! [`serve`], [`serve_stdio`] or [`SocketServer`]. This crate speaks the protocol, in every revision
//! that rmcp knows; it reads files by itself (`codeagent-tools`), shapes output, keeps long commands
//! going and asks the user.

mod ask;
mod backend;
mod call;
mod client;
mod commands;
mod error;
mod instructions;
mod lines;
mod output;
mod questions;
mod schema;
mod seal;
mod server;
#[cfg(unix)]
mod socket;
mod tools;
mod transport;

pub use ask::{OpenQuestion, Question};
pub use backend::{Backend, BashEnd, BashRequest, Surroundings, Undone};
pub use call::{Call, Interruption, Outcome};
pub use codeagent_stdio::Failure;
pub use error::McpError;
pub use output::{MAX_OUTPUT_CHARACTERS, OutputBuffer};
pub use server::{Settings, serve, serve_stdio};
#[cfg(unix)]
pub use socket::{SocketServer, beside};
pub use tools::definitions;
