//! A prefill and a decode scheduler of one cache, and the prompt that goes from one to the other.

use tessera_proto::peer::TransferId;
use tessera_proto::ticket::{Prompt, TicketKey, TicketWorker};
use tessera_proto::{Incarnation, Instant, Topology};

use crate::handover::{
    HandoverBlock, HandoverConfig, HandoverOrder, HandoverRoot, Offered, Refused,
};
use crate::ids::RequestKey;
use crate::shape::{Axes, GroupKind, GroupSpec, Shape};

/// A worker's name of an order.
pub(super) const KEY: RequestKey = RequestKey(7);
pub(super) const NULL: u32 = u32::MAX;
pub(super) const UNIX_MS: u64 = 1_700_000_000_000;
pub(super) const LEASE_MS: u64 = 30_000;
pub(super) const TIMEOUT_MS: u64 = 10_000;
pub(super) const START: Instant = Instant(5_000_000_000);

/// Tokens of a block.
const BLOCK: u64 = 4;

pub(super) fn shape(kinds: &[GroupKind]) -> Shape {
    let group = |kind: &GroupKind| GroupSpec {
        kind: *kind,
        block_tokens: BLOCK,
        replicated: Axes::default(),
    };
    let groups = kinds.iter().map(group).collect();
    Shape::new(groups, None, BLOCK, Topology::SINGLE).unwrap()
}

pub(super) const FULL: &[GroupKind] = &[GroupKind::Full];
pub(super) const HYBRID: &[GroupKind] = &[
    GroupKind::Full,
    GroupKind::Window { tokens: 6 },
    GroupKind::State,
];

pub(super) fn root(kinds: &[GroupKind], key: u8) -> HandoverRoot {
    let mut root = HandoverRoot::new(HandoverConfig {
        shape: shape(kinds),
        peer_ranks: 1,
        key: TicketKey::new(&[key; 32]).unwrap(),
        offers: true,
        takes: true,
        lease_ms: LEASE_MS,
        timeout_ms: TIMEOUT_MS,
        limits: Default::default(),
    });
    root.meet(vec![TicketWorker {
        incarnation: Incarnation(u128::from(key) + 100),
        address: "127.0.0.1:4000".to_owned(),
    }]);
    root
}

/// The first `length` of a prompt's tokens, and the hashes of its whole blocks.
pub(super) struct Text {
    tokens: Vec<u32>,
    hashes: Vec<Vec<u8>>,
}

impl Text {
    pub(super) fn new(seed: u32, length: u32) -> Self {
        let whole = length / 4;
        Self {
            tokens: (0..length).map(|at| seed * 1_000 + at).collect(),
            hashes: (0..whole)
                .map(|at| vec![0, u8::try_from(at).unwrap()])
                .collect(),
        }
    }

    pub(super) fn with<R>(&self, use_it: impl FnOnce(Prompt<'_>) -> R) -> R {
        let hashes: Vec<&[u8]> = self.hashes.iter().map(Vec::as_slice).collect();
        use_it(Prompt {
            tokens: &self.tokens,
            hashes: &hashes,
            hash_tokens: BLOCK,
            others: &[],
        })
    }
}

/// Prefill offers a whole prompt that lies in `tables`.
pub(super) fn offer(root: &mut HandoverRoot, text: &Text, tables: &[Vec<u32>]) -> Option<String> {
    offer_after(
        root,
        text,
        u64::try_from(text.tokens.len()).unwrap(),
        tables,
    )
}

pub(super) fn offer_after(
    root: &mut HandoverRoot,
    text: &Text,
    computed_tokens: u64,
    tables: &[Vec<u32>],
) -> Option<String> {
    let offer = text.with(|prompt| {
        root.offer(
            UNIX_MS,
            &Offered {
                request: "p",
                transfer: TransferId(77),
                prompt,
                computed_tokens,
                tables,
            },
        )
    });
    root.check_invariants();
    offer
}

/// Decode is given a request with the ticket.
pub(super) fn admit(
    root: &mut HandoverRoot,
    name: &str,
    ticket: &str,
    text: &Text,
) -> Result<(), Refused> {
    let admitted = text.with(|prompt| root.admit((START, UNIX_MS), name, ticket, prompt));
    root.check_invariants();
    admitted
}

/// The only order of a step.
pub(super) fn only(root: &mut HandoverRoot) -> HandoverOrder {
    root.check_invariants();
    let (mut orders, cancels) = root.take_orders();
    assert_eq!((orders.len(), cancels.len()), (1, 0), "{orders:?}");
    orders.remove(0)
}

/// That a step has no order.
pub(super) fn none(root: &mut HandoverRoot) {
    assert_eq!(root.take_orders(), (Vec::new(), Vec::new()));
}

/// Pairs of our block and prefill's.
pub(super) fn pairs(order: &HandoverOrder, group: u16) -> Vec<(u32, u32)> {
    let of = order.blocks.iter().filter(|block| block.group == group);
    of.map(|HandoverBlock { local, remote, .. }| (*local, *remote))
        .collect()
}
