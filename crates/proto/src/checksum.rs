//! The checksum of payloads and headers: CRC-64/NVME, streamed.
//!
//! Called wherever bytes land: by the node before an object is published and by the client after a
//! load. Streaming keeps the digest equal however the payload was cut into segments.

use crc_fast::{CrcAlgorithm, Digest};

/// A running CRC-64/NVME over bytes given in order, in pieces of any size.
#[derive(Clone, Debug)]
pub struct Checksum(Digest);

impl Checksum {
    /// A checksum over no bytes yet.
    #[must_use]
    pub fn new() -> Self {
        Self(Digest::new(CrcAlgorithm::Crc64Nvme))
    }

    /// Continues the checksum over `bytes`.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The checksum of all bytes given so far.
    #[must_use]
    pub fn finish(&self) -> u64 {
        self.0.finalize()
    }
}

impl Default for Checksum {
    fn default() -> Self {
        Self::new()
    }
}

/// CRC-64/NVME of `bytes` in one call.
#[must_use]
pub fn checksum(bytes: &[u8]) -> u64 {
    let mut running = Checksum::new();
    running.update(bytes);
    running.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check value that the CRC catalogue gives for CRC-64/NVME.
    #[test]
    fn check_value_of_the_catalogue() {
        assert_eq!(checksum(b"123456789"), 0xae8b_1486_0a79_9888);
    }

    #[test]
    fn pieces_give_the_same_as_the_whole() {
        let bytes: Vec<u8> = (0..=255).cycle().take(10_000).collect();
        let mut running = Checksum::new();
        for piece in bytes.chunks(37) {
            running.update(piece);
        }
        assert_eq!(running.finish(), checksum(&bytes));
    }
}
