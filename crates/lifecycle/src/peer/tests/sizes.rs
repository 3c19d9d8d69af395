//! What is too large for a message: orders are refused, lists go in several, times are cut.

use tessera_proto::limits::{LEASE_MS_MAX, PEER_BLOCKS_MAX, PEER_ENTRIES_MAX, PEER_PARTS_MAX};

use super::scene::{FIRST, SECOND, Scene, config, order, received, sent};
use crate::peer::{Frame, Message, Mode, PartId, PartOrder, PeerCommand, Side, TransferOrder};
use crate::shape::LayoutClass::Request;

fn wide(number: u64, mode: Mode, side: Side, parts: u32) -> TransferOrder {
    let mut order = order(number, mode, side, 1);
    let first = order.parts[0].clone();
    let part = |index| PartOrder {
        part: PartId {
            index,
            ..first.part
        },
        ..first.clone()
    };
    order.parts = (0..u16::try_from(parts).unwrap()).map(part).collect();
    order
}

fn blocks(mode: Mode, side: Side, count: u32) -> TransferOrder {
    let mut order = order(1, mode, side, 1);
    let block = order.parts[0].local[0];
    order.parts[0].local = vec![block; count as usize];
    order
}

/// The frames that the machine sends when it is connected, as the other side reads them.
fn frames(scene: &mut Scene, order: &TransferOrder) -> Vec<Frame> {
    scene.root.order(scene.now, order);
    let mut frames = Vec::new();
    let (peer, rank, connection) = (super::scene::PEER, 0, FIRST);
    scene.root.handle_event(
        scene.now,
        crate::peer::PeerEvent::Connected {
            peer,
            rank,
            connection,
        },
    );
    while let Some(command) = scene.root.poll_command() {
        if let PeerCommand::Send(frame) = command {
            let mut body = Vec::new();
            frame.encode(&mut body);
            assert_eq!(Frame::decode(&body).as_ref(), Ok(&frame));
            frames.push(frame);
        }
    }
    frames
}

#[test]
fn an_order_as_large_as_a_message_begins_and_a_larger_one_fails() {
    let (mode, side) = (Mode::Write, Side::Destination);
    let largest = [
        wide(1, mode, side, PEER_PARTS_MAX),
        blocks(mode, side, PEER_BLOCKS_MAX),
    ];
    for order in largest {
        assert_eq!(frames(&mut Scene::new(Request), &order).len(), 1);
    }
    let over = |mode, side| {
        [
            wide(1, mode, side, PEER_PARTS_MAX + 1),
            blocks(mode, side, PEER_BLOCKS_MAX + 1),
        ]
    };
    for mode in [Mode::Read, Mode::Write] {
        for side in [Side::Source, Side::Destination] {
            for order in over(mode, side) {
                let mut scene = Scene::new(Request);
                scene.order(&order);
                scene.passes(1);
                let expected = match side {
                    Side::Source => sent(&[1]),
                    Side::Destination => received(&[1], &[1]),
                };
                assert_eq!(scene.results(), expected);
                assert_eq!(scene.connects, []);
            }
        }
    }
}

#[test]
fn a_lease_longer_than_a_message_may_say_is_offered_for_as_long_as_it_may() {
    let mut order = order(1, Mode::Write, Side::Destination, 1);
    order.lease_ms = u64::from(LEASE_MS_MAX) + 1;
    let frames = frames(&mut Scene::new(Request), &order);
    let longest = u64::from(LEASE_MS_MAX);
    assert!(
        matches!(frames[0].message, Message::Offer { lease_ms, .. } if lease_ms == longest),
        "{frames:?}"
    );
}

#[test]
fn an_open_set_larger_than_a_message_goes_in_several() {
    let mut config = config(Request);
    (
        config.limits.quarantine_bytes,
        config.limits.quarantine_stop_bytes,
    ) = (u64::MAX, u64::MAX);
    let mut scene = Scene::with(config);
    let transfers = PEER_ENTRIES_MAX / PEER_PARTS_MAX + 1;
    for number in 1..=u64::from(transfers) {
        let order = wide(number, Mode::Read, Side::Destination, PEER_PARTS_MAX);
        scene.begin_order(&order);
    }
    scene.disconnect();
    scene.sent.clear();
    scene.connect(SECOND);
    let sizes: Vec<usize> = scene
        .sent
        .iter()
        .filter_map(|message| match message {
            Message::OpenSet { open } => Some(open.len()),
            _ => None,
        })
        .collect();
    assert_eq!(
        sizes,
        [PEER_ENTRIES_MAX as usize, PEER_PARTS_MAX as usize],
        "every part that moves is named"
    );
}
