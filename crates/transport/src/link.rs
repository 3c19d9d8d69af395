//! A connected pair of halves. The client connects, the node accepts; both then give the sender to
//! one task and the receiver to another, and keep a closer to end both.

use std::sync::Arc;

use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Instant, timeout_at};

use crate::address::Address;
use crate::error::LinkError;
use crate::receiver::Receiver;
use crate::sender::Sender;
use crate::socket::Socket;

/// Makes connections.
#[derive(Debug)]
pub struct Link;

impl Link {
    /// Connects to `address`, or gives up at `deadline`, whatever the system's own patience is.
    ///
    /// # Errors
    /// [`LinkError::Deadline`] when nobody answered in time, [`LinkError::Io`] when the system
    /// refused.
    pub async fn connect(
        address: &Address,
        deadline: Instant,
    ) -> Result<(Sender, Receiver), LinkError> {
        let connecting = async {
            Ok::<_, LinkError>(match address {
                Address::Tcp(host_port) => Socket::Tcp(TcpStream::connect(host_port).await?),
                Address::Unix(path) => Socket::Unix(UnixStream::connect(path).await?),
            })
        };
        let socket = timeout_at(deadline, connecting)
            .await
            .map_err(|_| LinkError::Deadline)??;
        Ok(halves(socket))
    }
}

/// Tunes a connected socket and splits it.
pub(crate) fn halves(socket: Socket) -> (Sender, Receiver) {
    socket.tune();
    let socket = Arc::new(socket);
    (Sender::new(Arc::clone(&socket)), Receiver::new(socket))
}

/// Ends a link from outside of the tasks that use it.
#[derive(Debug, Clone)]
pub struct Closer(pub(crate) Arc<Socket>);

impl Closer {
    /// Ends both directions. Operations in progress end with an error; the tasks that run them must
    /// still be waited for before memory they were given is free.
    pub fn close(&self) {
        self.0.shutdown();
    }
}
