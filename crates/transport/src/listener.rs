//! Accepts links. Called by the node (and by fake nodes in tests).

use std::io;

use tokio::net::{TcpListener, UnixListener};

use crate::address::Address;
use crate::link::halves;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::socket::Socket;

/// A listening socket. Dropping it closes it; the file of a unix socket stays.
#[derive(Debug)]
pub struct Listener(Kind);

#[derive(Debug)]
enum Kind {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl Listener {
    /// Listens on `address`; port 0 takes a free port. Policy (which addresses are allowed, what
    /// happens to a stale unix socket) is the caller's.
    ///
    /// # Errors
    /// The system's answer: the address is in use, or not ours.
    pub async fn bind(address: &Address) -> io::Result<Self> {
        Ok(Self(match address {
            Address::Tcp(host_port) => Kind::Tcp(TcpListener::bind(host_port).await?),
            Address::Unix(path) => Kind::Unix(UnixListener::bind(path)?),
        }))
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
