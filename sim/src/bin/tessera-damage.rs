//! A proxy between an engine and a node that damages what is saved, and certifies the damage.
//!
//! Called by the demo and by the engine tests for their control: an object whose payload was
//! changed under a *right* checksum passes every check, so if the tokens of a later load stay the
//! same, they never depended on the loaded bytes and the equality test proves nothing. All other
//! frames pass unchanged; no production code knows of this.
//!
//! Usage: `tessera-damage --upstream 127.0.0.1:7421`. It prints `listening ADDRESS`. Each line on
//! its standard input damages one more PUT, the next that passes: it prints `armed` when it is
//! ready for it and `damaged` when it is done. It runs until its standard input ends.

use std::env;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tessera_proto::message::Put;
use tessera_proto::{DecodeError, FRAME_HEADER_BYTES, FrameHeader, Kind, checksum};

/// How many PUTs are still to be damaged.
#[derive(Default)]
struct Orders(AtomicU64);

impl Orders {
    fn place(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether this PUT is one of them.
    fn take(&self) -> bool {
        let less = |open: u64| open.checked_sub(1);
        self.0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less)
            .is_ok()
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tessera-damage: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> io::Result<()> {
    let upstream = upstream().map_err(io::Error::other)?;
    let orders = Arc::new(Orders::default());
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening {}", listener.local_addr()?);
    let shared = Arc::clone(&orders);
    thread::spawn(move || {
        for engine in listener.incoming().flatten() {
            let (upstream, orders) = (upstream.clone(), Arc::clone(&shared));
            thread::spawn(move || serve(&engine, &upstream, &orders));
        }
    });
    for line in io::stdin().lines() {
        line?;
        orders.place();
        println!("armed");
    }
    Ok(())
}

fn upstream() -> Result<String, &'static str> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.as_slice() {
        [name, address] if name == "--upstream" => Ok(address.clone()),
        _ => Err("usage: tessera-damage --upstream ADDRESS"),
    }
}

/// Joins one engine connection to one of the node. An error on either side ends both, as the
/// engine would see it without the proxy.
fn serve(engine: &TcpStream, upstream: &str, orders: &Orders) {
    let Ok(node) = TcpStream::connect(upstream) else {
        return;
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &node, &mut &*engine);
            close(engine, &node);
        });
        let _ = pass_frames(engine, &node, orders);
        close(engine, &node);
    });
}

fn close(engine: &TcpStream, node: &TcpStream) {
    let _ = engine.shutdown(Shutdown::Both);
    let _ = node.shutdown(Shutdown::Both);
}

fn pass_frames(mut engine: &TcpStream, mut node: &TcpStream, orders: &Orders) -> io::Result<()> {
    loop {
        let mut head = [0; FRAME_HEADER_BYTES];
        engine.read_exact(&mut head)?;
        let header = FrameHeader::decode(&head).map_err(io::Error::other)?;
        let payload_bytes = usize::try_from(header.payload_bytes).map_err(io::Error::other)?;
        let body_bytes = usize::try_from(header.body_bytes).map_err(io::Error::other)?;
        let mut body = vec![0; body_bytes];
        engine.read_exact(&mut body)?;
        let mut payload = vec![0; payload_bytes];
        engine.read_exact(&mut payload)?;
        if header.kind == Kind::Put && orders.take() {
            body = certify_damage(&body, &mut payload).map_err(io::Error::other)?;
            println!("damaged");
        }
        for part in [&head[..], &body, &payload] {
            node.write_all(part)?;
        }
    }
}

/// Changes the payload and makes its header agree. The sign of every float32 turns (of every
/// second value where it is bfloat16), which keeps all values finite.
fn certify_damage(body: &[u8], payload: &mut [u8]) -> Result<Vec<u8>, DecodeError> {
    let mut put = Put::decode(body)?;
    for byte in payload.iter_mut().skip(3).step_by(4) {
        *byte ^= 0x80;
    }
    put.header.checksum = checksum(payload);
    let mut certified = Vec::with_capacity(body.len());
    put.encode(&mut certified);
    Ok(certified)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tessera_proto::{KeyDigest, NamespaceDigest, ObjectHeader, WriteId};

    #[test]
    fn damaged_object_still_passes_its_own_check() {
        let mut payload: Vec<u8> = (0..64).collect();
        let clean = payload.clone();
        let header = ObjectHeader {
            namespace: NamespaceDigest([1; 32]),
            key: KeyDigest([2; 32]),
            layout: 3,
            length_bytes: 64,
            checksum: checksum(&payload),
            write: WriteId(4),
        };
        let mut body = Vec::new();
        Put { header }.encode(&mut body);
        let certified = certify_damage(&body, &mut payload).expect("a PUT");
        let damaged = Put::decode(&certified).expect("a PUT").header;
        assert_ne!(payload, clean);
        assert_eq!(damaged.check_payload(checksum(&payload)), Ok(()));
        assert_eq!((damaged.key, damaged.write), (header.key, header.write));
    }

    #[test]
    fn as_many_puts_are_damaged_as_were_ordered() {
        let orders = Orders::default();
        assert!(!orders.take());
        orders.place();
        orders.place();
        assert_eq!([(); 3].map(|()| orders.take()), [true, true, false]);
    }
}
