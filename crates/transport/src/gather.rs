//! What a sender takes, and the cursor that cuts it into vectored writes.
//!
//! Called by the sender only. Invariant: the cursor walks header, body and payload of each frame in
//! order and never skips or repeats a byte, however the system cuts the writes.

use std::io::IoSlice;

use tessera_proto::{FRAME_HEADER_BYTES, FrameHeader};

use crate::segments::{Segments, span_bytes};

/// Most ranges in one system call.
pub(crate) const VECTOR_SLICES: usize = 128;

/// The payload of a frame.
#[derive(Debug, Clone, Copy, Default)]
pub enum Payload<'a> {
    /// No payload.
    #[default]
    None,
    /// One range.
    Bytes(&'a [u8]),
    /// Ranges of registered memory, in order.
    Segments(&'a Segments),
}

impl Payload<'_> {
    /// Bytes in all ranges together.
    pub fn length_bytes(&self) -> u64 {
        match self {
            Self::None => 0,
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Segments(segments) => segments.length_bytes(),
        }
    }

    fn part(&self, index: usize) -> Option<&[u8]> {
        match self {
            Self::None => None,
            Self::Bytes(bytes) => (index == 0).then_some(*bytes),
            // SAFETY: the segments are borrowed for as long as the frame, so their regions live;
            // the reference is used for one system call.
            Self::Segments(segments) => segments
                .spans()
                .get(index)
                .map(|span| unsafe { span_bytes(span) }),
        }
    }
}

/// One frame to send. The lengths in `header` are those of `body` and `payload`.
#[derive(Debug, Clone, Copy)]
pub struct Frame<'a> {
    /// The fixed header.
    pub header: FrameHeader,
    /// The message.
    pub body: &'a [u8],
    /// The object, if the message carries one.
    pub payload: Payload<'a>,
}

impl Frame<'_> {
    /// Whether the header tells the truth about the lengths.
    pub(crate) fn is_consistent(&self) -> bool {
        self.header.body_bytes as usize == self.body.len()
            && self.header.payload_bytes == self.payload.length_bytes()
    }

    /// Part 0 is the encoded header, part 1 the body, the rest the ranges of the payload.
    fn part<'b>(&'b self, header: &'b [u8], index: usize) -> Option<&'b [u8]> {
        match index {
            0 => Some(header),
            1 => Some(self.body),
            _ => self.payload.part(index - 2),
        }
    }
}

/// Encoded headers of one batch, kept from batch to batch.
pub(crate) type Headers = Vec<[u8; FRAME_HEADER_BYTES]>;

/// The next byte to send.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Cursor {
    frame: usize,
    part: usize,
    offset: usize,
}

impl Cursor {
    /// Fills `slices` with what comes next; returns how many were filled and their bytes.
    pub(crate) fn fill<'a>(
        self,
        frames: &'a [Frame<'a>],
        headers: &'a Headers,
        slices: &mut [IoSlice<'a>],
    ) -> (usize, usize) {
        let (mut count, mut bytes) = (0, 0);
        let mut at = self;
        while count < slices.len() {
            let Some(frame) = frames.get(at.frame) else {
                break;
            };
            match frame.part(&headers[at.frame], at.part) {
                Some(part) => {
                    let rest = &part[at.offset..];
                    if !rest.is_empty() {
                        slices[count] = IoSlice::new(rest);
                        count += 1;
                        bytes += rest.len();
                    }
                    at = Self {
                        part: at.part + 1,
                        offset: 0,
                        ..at
                    };
                }
                None => {
                    at = Self {
                        frame: at.frame + 1,
                        part: 0,
                        offset: 0,
                    }
                }
            }
        }
        (count, bytes)
    }

    /// Moves on by `bytes` that were sent.
    pub(crate) fn advance(&mut self, frames: &[Frame<'_>], headers: &Headers, mut bytes: usize) {
        while bytes > 0 {
            let Some(frame) = frames.get(self.frame) else {
                break;
            };
            match frame.part(&headers[self.frame], self.part) {
                Some(part) => {
                    let step = bytes.min(part.len() - self.offset);
                    bytes -= step;
                    self.offset += step;
                    if self.offset == part.len() {
                        *self = Self {
                            part: self.part + 1,
                            offset: 0,
                            ..*self
                        };
                    }
                }
                None => {
                    *self = Self {
                        frame: self.frame + 1,
                        part: 0,
                        offset: 0,
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tessera_proto::Kind;

    use super::*;
    use crate::region::Region;

    fn header(body: usize, payload: u64) -> FrameHeader {
        FrameHeader {
            kind: Kind::Put,
            request: 1,
            deadline_ms: 1,
            body_bytes: u32::try_from(body).unwrap(),
            payload_bytes: payload,
        }
    }

    proptest! {
        #[test]
        fn every_byte_goes_once_and_in_order_however_writes_are_cut(
            bodies in prop::collection::vec(0usize..40, 1..5),
            lengths in prop::collection::vec(0usize..30, 0..6),
            cuts in prop::collection::vec(1usize..50, 1..40),
            width in 1usize..5,
        ) {
            let region = Region::allocate(1024).unwrap();
            let mut segments = Segments::with_capacity(lengths.len());
            for (index, length) in lengths.iter().enumerate() {
                segments.push(&region, index * 100, *length).unwrap();
            }
            let texts: Vec<Vec<u8>> = bodies.iter().map(|length| vec![7; *length]).collect();
            let frames: Vec<Frame<'_>> = texts
                .iter()
                .map(|body| Frame {
                    header: header(body.len(), segments.length_bytes()),
                    body,
                    payload: Payload::Segments(&segments),
                })
                .collect();
            let headers: Headers = frames.iter().map(|frame| frame.header.encode()).collect();
            let mut expected = Vec::new();
            for (frame, header) in frames.iter().zip(&headers) {
                expected.extend_from_slice(header);
                expected.extend_from_slice(frame.body);
                let mut payload = vec![0; usize::try_from(segments.length_bytes()).unwrap()];
                segments.copy_to(&mut payload).unwrap();
                expected.append(&mut payload);
            }
            let mut sent = Vec::new();
            let mut cursor = Cursor::default();
            let mut cuts = cuts.iter().cycle();
            loop {
                let mut slices = vec![IoSlice::new(&[]); width];
                let (count, bytes) = cursor.fill(&frames, &headers, &mut slices);
                if count == 0 {
                    break;
                }
                let take = bytes.min(*cuts.next().unwrap());
                let flat: Vec<u8> =
                    slices[..count].iter().flat_map(|slice| slice.iter().copied()).collect();
                sent.extend_from_slice(&flat[..take]);
                cursor.advance(&frames, &headers, take);
            }
            prop_assert_eq!(sent, expected);
        }
    }
}
