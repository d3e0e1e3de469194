//! Servers: the session offered to frontends and agents.
//!
//! `hub` is what all connections of one process share, `desk` answers in the words of the wire
//! protocols; `stdio` serves frontends, `mcp` agents.

mod desk;
pub mod hub;
pub mod logging;
pub mod mcp;
pub mod stdio;
