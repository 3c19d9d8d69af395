//! What the engine says of itself at start: one JSON document, read strictly.
//!
//! Called by the Python module, which hands the same document (but for `rank`) to the scheduler and
//! to every worker. The invariant: scheduler and workers derive the same namespace and shape from
//! it, so that they name the same objects.

use std::time::Duration;

use serde::{Deserialize, Deserializer, de::Error as _};
use tessera_lifecycle::handover::HandoverLimits;
use tessera_lifecycle::{GroupSpec, HandoverConfig, Rank, SchedulerConfig, Shape, WorkerConfig};
use tessera_lifecycle::{scheduler::SchedulerLimits, worker::WorkerLimits};
use tessera_proto::{Namespace, NamespaceDigest, Topology};

use super::error::StartError;
use crate::options::Options;
use crate::peer::ticket_key;

/// Version of the payload order that this client writes; part of every namespace.
const CONNECTOR_LAYOUT: u32 = 1;

/// The engine as its connector describes it.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineConfig {
    /// What must be equal before two engines share a block.
    pub namespace: NamespaceConfig,
    /// The cache groups, in the engine's order.
    pub groups: Vec<GroupSpec>,
    /// Tokens for each hash in a request's list of block hashes.
    pub hash_tokens: u64,
    /// Sizes of the engine's parallelism.
    #[serde(default)]
    pub topology: TopologyConfig,
    /// This worker's place; of no meaning to the scheduler.
    #[serde(default)]
    pub rank: Rank,
    /// Speculative decoding in the engine's words, empty if there is none.
    #[serde(default)]
    pub speculative: String,
    /// Whether this engine may load, as its role and its model allow.
    #[serde(default = "yes")]
    pub can_load: bool,
    /// Whether this engine may save, as its role allows.
    #[serde(default = "yes")]
    pub can_save: bool,
    /// Heads of the whole model in each layer of each group, `null` where it has none or where that
    /// is not known.
    #[serde(default)]
    pub heads: Vec<Option<u32>>,
    /// The user's options, as `kv_connector_extra_config` holds them.
    #[serde(default)]
    pub options: Options,
}

/// The parts of a namespace that the engine knows.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamespaceConfig {
    /// The model's id as the engine was given it.
    pub model: String,
    /// Revision of the model, empty if unknown.
    #[serde(default)]
    pub revision: String,
    /// Fingerprint of the weights in hexadecimal digits, empty if unknown.
    #[serde(default, deserialize_with = "hex")]
    pub weights: Vec<u8>,
    /// Element type of the cache as the engine names it.
    pub dtype: String,
    /// Digest over group specs and content sizes: 64 hexadecimal digits. The same in scheduler
    /// and workers.
    #[serde(deserialize_with = "digest")]
    pub layout_fingerprint: [u8; 32],
}

/// Sizes of the engine's parallelism; 1 where not given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TopologyConfig {
    /// Tensor parallel.
    pub tp: u32,
    /// Pipeline parallel.
    pub pp: u32,
    /// Decode context parallel; a worker's place is its TP rank modulo this.
    pub dcp: u32,
    /// Prefill context parallel.
    pub pcp: u32,
}

impl Default for TopologyConfig {
    fn default() -> Self {
        let Topology { tp, pp, dcp, pcp } = Topology::SINGLE;
        Self { tp, pp, dcp, pcp }
    }
}

impl TopologyConfig {
    const fn topology(self) -> Topology {
        let Self { tp, pp, dcp, pcp } = self;
        Topology { tp, pp, dcp, pcp }
    }
}

impl EngineConfig {
    /// Reads the document.
    ///
    /// # Errors
    /// [`StartError::Config`] with the place and what was expected there.
    pub fn from_json(json: &str) -> Result<Self, StartError> {
        serde_json::from_str(json).map_err(|error| StartError::Config(error.to_string()))
    }

    /// The shape of the cache, checked.
    ///
    /// # Errors
    /// See [`tessera_lifecycle::ShapeError`].
    pub fn shape(&self) -> Result<Shape, StartError> {
        let (groups, topology) = (self.groups.clone(), self.topology.topology());
        let chunk_tokens = self.options.chunk_tokens;
        let shape = Shape::new(groups, chunk_tokens, self.hash_tokens, topology)?;
        Ok(shape)
    }

