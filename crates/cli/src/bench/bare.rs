//! A client of the bench alone: GETs over one blocking socket, verified or not.
//!
//! Called by the wire family. The product's client verifies whatever it loads and has no switch for
//! it, so what that costs is measured here. Invariant: both ways differ in the checksum only, which
//! is taken as the product's receiver takes it, over what one read brought, before the next read.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tessera_client::Incarnation;
use tessera_node::Address;
use tessera_node::wire::{
    Checksum, FRAME_HEADER_BYTES, Features, FrameHeader, Get, GetAnswer, Hello, HelloAnswer, Kind,
    PROTOCOL_VERSION,
};

use super::floor::tune;
use super::objects::Objects;

/// Most bytes of one read, as in the product.
const QUANTUM_BYTES: usize = 256 << 10;
const PATIENCE_MS: u32 = 20_000;

/// A greeted connection.
pub(crate) struct Bare {
    stream: TcpStream,
    body: Vec<u8>,
    /// The next object to read, over all repeats: each walks on.
    next: u64,
}

impl Bare {
    /// Connects to a node that listens on TCP.
    pub(crate) fn connect(address: &Address) -> Result<Self> {
        let Address::Tcp(host_port) = address else {
            bail!("the bench measures TCP, and the node listens on {address}");
        };
        let stream = TcpStream::connect(host_port).context("connecting to the node")?;
        tune(&stream);
        let (body, next) = (Vec::new(), 0);
        let mut bare = Self { stream, body, next };
        let hello = Hello {
            version_min: PROTOCOL_VERSION,
            version_max: PROTOCOL_VERSION,
            features: Features::default(),
            incarnation: Incarnation(1),
            name: "the bench".to_owned(),
        };
        bare.request(Kind::Hello, 1, |body| hello.encode(body))?;
        bare.answer(Kind::HelloAnswer)?;
        HelloAnswer::decode(&bare.body)?;
        Ok(bare)
    }

    /// Bytes a second into `arena` with `in_flight` GETs for `time`.
    pub(crate) fn throughput(
        &mut self,
        objects: &Objects,
        arena: &mut [u8],
        in_flight: u64,
        verified: bool,
        time: Duration,
    ) -> Result<f64> {
        let begun = Instant::now();
        let first = self.next;
        for _ in 0..in_flight {
            self.get(objects)?;
        }
        let mut done = first;
        while done < self.next {
            self.receive(objects, arena, verified)?;
            done += 1;
            if begun.elapsed() < time {
                self.get(objects)?;
            }
        }
        let bytes = (done - first) * objects.block_bytes() as u64;
        Ok(bytes as f64 / begun.elapsed().as_secs_f64())
    }

    fn get(&mut self, objects: &Objects) -> Result<()> {
        let number = self.next;
        self.next += 1;
        let get = Get {
            id: objects.id(number % objects.count()),
            lease: None,
            length_bytes: objects.block_bytes() as u64,
        };
        self.request(Kind::Get, number, |body| get.encode(body))
    }

    fn request(
        &mut self,
        kind: Kind,
        number: u64,
        encode: impl FnOnce(&mut Vec<u8>),
    ) -> Result<()> {
        self.body.clear();
        encode(&mut self.body);
        let header = FrameHeader {
            kind,
            // Zero is no request.
            request: number + 1,
            deadline_ms: PATIENCE_MS,
            body_bytes: u32::try_from(self.body.len())?,
            payload_bytes: 0,
        };
        let frame = [&header.encode(), self.body.as_slice()].concat();
        Ok(self.stream.write_all(&frame)?)
    }

    /// Reads the next answer up to its payload, the body into `self.body`.
    fn answer(&mut self, kind: Kind) -> Result<FrameHeader> {
        let mut header = [0; FRAME_HEADER_BYTES];
        self.stream.read_exact(&mut header)?;
        let header = FrameHeader::decode(&header)?;
        ensure!(header.kind == kind, "the node answered {:?}", header.kind);
        self.body.resize(usize::try_from(header.body_bytes)?, 0);
        self.stream.read_exact(&mut self.body)?;
        Ok(header)
    }

    fn receive(&mut self, objects: &Objects, arena: &mut [u8], verified: bool) -> Result<()> {
        let header = self.answer(Kind::GetAnswer)?;
        let number = header.request - 1;
        let GetAnswer::Found(object) = GetAnswer::decode(&self.body)? else {
            bail!("a stored object is missing");
        };
        object.check(&objects.expectation(number % objects.count()))?;
        let length = objects.block_bytes();
        ensure!(header.payload_bytes == length as u64, "an object is cut");
        let place = objects.place_in(arena, number);
        let (mut checksum, mut filled) = (Checksum::new(), 0);
        while filled < length {
            let end = length.min(filled + QUANTUM_BYTES);
            let count = self.stream.read(&mut place[filled..end])?;
            ensure!(count > 0, "the node closed the connection");
            if verified {
                checksum.update(&place[filled..filled + count]);
            }
            filled += count;
        }
        if verified {
            object.check_payload(checksum.finish())?;
        }
        Ok(())
    }
}
