//! A proxy between an engine and a node that does to single frames what networks, disks and other
//! users do, at the moment that a test chooses.
//!
//! Called by the binary `tessera-faults`, which the demo and the engine tests start. All other
//! frames pass unchanged; no production code knows of this. The invariant: a frame that no fault
//! was ordered for reaches the node whole and in order, and of two frames none is inside the other.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use tessera_client::{Cluster, ClusterConfig, NodeSpec};
use tessera_proto::message::{Get, Put};
use tessera_proto::{DecodeError, FRAME_HEADER_BYTES, FrameHeader, Kind, checksum};
use tokio::runtime::Runtime;
use tokio::time::Instant;

/// For the removal of an object by the proxy itself.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(10);

/// What is done to one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The payload of a PUT is changed under a *right* checksum. It passes every check, so if the
    /// tokens of a later load stay the same, they never depended on the loaded bytes and a test of
    /// equality proves nothing.
    Damage,
    /// The object of a GET is removed from the node before the GET reaches it.
    Gone,
    /// The connection of a GET ends instead.
    Cut,
    /// A GET stays in the proxy until [`Faults::release`]; others pass it by.
    Stall,
    /// A PUT stays in the proxy until [`Faults::release`]; others pass it by.
    Keep,
}

impl Fault {
    /// The kind of frame that it happens to.
    const fn kind(self) -> Kind {
        match self {
            Self::Damage | Self::Keep => Kind::Put,
            Self::Gone | Self::Cut | Self::Stall => Kind::Get,
        }
    }
}

/// The words by which faults are ordered and reported.
const WORDS: [(&str, Fault); 5] = [
    ("damage", Fault::Damage),
    ("gone", Fault::Gone),
    ("cut", Fault::Cut),
    ("stall", Fault::Stall),
    ("keep", Fault::Keep),
];

impl FromStr for Fault {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let found = WORDS.iter().find(|(known, _)| *known == word);
        found.map(|(_, fault)| *fault).ok_or_else(|| {
            let words = WORDS.map(|(known, _)| known).join(", ");
            format!("{word:?} is no fault: {words}")
        })
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let found = WORDS.iter().find(|(_, known)| known == self);
        formatter.write_str(found.map_or("", |(word, _)| *word))
    }
}

/// The faults that wait for their frame, and the frames that wait for their release.
#[derive(Debug)]
pub struct Faults {
    upstream: String,
    ordered: Mutex<Vec<Fault>>,
    stalled: Mutex<Vec<Stalled>>,
    runtime: Runtime,
    node: Cluster,
}

/// A frame on its way, and the connection that it belongs to.
#[derive(Debug)]
struct Stalled {
    node: Arc<Mutex<TcpStream>>,
    frame: Frame,
}

/// One frame as bytes.
#[derive(Debug)]
struct Frame {
    kind: Kind,
    head: [u8; FRAME_HEADER_BYTES],
    body: Vec<u8>,
    payload: Vec<u8>,
}

impl Faults {
    /// Starts a proxy before the node at `upstream` (`HOST:PORT`). `happened` is called when a
    /// fault has met its frame.
    ///
    /// # Errors
    /// When no port or no runtime is to be had, or `upstream` is no address.
    pub fn start(
        upstream: &str,
        happened: impl Fn(Fault) + Send + Sync + 'static,
    ) -> io::Result<(Arc<Self>, SocketAddr)> {
        let address = upstream.parse().map_err(io::Error::other)?;
        let runtime = Runtime::new()?;
        let config = ClusterConfig::new(vec![NodeSpec::new(address)]);
        let faults = Arc::new(Self {
            upstream: upstream.to_owned(),
            ordered: Mutex::default(),
            stalled: Mutex::default(),
            node: Cluster::start(config, runtime.handle()),
            runtime,
        });
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (shared, happened) = (Arc::clone(&faults), Arc::new(happened));
        thread::spawn(move || {
            for engine in listener.incoming().flatten() {
                let (faults, happened) = (Arc::clone(&shared), Arc::clone(&happened));
                thread::spawn(move || faults.serve(&engine, &*happened));
            }
        });
        Ok((faults, address))
    }

    /// The next frame of its kind meets `fault`; orders of one kind are taken in turn.
    pub fn order(&self, fault: Fault) {
        lock(&self.ordered).push(fault);
    }

