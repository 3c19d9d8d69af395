//! The command line: what can be asked for, with the defaults and the help that people read.
//!
//! Called by `main`, and by nothing else; commands get their own arguments only.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use tessera_client::NamespaceDigest;
use tessera_node::Address;
use tessera_proxy::{Inbox, Upstream};

use crate::bench::{contest, floor, prefill};
use crate::units::{
    Quota, Ttl, parse_duration, parse_namespace, parse_quota, parse_size, parse_ttl,
};

/// Where a node listens, and where it is looked for, if nothing else is said.
pub(crate) const DEFAULT_ADDRESS: &str = "127.0.0.1:7421";

/// Where the proxy listens, if nothing else is said.
const DEFAULT_PROXY_ADDRESS: &str = "127.0.0.1:7431";

/// KV caches that outlive their engine.
#[derive(Debug, Parser)]
#[command(name = "tessera", version, arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run a cache node until SIGTERM or Ctrl-C
    Node(NodeArguments),
    /// Show the counters of a node
    Stat(StatArguments),
    /// Measure the round trip to a node
    Ping(PingArguments),
    /// Remove everything that a node holds of one namespace, from memory and disk, for good
    Drop(DropArguments),
    /// Read every object in data folders that no node uses, and compare it with its checksum
    Verify(VerifyArguments),
    /// Remove what a node that is over kept on disk: that of the local node, or what is named
    Clean(CleanArguments),
    /// Send prompts to prefill engines, and what comes of them to decode engines
    Proxy(ProxyArguments),
    /// Measure the data path against the floors of this machine, in one run
    Bench(BenchArguments),
    /// Replay a public trace of requests, beside LRU and Belady of the same capacity
    Replay(ReplayArguments),
    /// The sending process of the raw socket floor
    #[command(name = floor::SUBCOMMAND, hide = true)]
    BenchFloor {
        /// Leave the congestion control as the system has it
        #[arg(long)]
        system: bool,
    },
    /// One system under the orders of a bench that compares several
    #[command(name = contest::SUBCOMMAND, hide = true)]
    BenchContest {
        /// Which
        name: String,
    },
    /// The prefill side of the peer rows
    #[command(name = prefill::SUBCOMMAND, hide = true)]
    BenchPrefill {
        /// Shape of the block memory, and the other side
        #[arg(trailing_var_arg = true)]
        arguments: Vec<String>,
    },
}

/// Arguments of `tessera node`.
#[derive(Debug, Args)]
pub(crate) struct NodeArguments {
    /// HOST:PORT or unix:/PATH; port 0 takes a free one
    #[arg(long, default_value = DEFAULT_ADDRESS)]
    pub(crate) listen: Address,
    /// Memory for objects, taken at the start, such as 4GiB
    #[arg(long, value_parser = parse_size)]
    pub(crate) ram: u64,
    /// Keep objects in these folders as well, across starts; best on a disk each
    #[arg(long, value_name = "FOLDER", value_delimiter = ',')]
    pub(crate) data: Vec<PathBuf>,
    /// Bytes in each data folder, such as 100GiB; a folder that exists keeps its size
    #[arg(long, value_parser = parse_size, requires = "data")]
    pub(crate) disk: Option<u64>,
    /// When a store is acknowledged
    #[arg(long, value_enum, default_value_t = WriteMode::Through, requires = "data")]
    pub(crate) write: WriteMode,
    /// Which objects are written there; with --write back only
    #[arg(long, value_enum, default_value_t = AdmissionMode::All, requires = "data")]
    pub(crate) admission: AdmissionMode,
    /// Bytes a second at which the folders are read for damage, one pass a day; 0B for never
    #[arg(long, value_parser = parse_size, default_value = "8MiB", requires = "data")]
    pub(crate) scrub: u64,
    /// Most memory of a tenant's objects, such as team-a=4GiB; of each other one with *=SIZE
    #[arg(long, value_name = "TENANT=SIZE", value_delimiter = ',', value_parser = parse_quota)]
    pub(crate) quota: Vec<Quota>,
    /// Most bytes of a tenant in all data folders, such as team-a=40GiB; of each other one *=SIZE
    #[arg(long, value_name = "TENANT=SIZE", value_delimiter = ',', value_parser = parse_quota)]
    #[arg(requires = "data")]
    pub(crate) disk_quota: Vec<Quota>,
    /// How long objects are found after they were stored, such as 24h; of a tenant with team-a=1h
    #[arg(long, value_name = "[TENANT=]DURATION", value_delimiter = ',', value_parser = parse_ttl)]
    pub(crate) ttl: Vec<Ttl>,
    /// Listen where other machines or users can reach the node: this release has no authentication
    #[arg(long)]
    pub(crate) insecure: bool,
    /// End after this long without a connection, such as 300s
    #[arg(long, value_parser = parse_duration)]
    pub(crate) idle_exit: Option<Duration>,
    /// Hold this file locked, so that one node at most runs with it
    #[arg(long)]
    pub(crate) lock: Option<PathBuf>,
}

