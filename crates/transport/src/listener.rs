//! Accepts links. Called by the node (and by fake nodes in tests).
//!
//! Two steps, so that a node can make sure of its address before it takes its memory and still be
//! found only when it can answer: a [`Reserved`] address refuses connections, a [`Listener`] has
//! them queued.

use std::io;

use socket2::{Domain, SockAddr, Type};
use tokio::net::{TcpListener, UnixListener, lookup_host};

use crate::address::Address;
use crate::link::halves;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::socket::Socket;

/// Connections that the system queues before they are accepted.
const BACKLOG: i32 = 1_024;

/// An address that is ours and does not listen yet: whoever connects to it is refused. Dropping it
/// gives the address back; the file of a unix socket stays.
#[derive(Debug)]
pub struct Reserved {
    socket: socket2::Socket,
    is_unix: bool,
}

impl Reserved {
    /// Takes `address`; port 0 takes a free port. Policy (which addresses are allowed, what
    /// happens to a stale unix socket) is the caller's.
    ///
    /// # Errors
    /// The system's answer: the address is in use, or not ours.
    pub async fn take(address: &Address) -> io::Result<Self> {
        match address {
            Address::Tcp(host_port) => {
                let mut refused = io::ErrorKind::AddrNotAvailable.into();
                for found in lookup_host(host_port).await? {
                    let socket = open(Domain::for_address(found))?;
                    // A port whose last connections are still closing is free.
                    socket.set_reuse_address(true)?;
                    match socket.bind(&found.into()) {
                        Ok(()) => {
                            return Ok(Self {
                                socket,
                                is_unix: false,
                            });
                        }
                        Err(error) => refused = error,
                    }
                }
                Err(refused)
            }
            Address::Unix(path) => {
                let socket = open(Domain::UNIX)?;
                socket.bind(&SockAddr::unix(path)?)?;
                Ok(Self {
                    socket,
                    is_unix: true,
                })
            }
        }
    }

    /// Begins to listen. Called within a runtime.
    ///
    /// # Errors
    /// The system's answer: another process began to listen on the address first.
    pub fn listen(self) -> io::Result<Listener> {
        self.socket.listen(BACKLOG)?;
        Ok(Listener(match self.is_unix {
            true => Kind::Unix(UnixListener::from_std(self.socket.into())?),
            false => Kind::Tcp(TcpListener::from_std(self.socket.into())?),
        }))
    }
}

fn open(domain: Domain) -> io::Result<socket2::Socket> {
    let socket = socket2::Socket::new(domain, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A listening socket. Dropping it closes it; the file of a unix socket stays.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Takes `address` and listens on it at once, see [`Reserved::take`].
    ///
    /// # Errors
    /// The system's answer: the address is in use, or not ours.
    pub async fn bind(address: &Address) -> io::Result<Self> {
        Reserved::take(address).await?.listen()
    }

    /// The address in use, with the port that the system chose.
    ///
    /// # Errors
    /// The system's answer; not seen on a bound socket.
    pub fn address(&self) -> io::Result<Address> {
        Ok(match &self.0 {
            Kind::Tcp(listener) => Address::Tcp(listener.local_addr()?.to_string()),
            Kind::Unix(listener) => {
                let address = listener.local_addr()?;
                Address::Unix(
                    address
                        .as_pathname()
                        .ok_or(io::ErrorKind::NotFound)?
                        .to_owned(),
                )
            }
        })
    }

    /// Waits for the next connection. Safe to cancel.
    ///
    /// # Errors
    /// The system's answer, such as too many open files; the listener stays usable.
    pub async fn accept(&self) -> io::Result<(Sender, Receiver)> {
        let socket = match &self.0 {
            Kind::Tcp(listener) => Socket::Tcp(listener.accept().await?.0),
            Kind::Unix(listener) => Socket::Unix(listener.accept().await?.0),
        };
        Ok(halves(socket))
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[tokio::test]
    async fn a_reserved_address_refuses_connections_until_it_listens() {
        let reserved = Reserved::take(&Address::Tcp("127.0.0.1:0".into()))
            .await
            .unwrap();
        let at = reserved.socket.local_addr().unwrap().as_socket().unwrap();
        assert!(TcpStream::connect(at).is_err());
        let _listener = reserved.listen().unwrap();
        assert!(TcpStream::connect(at).is_ok());

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.sock");
        let reserved = Reserved::take(&Address::Unix(path.clone())).await.unwrap();
        assert!(UnixStream::connect(&path).is_err());
        let _listener = reserved.listen().unwrap();
        assert!(UnixStream::connect(&path).is_ok());
    }

    #[tokio::test]
    async fn an_address_that_listens_is_not_taken_again() {
        let first = Listener::bind(&Address::Tcp("127.0.0.1:0".into()))
            .await
            .unwrap();
        let again = Reserved::take(&first.address().unwrap()).await;
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
