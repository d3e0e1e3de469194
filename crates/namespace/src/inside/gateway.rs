//! The way to the network, where there is one: a proxy on loopback that hands every connection to
//! a socket of the host.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::thread;

use super::tree::GATEWAY;
use crate::GATEWAY_PORT;

/// Listens at once; connections are taken by [`serve`].
pub(super) fn listen() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, GATEWAY_PORT))
}

/// To be called by a process that is confined already: its threads are only then.
pub(super) fn serve(listener: TcpListener) -> io::Result<()> {
    thread::Builder::new().name("gateway".into()).spawn(move || {
        for client in listener.incoming().flatten() {
            let _ = thread::Builder::new().name("relay".into()).spawn(|| relay(client));
        }
    })?;
    Ok(())
}

/// Carries bytes both ways until both have ended.
fn relay(client: TcpStream) {
    let Ok(host) = UnixStream::connect(GATEWAY) else { return };
    let (Ok(client_too), Ok(host_too)) = (client.try_clone(), host.try_clone()) else { return };
    let back = thread::spawn(move || {
        let _ = io::copy(&mut &host_too, &mut &client_too);
        let _ = client_too.shutdown(Shutdown::Write);
    });
    let _ = io::copy(&mut &client, &mut &host);
    let _ = host.shutdown(Shutdown::Write);
    let _ = back.join();
}
