//! A folder of a Linux host: whatever speaks virtiofsd's `FileSystem`, which `codeagent-fs` does with
//! a question to the undo engine before each mutation.

mod front_end;
mod share;
mod translate;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use codeagent_fs::Served;
use virtiofsd::filesystem::FileSystem;

use crate::server::{Limits, ServeError, Server};

pub use front_end::{NinePFrontEnd, NinePOptions};
pub use share::{Node, Open, Shared};

/// Serves a filesystem to one client until that hangs up; everything it asked for has been answered
/// then. For several clients whose locks are to concern each other, see [`Server`].
///
/// # Errors
///
/// The connection failed, or what came over it cannot be a message.
pub fn serve<F>(
    fs: Arc<F>,
    read: impl Read,
    write: impl Write + Send + 'static,
    limits: Limits,
) -> Result<(), ServeError>
where
    F: FileSystem<Inode = u64, Handle = u64> + Served + Send + Sync + 'static,
{
    Server::new(limits).serve(Shared::new(fs), read, write)
}

/// The same over a stream that goes both ways.
///
/// # Errors
///
/// As [`serve`].
pub fn serve_stream<F>(fs: Arc<F>, stream: UnixStream, limits: Limits) -> Result<(), ServeError>
where
    F: FileSystem<Inode = u64, Handle = u64> + Served + Send + Sync + 'static,
{
    serve(fs, stream.try_clone()?, stream, limits)
}
