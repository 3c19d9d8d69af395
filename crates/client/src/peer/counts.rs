//! What a peer driver counts, beside what its machine does.
//!
//! Counted by its tasks, read by whoever collects metrics. Counts only; nothing here decides.

use std::sync::atomic::{AtomicU64, Ordering};

use tessera_lifecycle::peer::{PeerCounters, PeerGauges};

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Numbers that only grow.
        #[derive(Debug, Default)]
        pub(super) struct Counts { $(pub(super) $name: Count,)* }

        /// What has happened between this worker and its peers, and what is open now.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct PeerMetrics {
            /// What the machine counts: fences by kind, late completions, refused claims and more.
            pub machine: PeerCounters,
            /// Bytes by state, and the oldest transfer on the driver's clock.
            pub gauges: PeerGauges,
            /// How long the oldest open transfer has been open, nanoseconds.
            pub oldest_ns: u64,
            /// Connections at this moment, those that are ending included.
            pub connections: u64,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Counts {
            /// Copies the numbers.
            pub(super) fn read(&self, into: &mut PeerMetrics) {
                $(into.$name = self.$name.0.load(Ordering::Relaxed);)*
            }
        }
    };
}

counts! {
    /// Connections that others began.
    accepted,
    /// Handshakes that succeeded, on either side.
    connected,
    /// Tries to dial.
    dialled,
    /// Connections beyond the most that are kept.
    refused_full,
    /// Handshakes that did not end in time.
    refused_late,
    /// First frames that are no HELLO, or one that cannot be read.
    refused_malformed,
    /// Engines that differ in what must be equal.
    refused_mismatch,
    /// Engines that meant another process start.
    refused_stranger,
    /// Engines that came while a fence of their connection ran.
    refused_fenced,
    /// Connections that ended with a frame that does not belong there, or too many.
    closed_malformed,
    /// Connections that ended because a frame came too slowly, or nothing came for too long.
    closed_late,
    /// Connections that ended otherwise.
    closed,
    /// Frames without bytes of blocks that came, those of the handshake left out.
    messages_received,
    /// Frames without bytes of blocks that were sent, those of the handshake left out.
    messages_sent,
    /// Bytes that landed in blocks of this worker.
    bytes_received,
    /// Bytes of blocks of this worker that were sent.
    bytes_sent,
    /// Bytes of blocks that were offered, and whose checksums are made: from then on a change of
    /// them fails the transfer.
    bytes_summed,
    /// Pieces whose checksum did not fit what landed.
    integrity_failures,
}

/// One of them.
#[derive(Debug, Default)]
pub(super) struct Count(AtomicU64);

impl Count {
    pub(super) fn add(&self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}
