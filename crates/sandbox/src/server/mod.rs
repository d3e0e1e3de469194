//! Servers: the session offered to frontends and agents.
//!
//! `hub` is what all connections of one process share; `stdio` answers frontends.

pub mod hub;
pub mod logging;
pub mod stdio;
