//! One connected stream socket, TCP or unix, as the two halves of a link share it.
//!
//! Called by the sender, the receiver and the closer. A call tries the system call at once and says
//! `WouldBlock`; waiting is a separate step, so that a ready socket costs no trip to the reactor.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::Shutdown;

use rustix::io::{readv, writev};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};

/// Send and receive buffers of a TCP link, bytes; the system may grant less. Room for two objects
/// of 1 MiB, so that neither side waits for the other inside one. A choice, not yet a measurement:
/// on a loaded machine 512 KiB to 4 MiB could not be told apart.
const BUFFER_BYTES: usize = 2 << 20;

/// Preferred congestion control. The default of many servers, bbr, paces loopback to two thirds.
const CONGESTION: &[u8] = b"cubic";

#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Socket {
    /// Sets what a link needs. Refusals are harmless: the options only make it faster.
    pub(crate) fn tune(&self) {
        match self {
            Self::Tcp(stream) => {
                let socket = SockRef::from(stream);
                let _ = socket.set_tcp_nodelay(true);
                let _ = socket.set_tcp_congestion(CONGESTION);
                let _ = socket.set_send_buffer_size(BUFFER_BYTES);
                let _ = socket.set_recv_buffer_size(BUFFER_BYTES);
            }
            Self::Unix(stream) => {
                let socket = SockRef::from(stream);
                let _ = socket.set_send_buffer_size(BUFFER_BYTES);
            }
        }
    }

    /// Reads what is there into `slices`, which hold `room` bytes. A short read means that the
    /// socket is empty: readiness is forgotten with the same call, which saves the one that would
    /// only say so.
    pub(crate) fn try_read(&self, slices: &mut [IoSliceMut<'_>], room: usize) -> io::Result<usize> {
        let mut short = None;
        let read = || {
            let count = self.readv(slices)?;
            if count > 0 && count < room {
                short = Some(count);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(count)
        };
        let outcome = match self {
            Self::Tcp(stream) => stream.try_io(Interest::READABLE, read),
            Self::Unix(stream) => stream.try_io(Interest::READABLE, read),
        };
        short.map_or(outcome, Ok)
    }

    /// Writes what fits from `slices`, which hold `length` bytes. A short write means that the
    /// socket is full, see [`Socket::try_read`].
    pub(crate) fn try_write(&self, slices: &[IoSlice<'_>], length: usize) -> io::Result<usize> {
        let mut short = None;
        let write = || {
            let count = self.writev(slices)?;
            if count > 0 && count < length {
                short = Some(count);
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(count)
        };
        let outcome = match self {
            Self::Tcp(stream) => stream.try_io(Interest::WRITABLE, write),
            Self::Unix(stream) => stream.try_io(Interest::WRITABLE, write),
        };
        short.map_or(outcome, Ok)
    }

    /// Waits until a read may find something.
    pub(crate) async fn readable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.readable().await,
            Self::Unix(stream) => stream.readable().await,
        }
    }

    /// Waits until a write may find room.
    pub(crate) async fn writable(&self) -> io::Result<()> {
        match self {
            Self::Tcp(stream) => stream.writable().await,
            Self::Unix(stream) => stream.writable().await,
        }
    }

    /// Ends the connection in both directions; pending reads and writes on both sides return.
    pub(crate) fn shutdown(&self) {
        // An error means that the connection is gone already.
        let _ = match self {
            Self::Tcp(stream) => SockRef::from(stream).shutdown(Shutdown::Both),
            Self::Unix(stream) => SockRef::from(stream).shutdown(Shutdown::Both),
        };
    }

    fn readv(&self, slices: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(match self {
            Self::Tcp(stream) => readv(stream, slices)?,
            Self::Unix(stream) => readv(stream, slices)?,
        })
    }

    fn writev(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        Ok(match self {
            Self::Tcp(stream) => writev(stream, slices)?,
            Self::Unix(stream) => writev(stream, slices)?,
        })
    }
}
