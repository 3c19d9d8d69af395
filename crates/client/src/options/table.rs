//! Every option, its type, its limits and its default: the rows of the documentation and the rules
//! of the parser.
//!
//! Read by the parser and by [`markdown`], which prints them as `docs/configuration.md`. The
//! invariant: what is parsed and what is documented are the same rows.

use tessera_proto::limits::CHUNK_TOKENS_MAX;

/// What a value of an option looks like, and where its limits are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `true` or `false`.
    Flag,
    /// A string.
    Text,
    /// A whole number between the two limits, both included.
    Integer {
        /// The smallest value allowed.
        min: u64,
        /// The largest value allowed.
        max: u64,
    },
    /// Bytes: a whole number, or a string with a unit such as `"4GiB"`.
    Bytes {
        /// The smallest value allowed, in bytes.
        min: u64,
        /// The largest value allowed, in bytes.
        max: u64,
    },
    /// One of the strings.
    Choice(&'static [&'static str]),
    /// A list of nodes: `"host:port"`, `"unix:/path"`, or `{"address": .., "weight": ..}`.
    Nodes,
}

/// One option: the row of the documentation and the rule of the parser.
#[derive(Debug, Clone, Copy)]
pub struct OptionDoc {
    /// The key in `kv_connector_extra_config`.
    pub key: &'static str,
    /// Its type and limits.
    pub kind: Kind,
    /// Its default, as JSON. `null` where the engine decides.
    pub default: &'static str,
    /// What it does, in one or two sentences.
    pub meaning: &'static str,
}

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// A timeout in milliseconds: at least one, at most ten minutes.
const TIMEOUT_MS: Kind = Kind::Integer {
    min: 1,
    max: 600_000,
};