/// When a store is acknowledged by a node with data folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum WriteMode {
    /// When it is written: it survives the end of the process
    Through,
    /// When it is written and synced: it survives a loss of power
    Synced,
    /// When it is in memory, of which an eighth may wait to be written
    Back,
}

/// Which objects a node with data folders writes there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AdmissionMode {
    /// All
    All,
    /// Those that are asked for after they were stored, or come back
    SecondTouch,
}

/// Arguments of `tessera proxy`.
#[derive(Debug, Args)]
pub(crate) struct ProxyArguments {
    /// Where clients connect, IP:PORT; port 0 takes a free one
    #[arg(long, default_value = DEFAULT_PROXY_ADDRESS)]
    pub(crate) listen: SocketAddr,
    /// An engine that computes prompts, such as http://127.0.0.1:8000; may be given several times
    #[arg(long, value_name = "URL", required = true)]
    pub(crate) prefill: Vec<Upstream>,
    /// An engine that answers; may be given several times
    #[arg(long, value_name = "URL", required = true)]
    pub(crate) decode: Vec<Upstream>,
    /// How both engines share a prompt
    #[arg(long, value_enum, default_value_t = ProxyMode::Read)]
    pub(crate) mode: ProxyMode,
    /// Where a prefill engine takes tickets, its option peer_inbox; for --mode write, once for
    /// each --prefill and in their order
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) inbox: Vec<Inbox>,
    /// The engines' key for --mode write, their option peer_key_file; else TESSERA_PEER_KEY, or
    /// the key of this user's engines on this host
    #[arg(long, value_name = "FILE")]
    pub(crate) key_file: Option<PathBuf>,
    /// Bytes that a request may have
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "32MiB")]
    pub(crate) max_body: u64,
    /// Requests at once; one more is refused with 429
    #[arg(long, value_name = "COUNT", default_value = "1024")]
    pub(crate) max_requests: NonZeroUsize,
    /// How long the first byte of an engine's answer may take
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "30m")]
    pub(crate) answer_timeout: Duration,
    /// How long an engine may say nothing in the middle of an answer
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "2m")]
    pub(crate) silence_timeout: Duration,
}

/// How prefill and decode share a prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ProxyMode {
    /// One after the other: decode pulls what prefill has computed
    Read,
    /// Both at once: prefill writes what it has computed into decode's blocks
    Write,
}

/// Arguments of `tessera stat`.
#[derive(Debug, Args)]
pub(crate) struct StatArguments {
    /// HOST:PORT or unix:/PATH
    #[arg(long, default_value = DEFAULT_ADDRESS)]
    pub(crate) node: Address,
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `tessera ping`.
#[derive(Debug, Args)]
pub(crate) struct PingArguments {
    /// HOST:PORT or unix:/PATH
    #[arg(long, default_value = DEFAULT_ADDRESS)]
    pub(crate) node: Address,
    /// Round trips
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) count: u32,
    /// One JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `tessera drop`.
#[derive(Debug, Args)]
pub(crate) struct DropArguments {
    /// The namespace: 64 hexadecimal digits, as engines log them
    #[arg(value_parser = parse_namespace)]
    pub(crate) namespace: NamespaceDigest,
    /// HOST:PORT or unix:/PATH; with several nodes, drop it on each
    #[arg(long, default_value = DEFAULT_ADDRESS)]
    pub(crate) node: Address,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
    /// One JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `tessera verify`.
#[derive(Debug, Args)]
pub(crate) struct VerifyArguments {
    /// Data folders
    #[arg(required = true)]
    pub(crate) data: Vec<PathBuf>,
    /// One JSON object a folder instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `tessera clean`.
#[derive(Debug, Args)]
pub(crate) struct CleanArguments {
    /// Data folders; the one of this user's local node if none is named
    pub(crate) data: Vec<PathBuf>,
}

/// Arguments of `tessera bench`.
#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// End with one JSON line: {"rows":[{"name","value","unit","floor","must","reach","higher"}]}
    #[arg(long)]
    pub(crate) json: bool,
    /// Run one family of rows
    #[arg(long)]
    pub(crate) only: Option<Family>,
    /// Where the rows of the disk make their files, which they remove; about 4 GiB
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Seconds to spend on each row, floor included
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=600))]
    pub(crate) seconds: u32,
}

