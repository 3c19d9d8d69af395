//! What two engines must have in common before either names an address to the other.
//!
//! Called by the handshake on both sides. The invariant: everything is compared, and the first
//! difference is said with both values.

use tessera_lifecycle::GroupKind;
use tessera_proto::limits::PEER_TEXT_BYTES_MAX;
use tessera_proto::message::{Features, PEER_QUIESCENCE, PeerGroup, PeerSetup};

use super::config::PeerOptions;
use super::shares;
use crate::layout::{Layout, Seat};

/// This engine as others see it.
pub(super) fn setup(options: &PeerOptions, layout: &Layout) -> PeerSetup {
    let groups = options.shape.groups().iter().enumerate();
    let groups = groups.map(|(index, group)| PeerGroup {
        kind: match group.kind {
            GroupKind::Full => "full".to_owned(),
            GroupKind::Window { tokens } => format!("window of {tokens} tokens"),
            GroupKind::State => "state".to_owned(),
        },
        block_tokens: group.block_tokens,
        block_bytes: layout.payload_bytes(index, 1),
        fingerprint: layout.fingerprint(index),
        heads: shares::held(options, layout, index)
            .and_then(|_| shares::heads(options, index))
            .unwrap_or(0),
        head_fingerprint: layout.head_fingerprint(index),
    });
    PeerSetup {
        model: said(&options.model),
        revision: said(&options.revision),
        weights: said(&hex(&options.weights)),
        tenant: said(&options.tenant),
        dtype: said(&options.dtype),
        speculative: said(&options.speculative),
        layout: options.layout,
        topology: options.shape.topology(),
        peer_tp: options.peer_tp,
        piece_bytes: options.bounds.piece_bytes,
        groups: groups.collect(),
    }
}

/// A text as a HELLO can bring it: one that is too long ends in its own digest. Cut, it would
/// differ from what it is compared with, or be equal to what it is not.
fn said(text: &str) -> String {
    let limit = PEER_TEXT_BYTES_MAX as usize;
    if text.len() <= limit {
        return text.to_owned();
    }
    let digest = format!("... blake3 {}", blake3::hash(text.as_bytes()));
    let start = text.floor_char_boundary(limit - digest.len());
    format!("{}{digest}", &text[..start])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The first thing in which another engine differs, in words with both values.
pub(super) fn difference(own: &PeerSetup, other: &PeerSetup, features: Features) -> Option<String> {
    let differ = |what: &str, own: &dyn std::fmt::Debug, other: &dyn std::fmt::Debug| {
        Some(format!("{what}: {own:?} here, {other:?} there"))
    };
    if features.0 & PEER_QUIESCENCE.0 == 0 {
        return differ("features", &PEER_QUIESCENCE.0, &features.0);
    }
    let texts = [
        ("model", &own.model, &other.model),
        ("revision", &own.revision, &other.revision),
        ("weights", &own.weights, &other.weights),
        ("tenant", &own.tenant, &other.tenant),
        ("dtype", &own.dtype, &other.dtype),
        ("speculative decoding", &own.speculative, &other.speculative),
    ];
    if let Some((what, own, other)) = texts.into_iter().find(|(_, own, other)| own != other) {
        return differ(what, own, other);
    }
    if own.layout != other.layout {
        return differ("cache layout", &hex(&own.layout), &hex(&other.layout));
    }
    let (mine, theirs) = (own.topology, other.topology);
    if (own.peer_tp, mine.tp) != (theirs.tp, other.peer_tp) {
        return Some(format!(
            "tensor parallel size: {} here, which expects {}; {} there, which expects {}; \
             peer_tp_size of each is that of the other",
            mine.tp, own.peer_tp, theirs.tp, other.peer_tp
        ));
    }
    let sizes = [
        ("pipeline parallel size", mine.pp, theirs.pp),
        ("decode context parallel size", mine.dcp, theirs.dcp),
        ("prefill context parallel size", mine.pcp, theirs.pcp),
    ];
    if let Some((what, own, other)) = sizes.into_iter().find(|(_, own, other)| own != other) {
        return differ(what, &own, &other);
    }
    let (ranks, dcp) = ([mine.tp, theirs.tp], mine.dcp);
    if mine.tp != theirs.tp && dcp > 1 {
        let [here, there] = ranks;
        return Some(format!(
            "decode context parallel size: {dcp} here, {dcp} there, by which tokens are cut \
             differently on {here} and {there} ranks"
        ));
    }
    if own.piece_bytes != other.piece_bytes {
        return differ("bytes of a piece", &own.piece_bytes, &other.piece_bytes);
    }
    if own.groups.len() != other.groups.len() {
        return differ("cache groups", &own.groups.len(), &other.groups.len());
    }
    let mut groups = own.groups.iter().zip(&other.groups).enumerate();
    groups.find_map(|(index, (own, other))| difference_of_group(index, own, other, ranks))
}

/// As [`difference`], of one cache group.
fn difference_of_group(
    index: usize,
    own: &PeerGroup,
    other: &PeerGroup,
    ranks: [u32; 2],
) -> Option<String> {
    let of = |what: &str| format!("{what} of cache group {index}");
    if own.kind != other.kind {
        let (what, own, other) = (of("kind"), &own.kind, &other.kind);
        return Some(format!("{what}: {own:?} here, {other:?} there"));
    }
    let [here, there] = ranks;
    let tokens = ("tokens of a block", own.block_tokens, other.block_tokens);
    let numbers = match here == there {
        true => [
            tokens,
            ("bytes of a block", own.block_bytes, other.block_bytes),
            ("layout fingerprint", own.fingerprint, other.fingerprint),
        ],
        false => [
            tokens,
            ("heads", own.heads.into(), other.heads.into()),
            (
                "layout of a head",
                own.head_fingerprint,
                other.head_fingerprint,
            ),
        ],
    };
    let found = numbers.into_iter().find(|(_, own, other)| own != other);
    if let Some((what, own, other)) = found {
        let what = of(what);
        return Some(format!("{what}: {own} here, {other} there"));
    }
    if here == there || is_cut(own.heads, ranks) {
        return None;
    }
    let (what, kind) = (of("ranks that share the blocks"), &own.kind);
    let why = match own.heads {
        0 => "its blocks have no heads to be cut by".to_owned(),
        heads => format!("its {heads} heads do not divide among both"),
    };
    Some(format!(
        "{what} ({kind}): {here} here, {there} there, and {why}"
    ))
}

/// Whether so many heads of the whole model divide among the ranks of both sides.
fn is_cut(heads: u32, ranks: [u32; 2]) -> bool {
    let mut ranks = ranks.into_iter();
    ranks.all(|ranks| Seat { rank: 0, ranks }.heads(heads).is_some())
}