/// Every option there is, in the order of the documentation.
pub const TABLE: &[OptionDoc] = &[
    OptionDoc {
        key: "nodes",
        kind: Kind::Nodes,
        default: "[]",
        meaning: "The cache nodes to use. Empty: one local node, shared by all engines of this \
                  user and started on demand.",
    },
    OptionDoc {
        key: "tenant",
        kind: Kind::Text,
        default: "\"\"",
        meaning: "Part of the identity of every object: two tenants never share one.",
    },
    OptionDoc {
        key: "model_revision",
        kind: Kind::Text,
        default: "\"\"",
        meaning: "Names the weights where neither a local folder nor a resolved commit does. \
                  Change it whenever the weights change.",
    },
    OptionDoc {
        key: "chunk_tokens",
        kind: Kind::Integer {
            min: 1,
            max: CHUNK_TOKENS_MAX as u64,
        },
        default: "null",
        meaning: "Tokens in one chunk, the unit of a hit. A multiple of the least common multiple \
                  of the block sizes of all cache groups, which is also the default.",
    },
    OptionDoc {
        key: "load",
        kind: Kind::Flag,
        default: "true",
        meaning: "Whether prompts are looked up and loaded.",
    },
    OptionDoc {
        key: "save",
        kind: Kind::Flag,
        default: "true",
        meaning: "Whether computed chunks are saved.",
    },
    OptionDoc {
        key: "io",
        kind: Kind::Choice(&["async", "serial"]),
        default: "\"async\"",
        meaning: "`async`: loads run beside the model while the request waits. `serial`: loads run \
                  on the model thread, within one step of it; the request waits as well.",
    },
    OptionDoc {
        key: "on_load_failure",
        kind: Kind::Choice(&["recompute", "engine"]),
        default: "\"recompute\"",
        meaning: "What a failed load does to its request. `recompute`: its tokens are computed, no \
                  request fails. `engine`: as `kv_load_failure_policy` says, whose default is to \
                  fail the request.",
    },
    OptionDoc {
        key: "lookup_timeout_ms",
        kind: TIMEOUT_MS,
        default: "100",
        meaning: "How long a prompt waits for the answer whether it is cached. Then it is a miss.",
    },
    OptionDoc {
        key: "load_timeout_ms",
        kind: TIMEOUT_MS,
        default: "5000",
        meaning: "How long a load may take. Then its tokens are computed.",
    },
    OptionDoc {
        key: "save_timeout_ms",
        kind: TIMEOUT_MS,
        default: "10000",
        meaning: "How long one object may take to be saved. Then it is dropped.",
    },
    OptionDoc {
        key: "preempt_timeout_ms",
        kind: TIMEOUT_MS,
        default: "1000",
        meaning: "How long a step waits for the loads of requests that it preempts to end by \
                  themselves. Then their memory is called back, which may cost a connection.",
    },
    OptionDoc {
        key: "proof_timeout_ms",
        kind: Kind::Integer {
            min: 1000,
            max: 600_000,
        },
        default: "120000",
        meaning: "How long the proof may take that block memory is at rest: the answer of a \
                  device, the return of memory that was called back. Then the worker stops, \
                  because what may still be written is never used again. Longer than a step \
                  computes.",
    },
    OptionDoc {
        key: "connect_timeout_ms",
        kind: TIMEOUT_MS,
        default: "500",
        meaning: "How long a connection to a node may take to open.",
    },
    OptionDoc {
        key: "lease_ms",
        kind: Kind::Integer {
            min: 100,
            max: 600_000,
        },
        default: "30000",
        meaning: "How long a node keeps the objects of a promised hit from eviction. At least \
                  `load_timeout_ms`.",
    },
    OptionDoc {
        key: "max_loads",
        kind: Kind::Integer { min: 1, max: 4096 },
        default: "64",
        meaning: "Objects a rank fetches at the same time.",
    },
    OptionDoc {
        key: "max_saves",
        kind: Kind::Integer { min: 1, max: 4096 },
        default: "16",
        meaning: "Objects a rank stores at the same time.",
    },
    OptionDoc {
        key: "staging",
        kind: Kind::Bytes { min: MIB, max: TIB },
        default: "\"256MiB\"",
        meaning: "Memory of a rank for chunks on their way to a node. A chunk that finds it full \
                  is not saved.",
    },
    OptionDoc {
        key: "self_test",
        kind: Kind::Flag,
        default: "true",
        meaning: "Whether a rank checks at start that what it saves from one block it loads into \
                  another.",
    },
    OptionDoc {
        key: "local_ram",
        kind: Kind::Bytes {
            min: 16 * MIB,
            max: 16 * TIB,
        },
        default: "\"4GiB\"",
        meaning: "Memory of the shared local node, where this engine is the one that starts it.",
    },
    OptionDoc {
        key: "local_disk",
        kind: Kind::Bytes {
            min: 0,
            max: 1024 * TIB,
        },
        default: "\"16GiB\"",
        meaning: "Most bytes that the shared local node keeps on disk, and never more than half of \
                  what is free when the folder is made. A folder keeps its size until `tessera \
                  clean` removes it. 0: in memory only.",
    },
    OptionDoc {
        key: "local_data",
        kind: Kind::Text,
        default: "\"\"",
        meaning: "Folder of what the shared local node keeps on disk. Empty: `data` in \
                  `local_dir` if that is set, else `~/.cache/tessera/data`.",
    },
    OptionDoc {
        key: "local_idle_exit_s",
        kind: Kind::Integer {
            min: 1,
            max: 31_536_000,
        },
        default: "3600",
        meaning: "Seconds without a connection after which the shared local node ends.",
    },
    OptionDoc {
        key: "local_dir",
        kind: Kind::Text,
        default: "\"\"",
        meaning: "Folder of the shared local node's socket, lock and log. Empty: \
                  `$XDG_RUNTIME_DIR/tessera`, or `~/.cache/tessera/run`.",
    },
    OptionDoc {
        key: "peer_listen",
        kind: Kind::Text,
        default: "\"\"",
        meaning: "Where rank 0 listens for other engines, as `host:port`, the other ranks on the \
                  ports behind it; port 0 takes free ones. With it, prompts go from prefill to \
                  decode directly. Empty: they do not.",
    },
    OptionDoc {
        key: "peer_inbox",
        kind: Kind::Text,
        default: "\"\"",
        meaning: "Where prefill takes tickets of decode engines that it writes prompts to, as \
                  `host:port`: a dispatcher that sends a request to both at once names it in the \
                  pass. Empty: it writes to nobody.",
    },
    OptionDoc {
        key: "peer_tp_size",
        kind: Kind::Integer { min: 0, max: 4096 },
        default: "0",
        meaning: "Tensor parallel size of the engines at the other end, where it is not this \
                  engine's: blocks are cut by heads then, which recurrent states do not have. 0: \
                  as here.",
    },
    OptionDoc {
        key: "peer_insecure",
        kind: Kind::Flag,
        default: "false",
        meaning: "Whether `peer_listen` and `peer_inbox` may be addresses that other machines \
                  reach. Nothing there is encrypted: on a trusted network only.",
    },
    OptionDoc {
        key: "peer_key_file",
        kind: Kind::Text,
        default: "\"\"",
        meaning: "File of the secret, 32 bytes or more, with which prefill signs what decode may \
                  take; the same on both. `TESSERA_PEER_KEY` in the environment goes before it. \
                  Empty: `peer.key` in `local_dir`, made when it is missing, for engines of one \
                  user on one host.",
    },
    OptionDoc {
        key: "peer_lease_ms",
        kind: TIMEOUT_MS,
        default: "30000",
        meaning: "How long prefill keeps the blocks of a finished prompt for a decode engine that \
                  does not come.",
    },
    OptionDoc {
        key: "peer_timeout_ms",
        kind: TIMEOUT_MS,
        default: "10000",
        meaning: "How long decode waits for the blocks of a prompt, where prefill writes them \
                  after `peer_lease_ms` in which it may compute. Then it computes them.",
    },
];

/// The page `docs/configuration.md`, written from [`TABLE`].
#[must_use]
pub fn markdown() -> String {
    let mut page = String::from(HEADING);
    for row in TABLE {
        let default = if row.default == "null" {
            "automatic"
        } else {
            row.default
        };
        page.push_str(&format!(
            "| `{}` | {} | `{default}` | {} |\n",
            row.key,
            row.kind.describe(),
            row.meaning
        ));
    }
    page
}

const HEADING: &str = "\
<!-- Generated from crates/client/src/options/table.rs. To change it: change the table there, then
     run TESSERA_BLESS=1 cargo test -p tessera-client configuration_page -->
# Configuration

Options go into `kv_connector_extra_config` of vLLM's `--kv-transfer-config`. None is needed.

```text
vllm serve MODEL --kv-transfer-config '{
  \"kv_connector\":\"TesseraConnector\",\"kv_role\":\"kv_both\",
  \"kv_connector_extra_config\":{\"nodes\":[\"127.0.0.1:7421\"]}}'
```

An unknown option, a wrong type or a value out of range stops the start with a message that names
the right one. `kv_role` is honoured: `kv_producer` only saves and offers,
`kv_consumer` only loads and takes.

| option | type | default | meaning |
|---|---|---|---|
";
