//! The checksum of bytes that lie one behind the other, from the checksums of the pieces.
//!
//! Called by whoever keeps a checksum for each block and sends several at once. The invariant:
//! joining gives what one pass over all of the bytes gives, without a look at any of them.
//!
//! A checksum is a polynomial over GF(2), modulo the one that defines CRC-64/NVME. To append bytes
//! is to multiply by x to the power of their bits and to add theirs; that the register begins and
//! ends inverted cancels out.

/// The polynomial, its lowest power in the highest bit; the power 64 is left out.
const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;
/// x to the power of 0.
const ONE: u64 = 1 << 63;
/// x to the power of the bits of one byte.
const BYTE: u64 = ONE >> 8;

/// Bytes of one length, whatever they are, behind others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// x to the power of their bits.
    power: u64,
}

impl Appended {
    /// Bytes of this length.
    #[must_use]
    pub const fn new(length_bytes: u64) -> Self {
        let (mut power, mut square, mut left) = (ONE, BYTE, length_bytes);
        while left > 0 {
            if left & 1 == 1 {
                power = multiply(power, square);
            }
            square = multiply(square, square);
            left >>= 1;
        }
        Self { power }
    }

    /// The checksum of all, from that of what comes before and that of the bytes themselves.
    #[must_use]
    pub const fn join(self, before: u64, own: u64) -> u64 {
        multiply(self.power, before) ^ own
    }
}

/// The product of two polynomials.
const fn multiply(left: u64, mut right: u64) -> u64 {
    let (mut product, mut at) = (0, 64);
    while at > 0 {
        at -= 1;
        product ^= right & 0_u64.wrapping_sub(left >> at & 1);
        right = right >> 1 ^ (POLYNOMIAL & 0_u64.wrapping_sub(right & 1));
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checksum::{Checksum, checksum};

    #[test]
    fn joined_checksums_are_those_of_the_whole() {
        let bytes: Vec<u8> = (0..=255)
            .cycle()
            .map(|byte: u8| byte ^ 0x5a)
            .take(70_000)
            .collect();
        for length in [1, 2, 7, 8, 96, 255, 256, 4_096, 65_536] {
            let appended = Appended::new(u64::try_from(length).unwrap());
            let (mut joined, mut whole) = (checksum(&[]), Checksum::new());
            for piece in bytes.chunks_exact(length) {
                joined = appended.join(joined, checksum(piece));
                whole.update(piece);
                assert_eq!(joined, whole.finish(), "{length} bytes a piece");
            }
        }
    }

    #[test]
    fn nothing_is_appended_without_a_change() {
        let before = checksum(b"before");
        assert_eq!(Appended::new(0).join(before, checksum(&[])), before);
    }
}
