//! Properties of every codec, whatever the message.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};
use tessera_proto::{DecodeError, FRAME_HEADER_BYTES, FrameHeader, Kind, checksum};

use crate::messages::Message;
use crate::strategies;

/// A header whose check is right, whatever else it says.
fn with_check(mut bytes: [u8; FRAME_HEADER_BYTES]) -> [u8; FRAME_HEADER_BYTES] {
    let check = checksum(&bytes[..FRAME_HEADER_BYTES - 8]).to_le_bytes();
    bytes[FRAME_HEADER_BYTES - 8..].copy_from_slice(&check);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_message_decodes_to_itself(message in strategies::message()) {
        prop_assert_eq!(Message::decode(message.name(), &message.encode()), Ok(message));
    }

    #[test]
    fn bytes_that_decode_encode_to_themselves(
        name in select(Message::NAMES),
        body in vec(any::<u8>(), 0..200),
    ) {
        if let Ok(message) = Message::decode(name, &body) {
            prop_assert_eq!(message.encode(), body);
        }
    }

    #[test]
    fn a_damaged_message_is_refused_or_means_its_bytes(
        message in strategies::message(),
        damage in vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let mut body = message.encode();
        for (at, value) in damage {
            if !body.is_empty() {
                let at = at.index(body.len());
                body[at] = value;
            }
        }
        if let Ok(message) = Message::decode(message.name(), &body) {
            prop_assert_eq!(message.encode(), body);
        }
    }

    #[test]
    fn a_message_cut_anywhere_is_truncated(message in strategies::message(), at: Index) {
        let body = message.encode();
        if !body.is_empty() {
            let cut = Message::decode(message.name(), &body[..at.index(body.len())]);
            prop_assert!(matches!(cut, Err(DecodeError::Truncated { .. })), "{:?}", cut);
        }
    }

    #[test]
    fn bytes_after_a_message_are_counted(
        message in strategies::message(),
        extra in vec(any::<u8>(), 1..9),
    ) {
        let mut body = message.encode();
        body.extend_from_slice(&extra);
        let longer = Message::decode(message.name(), &body);
        prop_assert_eq!(longer, Err(DecodeError::Trailing { extra: extra.len() }));
    }

    #[test]
    fn a_frame_header_decodes_to_itself(header in strategies::frame_header()) {
        prop_assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
    }

    #[test]
    fn header_bytes_that_decode_encode_to_themselves(
        header in strategies::frame_header(),
        damage in vec((0..FRAME_HEADER_BYTES, any::<u8>()), 0..4),
    ) {
        let mut bytes = header.encode();
        for (at, value) in damage {
            bytes[at] = value;
        }
        let bytes = with_check(bytes);
        if let Ok(decoded) = FrameHeader::decode(&bytes) {
            prop_assert_eq!(decoded.encode(), bytes);
        }
    }

    #[test]
    fn a_frame_header_with_a_flipped_bit_is_refused(
        header in strategies::frame_header(),
        at in 0..FRAME_HEADER_BYTES,
        bit in 0..8_u8,
    ) {
        let mut bytes = header.encode();
        bytes[at] ^= 1 << bit;
        prop_assert!(FrameHeader::decode(&bytes).is_err());
    }
}

#[test]
fn kinds_have_numbers_of_their_own_and_each_request_an_answer() {
    for kind in Kind::ALL {
        assert_eq!(Kind::from_number(kind.number()), Some(*kind));
        // What a control frame says is answered by another one.
        let alone = *kind == Kind::PeerControl;
        let answered =
            alone || kind.is_answer() || Kind::from_number(kind.number() | 0x8000).is_some();
        assert!(answered, "{kind:?} has no answer");
    }
}