    /// Lets all stalled frames go on. Returns how many there were.
    pub fn release(&self) -> usize {
        let stalled = std::mem::take(&mut *lock(&self.stalled));
        for Stalled { node, frame } in &stalled {
            // The connection may have ended meanwhile: then there is nobody to be answered.
            let _ = frame.write(node);
        }
        stalled.len()
    }

    fn take(&self, kind: Kind) -> Option<Fault> {
        let mut ordered = lock(&self.ordered);
        let next = ordered.iter().position(|fault| fault.kind() == kind)?;
        Some(ordered.remove(next))
    }

    /// Joins one engine connection to one of the node. An error on either side ends both, as the
    /// engine would see it without the proxy.
    fn serve(&self, engine: &TcpStream, happened: &dyn Fn(Fault)) {
        let Ok(node) = TcpStream::connect(&self.upstream) else {
            return;
        };
        let Ok(sending) = node.try_clone() else {
            return;
        };
        let sending = Arc::new(Mutex::new(sending));
        thread::scope(|scope| {
            scope.spawn(|| {
                let _ = io::copy(&mut &node, &mut &*engine);
                close(engine, &node);
            });
            let _ = self.pass_frames(engine, &sending, happened);
            close(engine, &node);
        });
    }

    fn pass_frames(
        &self,
        engine: &TcpStream,
        node: &Arc<Mutex<TcpStream>>,
        happened: &dyn Fn(Fault),
    ) -> io::Result<()> {
        loop {
            let mut frame = Frame::read(engine)?;
            let Some(fault) = self.take(frame.kind) else {
                frame.write(node)?;
                continue;
            };
            match fault {
                Fault::Damage => frame.certify_damage().map_err(io::Error::other)?,
                Fault::Gone => self.remove(&frame)?,
                Fault::Cut => {
                    happened(fault);
                    return Ok(());
                }
                Fault::Stall | Fault::Keep => {
                    let node = Arc::clone(node);
                    lock(&self.stalled).push(Stalled { node, frame });
                    happened(fault);
                    continue;
                }
            }
            happened(fault);
            frame.write(node)?;
        }
    }

    /// Removes the object that a GET asks for.
    fn remove(&self, get: &Frame) -> io::Result<()> {
        let id = Get::decode(&get.body).map_err(io::Error::other)?.id;
        let deadline = Instant::now() + REMOVE_TIMEOUT;
        let removed = self.runtime.block_on(self.node.remove(id, None, deadline));
        match removed.map_err(io::Error::other)? {
            true => Ok(()),
            false => Err(io::Error::other("the object was gone already")),
        }
    }
}

impl Frame {
    fn read(mut from: &TcpStream) -> io::Result<Self> {
        let mut head = [0; FRAME_HEADER_BYTES];
        from.read_exact(&mut head)?;
        let header = FrameHeader::decode(&head).map_err(io::Error::other)?;
        let length = |bytes: u64| usize::try_from(bytes).map_err(io::Error::other);
        let mut body = vec![0; length(header.body_bytes.into())?];
        from.read_exact(&mut body)?;
        let mut payload = vec![0; length(header.payload_bytes)?];
        from.read_exact(&mut payload)?;
        let kind = header.kind;
        Ok(Self {
            kind,
            head,
            body,
            payload,
        })
    }

    fn write(&self, to: &Mutex<TcpStream>) -> io::Result<()> {
        let mut to = lock(to);
        for part in [&self.head[..], &self.body, &self.payload] {
            to.write_all(part)?;
        }
        Ok(())
    }

    /// Changes the payload of a PUT and makes its header agree. The sign of every float32 turns (of
    /// every second value where it is bfloat16), which keeps all values finite.
    fn certify_damage(&mut self) -> Result<(), DecodeError> {
        let mut put = Put::decode(&self.body)?;
        for byte in self.payload.iter_mut().skip(3).step_by(4) {
            *byte ^= 0x80;
        }
        put.header.checksum = checksum(&self.payload);
        self.body.clear();
        put.encode(&mut self.body);
        Ok(())
    }
}

fn close(engine: &TcpStream, node: &TcpStream) {
    let _ = engine.shutdown(Shutdown::Both);
    let _ = node.shutdown(Shutdown::Both);
}

/// A thread that panicked with the lock has left nothing half done.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
