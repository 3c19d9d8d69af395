//! What two engines must have in common before either names an address to the other.
//!
//! Called by the handshake on both sides. The invariant: everything is compared, and the first
//! difference is said with both values.

use tessera_lifecycle::GroupKind;
use tessera_proto::limits::PEER_TEXT_BYTES_MAX;
use tessera_proto::message::{Features, PEER_QUIESCENCE, PeerGroup, PeerSetup};

use super::config::PeerOptions;
use crate::layout::Layout;

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
    let sizes = [
        ("tensor parallel size", mine.tp, theirs.tp),
        ("pipeline parallel size", mine.pp, theirs.pp),
        ("decode context parallel size", mine.dcp, theirs.dcp),
        ("prefill context parallel size", mine.pcp, theirs.pcp),
    ];
    if let Some((what, own, other)) = sizes.into_iter().find(|(_, own, other)| own != other) {
        return differ(what, &own, &other);
    }
    if own.piece_bytes != other.piece_bytes {
        return differ("bytes of a piece", &own.piece_bytes, &other.piece_bytes);
    }
    if own.groups.len() != other.groups.len() {
        return differ("cache groups", &own.groups.len(), &other.groups.len());
    }
    let groups = own.groups.iter().zip(&other.groups).enumerate();
    for (index, (own, other)) in groups {
        let of = |what: &str| format!("{what} of cache group {index}");
        if own.kind != other.kind {
            return differ(&of("kind"), &own.kind, &other.kind);
        }
        let numbers = [
            ("tokens of a block", own.block_tokens, other.block_tokens),
            ("bytes of a block", own.block_bytes, other.block_bytes),
            ("layout fingerprint", own.fingerprint, other.fingerprint),
        ];
        let found = numbers.into_iter().find(|(_, own, other)| own != other);
        if let Some((what, own, other)) = found {
            return differ(&of(what), &own, &other);
        }
    }
    None
}
