//! What the machine itself gives: a raw socket between two processes, and a copy in memory.
//!
//! Called by the session. A pass of either is as many bytes as one of the systems moves.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::payload::{Memory, SET_BYTES};
use super::session::Contestant;
use crate::bench::floor::{Congestion, Floor};

/// How long a pass of the socket is measured.
const SLICE: Duration = Duration::from_millis(250);

/// One blocking sender and one blocking reader; what is in flight is up to the kernel.
pub(crate) struct RawSocket {
    floor: Floor,
    object_bytes: usize,
}

impl RawSocket {
    /// With the congestion control that the product asks for, or with that of the system, which
    /// those get who ask for none.
    pub(crate) fn start(ours: bool) -> Result<Self> {
        let congestion = if ours {
            Congestion::Ours
        } else {
            Congestion::System
        };
        Ok(Self {
            floor: Floor::start_with(congestion)?,
            object_bytes: 0,
        })
    }

    fn pass(&mut self) -> Result<Duration> {
        let speed = self.floor.throughput(self.object_bytes, SLICE)?;
        Ok(Duration::from_secs_f64(SET_BYTES as f64 / speed))
    }
}

impl Contestant for RawSocket {
    fn size(&mut self, object_bytes: usize) -> Result<()> {
        self.object_bytes = object_bytes;
        Ok(())
    }

    fn get(&mut self, _in_flight: usize) -> Result<Duration> {
        self.pass()
    }

    fn put(&mut self, _in_flight: usize) -> Result<Duration> {
        self.pass()
    }
}

/// A copy of one thread between arenas.
pub(crate) struct Copy {
    memory: Memory,
}

impl Copy {
    pub(crate) fn start() -> Self {
        let memory = Memory::allocate();
        Self { memory }
    }

    fn pass(&mut self) -> Result<Duration> {
        self.memory.forget();
        let begun = Instant::now();
        for number in 0..self.memory.count() {
            let place = self.memory.place(number);
            let from = black_box(&self.memory.source[place.clone()]);
            self.memory.destination[place].copy_from_slice(from);
        }
        let time = begun.elapsed();
        self.memory.check()?;
        Ok(time)
    }
}

impl Contestant for Copy {
    fn size(&mut self, object_bytes: usize) -> Result<()> {
        self.memory.object_bytes = object_bytes;
        Ok(())
    }

    fn get(&mut self, _in_flight: usize) -> Result<Duration> {
        self.pass()
    }

    fn put(&mut self, _in_flight: usize) -> Result<Duration> {
        self.pass()
    }
}
