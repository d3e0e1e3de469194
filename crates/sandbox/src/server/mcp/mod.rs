//! The MCP server: agents, on stdin and stdout or on a socket.

mod asking;
mod backend;
mod end_mark;

use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use codeagent_mcp::{McpError, Settings, SocketServer, beside};

use super::hub::Hub;
use crate::error::{Result, SandboxError};
use backend::Agents;

/// Serves the agent on stdin and stdout until it hangs up. The session ends with it.
pub fn serve(hub: &Arc<Hub>) -> Result<()> {
    let served = codeagent_mcp::serve_stdio(Arc::new(Agents::new(hub)));
    // Without a session there is nothing to end, and its other troubles nobody hears any more.
    let _ = hub.stop();
    served.map_err(failed)
}

/// Serves agents on a socket for as long as this lives. Its token is in a file beside it, which
/// only its owner can read.
#[derive(Debug)]
pub struct Socket {
    token_file: PathBuf,
    /// What serves, and takes the socket away at its end; ended first.
    serving: Option<(tokio::runtime::Runtime, tokio::task::JoinHandle<()>)>,
}

impl Socket {
    pub fn open(hub: &Arc<Hub>, path: &Path) -> Result<Self> {
        let path = std::path::absolute(path)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .map_err(SandboxError::doing("cannot serve agents"))?;
        let entered = runtime.enter();
        let server = SocketServer::bind(&path).map_err(failed)?;
        drop(entered);
        let token_file = beside(&path, "token");
        write_privately(&token_file, server.token()).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => in_the_way(&token_file),
            _ => SandboxError::doing(format!("cannot write {}", token_file.display()))(error),
        })?;
        hub.set_mcp_socket(path);
        let agents = Arc::new(Agents::new(hub));
        let task = runtime.spawn(async move {
            let error = server.serve(agents, Settings::default()).await;
            tracing::error!(component = "mcp", %error, "agents are not served any more");
        });
        Ok(Self { token_file, serving: Some((runtime, task)) })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Some((runtime, task)) = self.serving.take() {
            // Clients may be in the middle of something; the socket goes in any case.
            task.abort();
            let _ = runtime.block_on(task); // aborted, as it was told
            runtime.shutdown_background();
        }
        let _ = fs::remove_file(&self.token_file); // somebody else has done so
    }
}

/// What a server that was killed has left is replaced, and nothing else.
fn write_privately(path: &Path, text: &str) -> std::io::Result<()> {
    match fs::read(path) {
        Ok(left) if left.len() == text.len() + 1 && left.ends_with(b"\n") => fs::remove_file(path)?,
        Ok(_) => return Err(ErrorKind::AlreadyExists.into()),
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Err(_) => {}
    }
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{text}")
}

fn in_the_way(path: &Path) -> SandboxError {
    let message = format!("{} is there already, and is not ours", path.display());
    SandboxError::usage(message, "name another one with --mcp-socket")
}

fn failed(error: McpError) -> SandboxError {
    match error {
        McpError::InUse(path) => SandboxError::SocketInUse(path),
        McpError::Listen { path, source } if source.kind() == ErrorKind::AlreadyExists => {
            in_the_way(&path)
        }
        error @ McpError::Listen { .. } => SandboxError::usage(
            error.to_string(),
            "name a file in a directory of your own with --mcp-socket; its path has at most 107 bytes",
        ),
        error @ McpError::Handshake(_) => SandboxError::usage(
            error.to_string(),
            "this is for MCP clients: `sandbox setup CLIENT` enters it in one",
        ),
        error => SandboxError::Io(std::io::Error::other(error)),
    }
}
