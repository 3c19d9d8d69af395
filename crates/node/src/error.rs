//! Why a node did not start. Every message says what to change.
//!
//! Returned by `Node::start`; printed by `tessera node`.

use std::path::PathBuf;

use tessera_store::{FolderError, OpenError, StoreError};
use tessera_transport::FolderError as SocketFolderError;

/// A node that did not start holds nothing: no lock, no socket, no memory.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The operator asked for a port that other machines can reach.
    #[error(
        "{address} can be reached from other machines and this release has no authentication: \
         listen on 127.0.0.1 or unix:PATH, or accept the risk on a trusted network with --insecure"
    )]
    NotLoopback {
        /// As configured.
        address: String,
    },
    /// Another node serves this address.
    #[error(
        "another node holds {lock}: use that node, stop it, or choose another --listen or --lock"
    )]
    AlreadyRunning {
        /// The file that is locked.
        lock: PathBuf,
    },
    /// The lock file could not be opened or locked.
    #[error("the lock {path} cannot be taken, choose another with --lock: {source}")]
    Lock {
        /// The lock file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The folder of the socket is not this user's alone, or could not be made or read.
    #[error("{0}; or choose another path in --listen")]
    Folder(#[from] SocketFolderError),
    /// Something that is no socket has the name of the socket.
    #[error("{path} is not a socket and is left alone: choose another path in --listen")]
    NotASocket {
        /// The path that was to be the socket.
        path: PathBuf,
    },
    /// The socket that a dead node left behind could not be removed.
    #[error("the old socket {path} cannot be removed: {source}")]
    Socket {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A limit contradicts another one.
    #[error("{0}")]
    Limits(&'static str),
    /// The address could not be bound.
    #[error("cannot listen on {address}, choose another --listen: {source}")]
    Bind {
        /// As configured.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The memory could not be had.
    #[error("the RAM tier did not start, choose another --ram: {0}")]
    Store(#[from] StoreError),
    /// A data folder cannot be used.
    #[error("{0} (--data, --disk)")]
    Data(#[from] FolderError),
    /// What lies in the data folders cannot be used.
    #[error("the data folders cannot be used, choose others with --data: {0}")]
    Disk(#[from] OpenError),
    /// The system gave no random bytes for the incarnation.
    #[error("the system gave no random bytes: {0}")]
    Random(getrandom::Error),
}
