//! What a peer driver is started with, and the bounds that it holds against the network.

use std::io;
use std::time::Duration;

use tessera_lifecycle::Shape;
use tessera_lifecycle::peer::{PeerLimits, PeerTimes};
use tessera_proto::Incarnation;
use tessera_transport::Address;

use crate::driver::{EngineConfig, StartError};
use crate::health::HealthConfig;

/// A worker that takes part in direct transfers.
#[derive(Debug, Clone)]
pub struct PeerOptions {
    /// This process start: random, never used twice.
    pub incarnation: Incarnation,
    /// This worker among the ranks of its engine, in the engine's order.
    pub rank: u16,
    /// Where it listens; port 0 takes a free one.
    pub listen: Address,
    /// Whether it may listen where other machines reach it.
    pub insecure: bool,
    /// The model's id as the engine was given it.
    pub model: String,
    /// Revision of the model, empty if unknown.
    pub revision: String,
    /// Fingerprint of the weights, empty if unknown.
    pub weights: Vec<u8>,
    /// Whose prompts the engine computes.
    pub tenant: String,
    /// Element type of the cache as the engine names it.
    pub dtype: String,
    /// Speculative decoding in the engine's words, empty if there is none.
    pub speculative: String,
    /// Digest over group specs and content sizes, as it stands in the engine's namespace.
    pub layout: [u8; 32],
    /// The shape of the engine's cache.
    pub shape: Shape,
    /// Heads of the whole model in each layer of each group, `None` where there are none or where
    /// that is not known; what is missing counts as such.
    pub heads: Vec<Option<u32>>,
    /// Tensor parallel size of the engines at the other end.
    pub peer_tp: u32,
    /// When the machine seeks the next proof.
    pub times: PeerTimes,
    /// Bounds of the machine's tables.
    pub limits: PeerLimits,
    /// Bounds against the network.
    pub bounds: PeerBounds,
}

impl PeerOptions {
    /// The worker that `engine` describes, with a new incarnation, on loopback.
    ///
    /// # Errors
    /// See [`StartError`].
    pub fn new(engine: &EngineConfig) -> Result<Self, StartError> {
        let shape = engine.shape()?;
        let place = shape.ranks().iter().position(|rank| *rank == engine.rank);
        let rank = place.and_then(|place| u16::try_from(place).ok());
        let rank = rank.ok_or_else(|| {
            StartError::Config(format!("rank {:?} is not of this engine", engine.rank))
        })?;
        let random = || getrandom::u64().map_err(|error| io::Error::other(error.to_string()));
        let incarnation = u128::from(random()?) << 64 | u128::from(random()?);
        let namespace = &engine.namespace;
        Ok(Self {
            incarnation: Incarnation(incarnation),
            rank,
            listen: Address::Tcp("127.0.0.1:0".into()),
            insecure: false,
            model: namespace.model.clone(),
            revision: namespace.revision.clone(),
            weights: namespace.weights.clone(),
            tenant: engine.options.tenant.clone(),
            dtype: namespace.dtype.clone(),
            speculative: engine.speculative.clone(),
            layout: namespace.layout_fingerprint,
            peer_tp: engine.peer_tp(),
            heads: engine.heads.clone(),
            shape,
            times: PeerTimes::default(),
            limits: PeerLimits::default(),
            bounds: PeerBounds {
                proof_timeout: engine.options.proof_timeout,
                ..PeerBounds::default()
            },
        })
    }
}

/// Bounds against the network, and patience with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerBounds {
    /// Most connections at once, those in their handshake included.
    pub connections: usize,
    /// For the handshake of a connection, from its first byte to its last.
    pub hello_timeout: Duration,
    /// For one frame without its payload, once its first byte is there; a payload adds to it.
    pub frame_timeout: Duration,
    /// How long nothing may come on a connection: while anything is open, heartbeats do.
    pub idle_timeout: Duration,
    /// How long one order to connect tries, or waits to be dialled.
    pub dial_limit: Duration,
    /// Pauses between tries.
    pub pauses: HealthConfig,
    /// Most frames of the machine that wait to be sent on one connection.
    pub control_frames: usize,
    /// Most parts that one connection may ask for or answer at once.
    pub parts: usize,
    /// Bytes of one piece of a part, unless a single block is larger.
    pub piece_bytes: u64,
    /// How long a device may owe a proof before the worker stops.
    pub proof_timeout: Duration,
}

impl Default for PeerBounds {
    fn default() -> Self {
        Self {
            connections: 1_024,
            hello_timeout: Duration::from_secs(1),
            frame_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(600),
            dial_limit: Duration::from_secs(10),
            pauses: HealthConfig::default(),
            control_frames: 65_536,
            parts: 4_096,
            piece_bytes: 4 << 20,
            proof_timeout: Duration::from_secs(120),
        }
    }
}

/// Payload bytes a second that any peer must reach.
const PAYLOAD_RATE: u64 = 16 << 20;

impl PeerBounds {
    /// For a frame with a payload of so many bytes.
    pub(super) fn frame_limit(&self, payload_bytes: u64) -> Duration {
        self.frame_timeout + Duration::from_secs(payload_bytes / PAYLOAD_RATE)
    }
}

/// Why a worker cannot take part in direct transfers.
#[derive(Debug, thiserror::Error)]
pub enum PeerStartError {
    /// An open port, which nothing protects.
    #[error(
        "peers would be reached at {address} from other machines, and nothing authenticates them: \
         listen on loopback, or allow it explicitly on a trusted network"
    )]
    NotLoopback {
        /// The address.
        address: String,
    },
    /// The address cannot be listened on.
    #[error("cannot listen for peers on {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// The system's answer.
        source: io::Error,
    },
}
