//! The options of the connector: what `kv_connector_extra_config` may hold.
//!
//! Called once at start by the Python connector with the JSON object as the user wrote it, and by
//! the documentation test, which prints [`TABLE`] as `docs/configuration.md`. The table is the only
//! source of keys, types, ranges and defaults: parsing walks the same entries that are documented.
//! The invariant: nothing is ignored. An unknown key, a wrong type or a value out of range stops
//! the start with an error that names the right key, type or range.

mod reader;
mod table;

use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tessera_transport::Address;

use self::reader::Reader;

pub use table::{Kind, OptionDoc, TABLE, markdown};

/// One node of `nodes`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeOption {
    /// Where it listens.
    pub address: Address,
    /// Its share of the objects, relative to the other nodes.
    pub weight: u32,
}

/// How a load is executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoMode {
    /// Beside the model, on the client's threads.
    Async,
    /// On the model thread.
    Serial,
}

/// What a failed load does to its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnLoadFailure {
    /// The tokens are computed.
    Recompute,
    /// As the engine's own policy says.
    Engine,
}

/// The parsed options. Field names are the keys of [`TABLE`].
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Value")]
#[expect(missing_docs, reason = "each field is documented by its row of TABLE")]
pub struct Options {
    pub nodes: Vec<NodeOption>,
    pub tenant: String,
    pub model_revision: String,
    pub chunk_tokens: Option<u64>,
    pub load: bool,
    pub save: bool,
    pub io: IoMode,
    pub on_load_failure: OnLoadFailure,
    pub lookup_timeout: Duration,
    pub load_timeout: Duration,
    pub save_timeout: Duration,
    pub preempt_timeout: Duration,
    pub proof_timeout: Duration,
    pub connect_timeout: Duration,
    pub lease: Duration,
    pub max_loads: u64,
    pub max_saves: u64,
    pub staging_bytes: u64,
    pub self_test: bool,
    pub local_ram_bytes: u64,
    pub local_disk_bytes: u64,
    pub local_data: String,
    pub local_idle_exit: Duration,
    pub local_dir: String,
    pub peer_listen: Option<(String, u16)>,
    pub peer_inbox: Option<(String, u16)>,
    pub peer_tp_size: u64,
    pub peer_insecure: bool,
    pub peer_key_file: String,
    pub peer_lease: Duration,
    pub peer_timeout: Duration,
}

/// Why the options were refused. Every message says what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    /// The options are not a JSON object.
    #[error("kv_connector_extra_config must be a JSON object, got {got}")]
    NotAnObject {
        /// What it was.
        got: String,
    },
    /// A key that does not exist.
    #[error("unknown option {key:?} in kv_connector_extra_config; {hint}")]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The nearest key, or all keys.
        hint: String,
    },
    /// A value of the wrong type.
    #[error("option {key:?} must be {expected}, got {got}")]
    WrongType {
        /// The key.
        key: &'static str,
        /// The right type.
        expected: String,
        /// The value as written, shortened.
        got: String,
    },
    /// A value that is of the right type, and not allowed.
    #[error("option {key:?} must be {expected}, got {got}")]
    OutOfRange {
        /// The key.
        key: &'static str,
        /// What is allowed.
        expected: String,
        /// The value as written.
        got: String,
    },
    /// Two options that contradict each other.
    #[error("options {first:?} and {second:?} contradict each other: {rule}")]
    Contradiction {
        /// The one key.
        first: &'static str,
        /// The other key.
        second: &'static str,
        /// What must hold between them.
        rule: String,
    },
}

impl Options {
    /// Reads the options from `kv_connector_extra_config`.
    ///
    /// # Errors
    ///
    /// When a key is unknown, or a value has the wrong type or is out of range.
    pub fn parse(value: &Value) -> Result<Self, OptionError> {
        let reader = Reader::new(value)?;
        let options = Self {
            nodes: reader.nodes("nodes")?,
            tenant: reader.text("tenant")?,
            model_revision: reader.text("model_revision")?,
            chunk_tokens: reader.optional_integer("chunk_tokens")?,
            load: reader.flag("load")?,
            save: reader.flag("save")?,
            io: match reader.choice("io")? {
                "serial" => IoMode::Serial,
                _ => IoMode::Async,
            },
            on_load_failure: match reader.choice("on_load_failure")? {
                "engine" => OnLoadFailure::Engine,
                _ => OnLoadFailure::Recompute,
            },
            lookup_timeout: reader.millis("lookup_timeout_ms")?,
            load_timeout: reader.millis("load_timeout_ms")?,
            save_timeout: reader.millis("save_timeout_ms")?,
            preempt_timeout: reader.millis("preempt_timeout_ms")?,
            proof_timeout: reader.millis("proof_timeout_ms")?,
            connect_timeout: reader.millis("connect_timeout_ms")?,
            lease: reader.millis("lease_ms")?,
            max_loads: reader.integer("max_loads")?,
            max_saves: reader.integer("max_saves")?,
            staging_bytes: reader.bytes("staging")?,
            self_test: reader.flag("self_test")?,
            local_ram_bytes: reader.bytes("local_ram")?,
            local_disk_bytes: reader.bytes("local_disk")?,
            local_data: reader.text("local_data")?,
            local_idle_exit: Duration::from_secs(reader.integer("local_idle_exit_s")?),
            local_dir: reader.folder("local_dir")?,
            peer_listen: reader.listen("peer_listen")?,
            peer_inbox: reader.listen("peer_inbox")?,
            peer_tp_size: reader.integer("peer_tp_size")?,
            peer_insecure: reader.flag("peer_insecure")?,
            peer_key_file: reader.folder("peer_key_file")?,
            peer_lease: reader.millis("peer_lease_ms")?,
            peer_timeout: reader.millis("peer_timeout_ms")?,
        };
        options.check()
    }

    fn check(self) -> Result<Self, OptionError> {
        if self.lease < self.load_timeout {
            return Err(OptionError::Contradiction {
                first: "lease_ms",
                second: "load_timeout_ms",
                rule: "a lease must outlast the load that consumes it; raise lease_ms or lower \
                       load_timeout_ms"
                    .into(),
            });
        }
        Ok(self)
    }
}

impl Default for Options {
    fn default() -> Self {
        Self::parse(&Value::Object(serde_json::Map::new())).expect("the defaults parse")
    }
}

impl TryFrom<Value> for Options {
    type Error = OptionError;

    fn try_from(value: Value) -> Result<Self, OptionError> {
        Self::parse(&value)
    }
}

#[cfg(test)]
mod tests;