    /// The namespace of all objects of this engine.
    ///
    /// # Errors
    /// As [`shape`](Self::shape).
    pub fn namespace(&self) -> Result<NamespaceDigest, StartError> {
        let chunk_tokens = self.shape()?.chunk_tokens();
        let NamespaceConfig {
            model,
            revision,
            weights,
            dtype,
            layout_fingerprint,
        } = self.namespace.clone();
        let namespace = Namespace {
            tenant: self.options.tenant.clone(),
            model,
            revision,
            weights,
            connector_layout: CONNECTOR_LAYOUT,
            dtype,
            layout_fingerprint,
            chunk_tokens: u32::try_from(chunk_tokens).unwrap_or(u32::MAX),
            topology: self.topology.topology(),
        };
        Ok(namespace.digest())
    }

    /// Tensor parallel size of the engines that prompts are handed over to or taken from.
    pub(crate) fn peer_tp(&self) -> u32 {
        let given = u32::try_from(self.options.peer_tp_size).unwrap_or(u32::MAX);
        match given {
            0 => self.topology.tp,
            size => size,
        }
    }

    pub(crate) fn scheduler(&self, incarnation: u128) -> Result<SchedulerConfig, StartError> {
        let load_timeout_ms = millis(self.options.load_timeout);
        let lookup_timeout_ms = millis(self.options.lookup_timeout);
        // A lease shorter than a lookup and a load would never be offered.
        let lease_ms = millis(self.options.lease).max(load_timeout_ms + 2 * lookup_timeout_ms);
        let lease_ms = u32::try_from(lease_ms).unwrap_or(u32::MAX);
        Ok(SchedulerConfig {
            namespace: self.namespace()?,
            shape: self.shape()?,
            loads: self.can_load && self.options.load,
            saves: self.can_save && self.options.save,
            lookup_timeout_ms,
            load_timeout_ms,
            lease_ms: lease_ms.min(tessera_proto::limits::LEASE_MS_MAX),
            incarnation,
            limits: SchedulerLimits::default(),
        })
    }

    /// What the scheduler needs for direct transfers; `None` if there are none.
    pub(crate) fn handover(&self) -> Result<Option<HandoverConfig>, StartError> {
        if self.options.peer_listen.is_none() {
            return Ok(None);
        }
        let size = |tp: u32| usize::try_from(tp).unwrap_or(usize::MAX);
        let (tp, peer_tp) = (size(self.topology.tp), size(self.peer_tp()));
        Ok(Some(HandoverConfig {
            peer_ranks: self.shape()?.ranks().len() / tp * peer_tp,
            shape: self.shape()?,
            key: ticket_key(&self.options)?,
            offers: self.can_save,
            takes: self.can_load,
            lease_ms: millis(self.options.peer_lease),
            timeout_ms: millis(self.options.peer_timeout),
            limits: HandoverLimits::default(),
        }))
    }

    pub(crate) fn worker(&self) -> Result<WorkerConfig, StartError> {
        let shape = self.shape()?;
        if !shape.ranks().contains(&self.rank) {
            let (rank, topology) = (self.rank, self.topology);
            return Err(StartError::Rank { rank, topology });
        }
        let in_flight = usize::try_from(self.options.max_loads).unwrap_or(usize::MAX);
        let limits = WorkerLimits {
            in_flight,
            ..WorkerLimits::default()
        };
        Ok(WorkerConfig {
            namespace: self.namespace()?,
            shape,
            rank: self.rank,
            limits,
        })
    }
}

const fn yes() -> bool {
    true
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn hex<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let digits = text.as_bytes();
    let value = |digit: u8| char::from(digit).to_digit(16);
    let pair = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(value(*high)? << 4 | value(*low)?).ok(),
        _ => None,
    };
    let bytes: Option<Vec<u8>> = digits.chunks(2).map(pair).collect();
    bytes.ok_or_else(|| D::Error::custom("expected an even number of hexadecimal digits"))
}

fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<[u8; 32], D::Error> {
    let bytes = hex(deserializer)?;
    let digest = bytes.try_into();
    digest.map_err(|_| D::Error::custom("expected 64 hexadecimal digits"))
}
