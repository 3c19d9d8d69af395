//! Snapshots of what the drivers have counted.
//!
//! Taken by the Python module once for each interval; never an error.

use tessera_lifecycle::handover::HandoverCounters;
use tessera_lifecycle::scheduler::SchedulerCounters;
use tessera_lifecycle::worker::{LoadFailure, WorkerCounters};

use crate::peer::PeerMetrics;

/// The scheduler's side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SchedulerMetrics {
    /// What the machine counted.
    pub machine: SchedulerCounters,
    /// What direct transfers counted.
    pub handover: HandoverCounters,
    /// Nanoseconds that lookups have waited on the scheduler's thread.
    pub lookup_wait_ns: u64,
}

/// A worker's side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerMetrics {
    /// What the machine counted.
    pub machine: WorkerCounters,
    /// Bytes that were loaded and verified.
    pub bytes_loaded: u64,
    /// Bytes that nodes have stored for the first time.
    pub bytes_saved: u64,
    /// Objects that were damaged, and not used.
    pub integrity_failures: u64,
    /// Staging memory in use.
    pub staging_bytes_used: u64,
    /// Nanoseconds that copies into staging have taken on the model thread.
    pub copy_ns: u64,
    /// What direct transfers counted.
    pub peers: PeerMetrics,
}

impl SchedulerMetrics {
    /// Every value with its name.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let SchedulerCounters {
            lookups,
            hits,
            misses,
            lookups_expired,
            lookups_quarantined,
            hit_tokens,
            loads,
            loads_succeeded,
            loads_failed,
            loads_cancelled,
            saves,
            saves_skipped,
            late_completions,
            late_lookups,
            requests_refused,
        } = self.machine;
        let HandoverCounters {
            offers,
            offers_withheld,
            tickets,
            tickets_refused,
            takes,
            tokens_taken,
            takes_cancelled,
            declined,
            passes,
            writes,
            writes_refused,
        } = self.handover;
        vec![
            ("lookups", lookups),
            ("lookup_hits", hits),
            ("lookup_misses", misses),
            ("lookups_expired", lookups_expired),
            ("lookups_quarantined", lookups_quarantined),
            ("hit_tokens", hit_tokens),
            ("loads_ordered", loads),
            ("loads_ended", loads_succeeded),
            ("loads_failed_on_any_rank", loads_failed),
            ("loads_cancelled", loads_cancelled),
            ("saves_ordered", saves),
            ("saves_not_ordered", saves_skipped),
            ("late_completions", late_completions),
            ("late_lookups", late_lookups),
            ("requests_refused", requests_refused),
            ("lookup_wait_ns", self.lookup_wait_ns),
            ("peer_offers", offers),
            ("peer_offers_withheld", offers_withheld),
            ("peer_tickets", tickets),
            ("peer_tickets_refused", tickets_refused),
            ("peer_takes", takes),
            ("peer_tokens_taken", tokens_taken),
            ("peer_takes_cancelled", takes_cancelled),
            ("peer_tickets_declined", declined),
            ("peer_passes", passes),
            ("peer_writes", writes),
            ("peer_writes_refused", writes_refused),
        ]
    }
}

impl WorkerMetrics {
    /// Every value with its name.
    #[must_use]
    pub fn named(&self) -> Vec<(&'static str, u64)> {
        let machine = &self.machine;
        let failed = LoadFailure::ALL.map(failure_name);
        let failed = failed.into_iter().zip(machine.loads_failed);
        let mut named = vec![
            ("loads", machine.loads),
            ("loads_succeeded", machine.loads_succeeded),
            ("objects_loaded", machine.objects_loaded),
            ("bytes_loaded", self.bytes_loaded),
            ("saves", machine.saves),
            ("saves_stored", machine.saves_stored),
            ("saves_existed", machine.saves_existed),
            ("saves_skipped", machine.saves_skipped),
            ("saves_refused", machine.saves_refused),
            ("bytes_saved", self.bytes_saved),
            ("integrity_failures", self.integrity_failures),
            ("late_completions", machine.late_completions),
            ("repeated_plans", machine.repeated_plans),
            ("staging_bytes_used", self.staging_bytes_used),
            ("copy_ns", self.copy_ns),
            ("peer_transfers", self.peers.machine.transfers),
            (
                "peer_transfers_succeeded",
                self.peers.machine.transfers_succeeded,
            ),
            ("peer_transfers_failed", self.peers.machine.transfers_failed),
            ("peer_refused_claims", self.peers.machine.refused_claims),
            ("peer_early_claims", self.peers.machine.early_claims),
            ("peer_late_completions", self.peers.machine.late_completions),
            ("peer_fences_close", self.peers.machine.fences_close),
            ("peer_fences_revoke", self.peers.machine.fences_revoke),
            ("peer_fences_dead", self.peers.machine.fences_dead),
            ("peer_offered_bytes", self.peers.gauges.offered_bytes),
            ("peer_claimed_bytes", self.peers.gauges.claimed_bytes),
            (
                "peer_quarantined_bytes",
                self.peers.gauges.quarantined_bytes,
            ),
            ("peer_connections", self.peers.connections),
            ("peer_bytes_received", self.peers.bytes_received),
            ("peer_bytes_sent", self.peers.bytes_sent),
            ("peer_integrity_failures", self.peers.integrity_failures),
        ];
        named.extend(failed);
        named
    }
}

const fn failure_name(failure: LoadFailure) -> &'static str {
    match failure {
        LoadFailure::Miss => "loads_failed_miss",
        LoadFailure::LeaseOver => "loads_failed_lease_over",
        LoadFailure::Length => "loads_failed_length",
        LoadFailure::Corrupt => "loads_failed_corrupt",
        LoadFailure::Unreachable => "loads_failed_unreachable",
        LoadFailure::Busy => "loads_failed_busy",
        LoadFailure::Abnormal => "loads_failed_abnormal",
        LoadFailure::Device => "loads_failed_device",
        LoadFailure::Unallocated => "loads_failed_unallocated",
        LoadFailure::Malformed => "loads_failed_malformed",
        LoadFailure::Deadline => "loads_failed_deadline",
        LoadFailure::QueueFull => "loads_failed_queue_full",
        LoadFailure::QueueClosed => "loads_failed_queue_closed",
        LoadFailure::Cancelled => "loads_failed_cancelled",
    }
}
