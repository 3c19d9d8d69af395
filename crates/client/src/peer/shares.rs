//! What passes between this worker and each rank of the engines at the other end.
//!
//! Made at start from this side alone, used by orders, pieces and checksums. The invariants: both
//! sides derive the same bytes in the same order for a part, since the handshake compares all that
//! this is made of; between engines of one size a part is all of a rank's blocks.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use tessera_lifecycle::peer::{PartId, Side};
use tessera_proto::{Appended, Topology};

use super::config::PeerOptions;
use crate::layout::{Layout, Seat, passed};

/// The bytes of blocks that pass between two ranks.
#[derive(Debug)]
pub(super) struct Share {
    /// The blocks, with those bytes only.
    pub(super) layout: Arc<Layout>,
    /// What the layers of each group add to a checksum.
    pub(super) appended: Vec<Vec<Appended>>,
}

impl Share {
    fn new(layout: Arc<Layout>) -> Arc<Self> {
        let of = |group| layout.layer_bytes(group).map(Appended::new).collect();
        let appended = (0..layout.groups()).map(of).collect();
        Arc::new(Self { layout, appended })
    }

    /// Bytes of a block of `group`; `None` if nothing of the group passes.
    fn block_bytes(&self, group: u16) -> Option<u64> {
        let group = usize::from(group);
        let known = group < self.layout.groups();
        let bytes = known.then(|| self.layout.payload_bytes(group, 1));
        bytes.filter(|bytes| *bytes > 0)
    }
}

/// What passes, by the rank at the other end.
#[derive(Debug)]
pub(super) struct Shares {
    rank: u16,
    given: Given,
}

#[derive(Debug)]
enum Given {
    /// Engines of one size: rank to rank, all of it.
    Whole(Arc<Share>),
    /// Each rank with which anything passes, as source and as destination of it. `None` where
    /// blocks cannot be cut: the handshake says so.
    Cut {
        to: BTreeMap<u16, Option<Arc<Share>>>,
        from: BTreeMap<u16, Option<Arc<Share>>>,
    },
}

impl Shares {
    pub(super) fn new(options: &PeerOptions, layout: &Arc<Layout>) -> Self {
        let Topology { tp, .. } = options.shape.topology();
        let rank = options.rank;
        let given = match options.peer_tp == tp {
            true => Given::Whole(Share::new(Arc::clone(layout))),
            false => Given::Cut {
                to: cuts(options, layout, Side::Source),
                from: cuts(options, layout, Side::Destination),
            },
        };
        Self { rank, given }
    }

    /// What passes in a part of which this is the side; `None` if nothing does.
    pub(super) fn of(&self, part: PartId, side: Side) -> Option<&Arc<Share>> {
        let other = match side {
            Side::Source => part.destination,
            Side::Destination => part.source,
        };
        match (&self.given, side) {
            (Given::Whole(share), _) => Some(share),
            (Given::Cut { to, .. }, Side::Source) => to.get(&other)?.as_ref(),
            (Given::Cut { from, .. }, Side::Destination) => from.get(&other)?.as_ref(),
        }
    }

    /// The ranks at the other end with which there is a part.
    pub(super) fn others(&self, side: Side) -> Vec<u16> {
        match (&self.given, side) {
            (Given::Whole(_), _) => vec![self.rank],
            (Given::Cut { to, .. }, Side::Source) => to.keys().copied().collect(),
            (Given::Cut { from, .. }, Side::Destination) => from.keys().copied().collect(),
        }
    }

    /// Bytes of a block of `group` that pass between this worker and another rank; `None` if the
    /// group is not part of what passes.
    pub(super) fn block_bytes(&self, side: Side, other: u16, group: u16) -> Option<u64> {
        let (source, destination) = match side {
            Side::Source => (self.rank, other),
            Side::Destination => (other, self.rank),
        };
        let part = PartId {
            source,
            destination,
            index: 0,
        };
        let share = self.of(part, side);
        match (share, &self.given) {
            (Some(share), Given::Whole(_)) => Some(share.block_bytes(group).unwrap_or(0)),
            (Some(share), Given::Cut { .. }) => share.block_bytes(group),
            // It will fail before anything moves.
            (None, _) => Some(0),
        }
    }
}

/// The heads of the whole model in each layer of `group`, of which a share may be cut.
pub(super) fn heads(options: &PeerOptions, group: usize) -> Option<u32> {
    let spec = options.shape.groups().get(group)?;
    match spec.replicated.tp {
        true => Some(1),
        false => options.heads.get(group).copied().flatten(),
    }
}

/// The heads of a group that are on this rank, if its blocks can be cut by them.
pub(super) fn held(options: &PeerOptions, layout: &Layout, group: usize) -> Option<Range<u32>> {
    let held = seat(options).heads(heads(options, group)?)?;
    let count = layout.heads(group)?;
    u32::try_from(held.len()).ok()?.eq(&count).then_some(held)
}

fn seat(options: &PeerOptions) -> Seat {
    let ranks = options.shape.topology().tp;
    Seat {
        rank: u32::from(options.rank) % ranks,
        ranks,
    }
}

fn cuts(options: &PeerOptions, layout: &Layout, side: Side) -> BTreeMap<u16, Option<Arc<Share>>> {
    let own = seat(options);
    let ranks = options.peer_tp;
    // Ranks are counted along the tensor parallel axis first.
    let outer = u32::from(options.rank) / own.ranks;
    let mut shares = BTreeMap::new();
    for rank in 0..ranks {
        let Ok(name) = u16::try_from(outer * ranks + rank) else {
            continue;
        };
        let other = Seat { rank, ranks };
        let (from, to) = match side {
            Side::Source => (own, other),
            Side::Destination => (other, own),
        };
        let wanted = |group| {
            let held = held(options, layout, group)?;
            let passed = passed(heads(options, group)?, from, to)?;
            let near = |head: u32| head.saturating_sub(held.start);
            Some(near(passed.start)..near(passed.end))
        };
        let wanted: Option<Vec<_>> = (0..layout.groups()).map(wanted).collect();
        match wanted {
            None => {
                shares.insert(name, None);
            }
            Some(wanted) if wanted.iter().any(|heads| !heads.is_empty()) => {
                let cut = layout.cut(|group| wanted[group].clone());
                shares.insert(name, Some(Share::new(Arc::new(cut))));
            }
            Some(_) => {}
        }
    }
    shares
}