/// Arguments of `tessera replay`.
#[derive(Debug, Args)]
pub(crate) struct ReplayArguments {
    /// A trace in Mooncake's format: one JSON object a line, with input_length and hash_ids
    pub(crate) trace: PathBuf,
    /// Replay against this node, HOST:PORT or unix:/PATH, instead of a store in this process
    #[arg(long)]
    pub(crate) node: Option<Address>,
    /// Bytes of the object that holds a block of 512 tokens
    #[arg(long, value_parser = parse_size, default_value = "64KiB")]
    pub(crate) object_bytes: u64,
    /// Reads or stores in flight at a node
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u8).range(1..=128))]
    pub(crate) in_flight: u8,
    /// Capacities in percent of the working set; a node has its own
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', conflicts_with = "node",
          default_values_t = [1, 5, 10, 25, 50, 100],
          value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) capacity: Vec<u8>,
    /// Put a disk of this size behind the memory, in percent of the working set, and compare what
    /// is found and written with both settings of --admission
    #[arg(long, value_name = "PERCENT", conflicts_with = "node",
          value_parser = clap::value_parser!(u8).range(1..=100))]
    pub(crate) disk: Option<u8>,
    /// Draw hit rate over capacity into this SVG file
    #[arg(long, value_name = "FILE")]
    pub(crate) chart: Option<PathBuf>,
    /// One JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

/// A family of rows of the bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Family {
    /// GET, PUT, PING through a socket, against a raw socket
    Wire,
    /// The tiers in this process: memory against memcpy, the disk against a raw io_uring loop
    Store,
    /// READ and WRITE between the block memories of two processes, against a raw socket
    Peer,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_documented_node_command_parses() {
        let line = "tessera node --listen 127.0.0.1:7421 --ram 4GiB --idle-exit 300s --lock /l \
                    --data /a,/b --disk 1TiB --write back --admission second-touch \
                    --quota a=1GiB,*=2GiB --quota b=3GiB --ttl 2d,a=90m --disk-quota c=9GiB";
        let parsed = Arguments::try_parse_from(line.split(' ')).expect("the documented command");
        let Command::Node(node) = parsed.command else {
            panic!("not a node")
        };
        assert_eq!(node.ram, 4 << 30);
        assert_eq!(node.admission, AdmissionMode::SecondTouch);
        assert_eq!(node.idle_exit, Some(Duration::from_secs(300)));
        assert!(!node.insecure);
        assert_eq!(node.data, [PathBuf::from("/a"), PathBuf::from("/b")]);
        let quotas = [(Some("a"), 1), (None, 2), (Some("b"), 3)];
        let quotas = quotas.map(|(tenant, gib)| (tenant.map(str::to_owned), gib << 30));
        assert_eq!(node.quota, quotas);
        assert_eq!(node.disk_quota, [(Some("c".to_owned()), 9 << 30)]);
        let ttls = [(None, 172_800), (Some("a".to_owned()), 5_400)];
        assert_eq!(node.ttl, ttls);
        assert_eq!((node.disk, node.write), (Some(1 << 40), WriteMode::Back));
    }

    #[test]
    fn a_wrong_address_or_size_is_refused_with_an_example() {
        for (line, example) in [
            ("tessera node --ram 4", "4GiB"),
            ("tessera node --ram 4GiB --disk 1TiB", "--data"),
            ("tessera node --ram 4GiB --listen 7421", "127.0.0.1:7421"),
            ("tessera node --ram 4GiB --quota 1GiB", "team-a=4GiB"),
            ("tessera node --ram 4GiB --quota a=1", "512MiB"),
            ("tessera node --ram 4GiB --quota =1GiB", "team-a=4GiB"),
            ("tessera node --ram 4GiB --disk-quota a=1GiB", "--data"),
            ("tessera node --ram 4GiB --ttl a=1", "300s"),
            ("tessera node --ram 4GiB --ttl 999ms", "one second"),
            ("tessera stat --node unix:relative", "unix:/run"),
            ("tessera drop 12ab", "64 hexadecimal digits"),
        ] {
            let refused = Arguments::try_parse_from(line.split(' ')).expect_err(line);
            assert!(refused.to_string().contains(example), "{refused}");
        }
    }
}
