//! A proxy between an engine and a node that damages what is saved, and certifies the damage.
//!
//! Called by the demo and by the engine tests for their control: an object whose payload was
//! changed under a *right* checksum passes every check, so if the tokens of a later load stay the
//! same, they never depended on the loaded bytes and the equality test proves nothing. All frames
//! but the chosen PUT pass unchanged; no production code knows of this.
//!
//! Usage: `tessera-damage --upstream 127.0.0.1:7421 [--put N]`. It prints `listening ADDRESS` and
//! runs until its standard input ends.

use std::env;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use tessera_proto::message::Put;
use tessera_proto::{DecodeError, FRAME_HEADER_BYTES, FrameHeader, Kind, checksum};

/// Which PUT is damaged, counted over all connections.
struct Plan {
    /// The only one, or all.
    only: Option<u64>,
    seen: AtomicU64,
}

impl Plan {
    fn takes_next(&self) -> bool {
        let number = self.seen.fetch_add(1, Ordering::Relaxed);
        self.only.is_none_or(|only| only == number)
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
    let (upstream, only) = arguments().map_err(io::Error::other)?;
    let plan = Arc::new(Plan {
        only,
        seen: AtomicU64::new(0),
    });
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("listening {}", listener.local_addr()?);
    thread::spawn(move || {
        for engine in listener.incoming().flatten() {
            let (upstream, plan) = (upstream.clone(), Arc::clone(&plan));
            thread::spawn(move || serve(&engine, &upstream, &plan));
        }
    });
    // The parent holds our standard input: when it ends, so do we.
    io::copy(&mut io::stdin(), &mut io::sink())?;
    Ok(())
}

fn arguments() -> Result<(String, Option<u64>), String> {
    let (mut upstream, mut only) = (None, None);
    let mut arguments = env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().ok_or(format!("{name} needs a value"))?;
        match name.as_str() {
            "--upstream" => upstream = Some(value),
            "--put" => only = Some(value.parse().map_err(|_| "--put takes a number")?),
            _ => return Err(format!("unknown argument {name}; known: --upstream, --put")),
        }
    }
    Ok((upstream.ok_or("--upstream ADDRESS is missing")?, only))
}

/// Joins one engine connection to one of the node. An error on either side ends both, as the
/// engine would see it without the proxy.
fn serve(engine: &TcpStream, upstream: &str, plan: &Plan) {
    let Ok(node) = TcpStream::connect(upstream) else {
        return;
    };
    thread::scope(|scope| {
        scope.spawn(|| {
            let _ = io::copy(&mut &node, &mut &*engine);
            close(engine, &node);
        });
        let _ = pass_frames(engine, &node, plan);
        close(engine, &node);
    });
}

fn close(engine: &TcpStream, node: &TcpStream) {
    let _ = engine.shutdown(Shutdown::Both);
    let _ = node.shutdown(Shutdown::Both);
}

fn pass_frames(mut engine: &TcpStream, mut node: &TcpStream, plan: &Plan) -> io::Result<()> {
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
        if header.kind == Kind::Put && plan.takes_next() {
            body = certify_damage(&body, &mut payload).map_err(io::Error::other)?;
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
    fn only_the_chosen_put_is_damaged() {
        let plan = Plan {
            only: Some(1),
            seen: AtomicU64::new(0),
        };
        assert_eq!([(); 3].map(|()| plan.takes_next()), [false, true, false]);
    }
}
