//! Several clients on a Unix socket, each with the token.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{UnixListener, UnixStream};

use crate::backend::Backend;
use crate::error::McpError;
use crate::seal::random;
use crate::server::{Settings, serve};

/// A client that has not shown its token by then is sent away.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Clients at once.
const MAX_CLIENTS: usize = 64;

/// A socket that only its owner can open, and a token that its owner hands out. The first line of a
/// client is `token TOKEN`; after that it is MCP. A wrong token ends the connection.
#[derive(Debug)]
pub struct SocketServer {
    listener: UnixListener,
    path: PathBuf,
    token: String,
}

impl SocketServer {
    /// Within a tokio runtime. A socket that nobody serves any more is replaced.
    pub fn bind(path: &Path) -> Result<Self, McpError> {
        let failed = |source| McpError::Listen { path: path.to_owned(), source };
        if StdStream::connect(path).is_ok() {
            return Err(McpError::InUse(path.to_owned()));
        }
        // Nothing but a socket that nobody serves any more is replaced.
        if fs::symlink_metadata(path).is_ok_and(|found| !found.file_type().is_socket()) {
            return Err(failed(io::ErrorKind::AlreadyExists.into()));
        }
        let token = URL_SAFE_NO_PAD.encode(random::<32>()?);
        // It gets its name when nobody else can open it any more.
        let unnamed = beside(path, &format!("new-{}", std::process::id()));
        let listener = listen_privately(&unnamed).map_err(failed)?;
        fs::rename(&unnamed, path).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned(), token })
    }

    pub fn token(&self) -> &str {
        &self.token
    }

    /// Serves whoever comes. Dropped, it ends all of them.
    pub async fn serve(&self, backend: Arc<dyn Backend>, settings: Settings) -> McpError {
        let room = Arc::new(tokio::sync::Semaphore::new(MAX_CLIENTS));
        let mut clients = tokio::task::JoinSet::new();
        loop {
            let accepted = self.listener.accept().await;
            while clients.try_join_next().is_some() {}
            let stream = match accepted {
                Ok((stream, _)) => stream,
                Err(source) if is_passing(&source) => {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    continue;
                }
                Err(source) => return McpError::Listen { path: self.path.clone(), source },
            };
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else { continue };
            let (backend, token) = (Arc::clone(&backend), self.token.clone());
            clients.spawn(async move {
                let _permit = permit;
                serve_stranger(stream, &token, backend, settings).await;
            });
        }
    }
}

impl Drop for SocketServer {
    fn drop(&mut self) {
        // Somebody else may have removed it.
        let _ = fs::remove_file(&self.path);
    }
}

/// The path with something behind it: what it has for an extension may be all that tells it from
/// another socket.
pub fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}

fn listen_privately(path: &Path) -> io::Result<UnixListener> {
    let _ = fs::remove_file(path);
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}

/// Too many open files, or a client that gave up: the next one may be served.
fn is_passing(error: &io::Error) -> bool {
    !matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::PermissionDenied)
}

async fn serve_stranger(
    mut stream: UnixStream,
    token: &str,
    backend: Arc<dyn Backend>,
    settings: Settings,
) {
    let shown = tokio::time::timeout(HANDSHAKE, first_line(&mut stream)).await;
    let Ok(Ok(line)) = shown else { return };
    let expected = format!("token {token}");
    if !is_same(line.as_bytes(), expected.as_bytes()) {
        return;
    }
    let (read, write) = stream.into_split();
    // Its end is the end of this client alone.
    let _ = serve(read, write, backend, settings).await;
}

/// Byte by byte, so that nothing of what follows is taken. No longer than a token needs.
async fn first_line(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<String> {
    let mut line = Vec::new();
    while line.len() < 128 {
        match stream.read_u8().await? {
            b'\n' => break,
            byte => line.push(byte),
        }
    }
    String::from_utf8(line).map_err(|_| io::ErrorKind::InvalidData.into())
}

/// Takes the same time wherever they differ.
fn is_same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |different, (a, b)| different | (a ^ b)) == 0
}
