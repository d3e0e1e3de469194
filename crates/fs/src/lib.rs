//! The intercepting filesystem that every Linux transport serves: virtiofsd's passthrough, with a
//! question to a [`WriteInterceptor`](codeagent_interceptor::WriteInterceptor) before each mutation.
#![cfg(target_os = "linux")]

mod descriptors;
mod files;
mod guest;
mod handles;
mod host_file;
mod in_flight;
mod intercepted;
mod look_again;
mod mutations;
mod names;
mod operations;
mod paths;
mod privileges;
mod served;
mod thread;
mod transfer;

pub use descriptors::raise_descriptor_limit;
pub use guest::{GuestView, Ids, Owners};
pub use host_file::behind_handle;
pub use in_flight::Unanswered;
pub use intercepted::{Cache, FsConfig, InterceptedFs, Plain};
pub use paths::Name;
pub use served::Served;
pub use transfer::{Incoming, Outgoing};
