//! A proxy on a Unix socket: HTTP (`CONNECT`, and requests with the whole address) and SOCKS5 on
//! the same one, told apart by the first byte.

mod http;
mod socks;

use std::io;
use std::net::SocketAddrV4;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, copy_bidirectional_with_sizes};
use tokio::net::{TcpStream, UnixListener};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::timeout;

use crate::gate::{Denied, Gate};

/// At once; more wait until one of them ends.
const MAX_CONNECTIONS: usize = 256;
/// Names that are looked up at once.
const MAX_LOOKUPS: usize = 16;
/// Of each direction of a connection.
const BUFFER_BYTES: usize = 32 << 10;
/// Until a client has said what it wants.
const HEAD_TIME: Duration = Duration::from_secs(30);
/// Until a server has answered the connection.
const CONNECT_TIME: Duration = Duration::from_secs(30);
/// After a failed `accept`, as for lack of descriptors.
const RESPITE: Duration = Duration::from_millis(100);

/// A proxy that runs for as long as this lives; every connection ends with it.
#[derive(Debug)]
pub struct Proxy {
    socket: PathBuf,
    /// Dropped to end the thread.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a socket that nobody but its owner can connect to. Nothing may be there.
    pub fn start(socket: &Path, gate: Arc<Gate>) -> io::Result<Self> {
        let runtime = Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .max_blocking_threads(MAX_LOOKUPS)
            .thread_name("network-lookup")
            .build()?;
        let listener = std::os::unix::net::UnixListener::bind(socket)?;
        std::fs::set_permissions(socket, std::fs::Permissions::from_mode(0o600))?;
        listener.set_nonblocking(true)?;
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::Builder::new()
            .name("network-proxy".into())
            .spawn(move || run(runtime, listener, &gate, stopped))?;
        Ok(Self { socket: socket.to_owned(), stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.socket);
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(
    runtime: Runtime,
    listener: std::os::unix::net::UnixListener,
    gate: &Arc<Gate>,
    stopped: oneshot::Receiver<()>,
) {
    runtime.block_on(async {
        tokio::select! {
            _ = stopped => {}
            _ = accept(listener, gate) => {}
        }
    });
    // Does not wait for names that are being looked up.
    runtime.shutdown_background();
}

async fn accept(listener: std::os::unix::net::UnixListener, gate: &Arc<Gate>) -> io::Result<()> {
    let listener = UnixListener::from_std(listener)?;
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(place) = Arc::clone(&room).acquire_owned().await else { return Ok(()) };
        match listener.accept().await {
            Ok((client, _)) => {
                let gate = Arc::clone(gate);
                tokio::spawn(async move {
                    // Whom it concerns has been told on the connection itself.
                    let _ = serve(client, gate).await;
                    drop(place);
                });
            }
            Err(_) => tokio::time::sleep(RESPITE).await,
        }
    }
}

/// Serves one client, over whichever stream.
pub async fn serve<S>(mut client: S, gate: Arc<Gate>) -> io::Result<()>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let first = timeout(HEAD_TIME, client.read_u8()).await??;
    let opened = match first {
        socks::VERSION => socks::open(&mut client, &gate).await?,
        _ => http::open(&mut client, first, &gate).await?,
    };
    if let Some(mut server) = opened {
        copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER_BYTES, BUFFER_BYTES).await?;
    }
    Ok(())
}

/// Why a client is not connected.
#[derive(Debug, thiserror::Error)]
enum NoWay {
    #[error("{0}")]
    Denied(#[from] Denied),
    #[error("{host} does not answer: {source}")]
    Unreachable { host: String, source: io::Error },
}

/// Connects to a host if the gate lets it: to the addresses that the gate has seen.
async fn connect(gate: &Arc<Gate>, host: &str, port: u16) -> Result<TcpStream, NoWay> {
    let unreachable = |source| NoWay::Unreachable { host: format!("{host}:{port}"), source };
    let (asked, name) = (Arc::clone(gate), host.to_owned());
    let addresses = tokio::task::spawn_blocking(move || asked.host(&name, port));
    let addresses = addresses.await.map_err(|error| unreachable(io::Error::other(error)))??;
    let connected = timeout(CONNECT_TIME, connect_to_one(&addresses)).await;
    let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    connected.map_err(unreachable)
}

async fn connect_to_one(addresses: &[SocketAddrV4]) -> io::Result<TcpStream> {
    let mut last = io::ErrorKind::NotFound.into();
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(server) => {
                server.set_nodelay(true)?;
                return Ok(server);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
