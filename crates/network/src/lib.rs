//! What commands may reach over the network.
//!
//! ```text
//! command in namespaces ── 127.0.0.1:3128 ── Unix socket ── proxy ─┐
//!                                                                  ├─ Gate ── sockets of the host
//! guest ── Ethernet frames ── QEMU ── Unix socket ─────── link ────┘
//! ```
//!
//! A [`Gate`] decides, from a [`Policy`] that is plain data; the [`proxy`] and the [`link`] are
//! the two ways to it. Both run on threads of their own for as long as their handle lives, take
//! nothing that a client sends on trust, and hold no more for a client than a fixed amount.

#![cfg(target_os = "linux")]

mod allowlist;
mod closed;
mod gate;
pub mod link;
mod name;
mod pins;
pub mod proxy;
mod refusals;
mod resolver;
mod rule;

pub use allowlist::{Allowlist, Policy};
pub use gate::{Denied, Gate};
pub use name::HostName;
pub use refusals::{Reason, Refusal};
pub use resolver::{Resolver, SystemResolver};
pub use rule::{BadRule, Rule};
