//! Where a node may listen, and the proof that it is the only one there.
//!
//! Taken once, by `Node::start`, before any memory is, and looked at while the node runs.
//! Invariant: without authentication a port is open to this machine only, a unix socket to this
//! user only, and a socket file is removed only by the process that holds the lock beside it, so
//! that two nodes can never serve one path. A configured lock comes on top of that one and never
//! replaces it. Whoever deletes the locks breaks this; then the node that lost them leaves alone
//! what is another's.

use std::fs::{File, Metadata, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use tessera_transport::{Address, check_private, make_private};

use crate::config::NodeConfig;
use crate::error::StartError;

/// The right to listen on one address. Dropping it removes the socket file, then the locks.
#[derive(Debug)]
pub(crate) struct Claim {
    socket: Option<PathBuf>,
    /// The socket file as this node made it.
    made: Option<FileId>,
    locks: Vec<(PathBuf, File)>,
}

/// Device and inode.
type FileId = (u64, u64);

/// What has become of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Clients find the node.
    Found,
    /// The socket file is gone, and nobody else may make it.
    Gone,
    /// The locks are gone, or another file has the name of the socket.
    Lost,
}

impl Claim {
    /// Checks the policy, takes the locks and clears a socket that a dead node left behind.
    pub(crate) fn take(config: &NodeConfig) -> Result<Self, StartError> {
        let mut locks: Vec<PathBuf> = config.lock.iter().cloned().collect();
        let socket = match &config.listen {
            Address::Tcp(_) if config.insecure || config.listen.is_loopback() => None,
            Address::Tcp(_) => {
                return Err(StartError::NotLoopback {
                    address: config.listen.to_string(),
                });
            }
            Address::Unix(path) => {
                private_folder(path, config.insecure)?;
                locks.push(beside(path));
                Some(path.clone())
            }
        };
        locks.dedup();
        let locks = locks
            .into_iter()
            .map(|path| Ok((path.clone(), lock_file(&path)?)))
            .collect::<Result<_, StartError>>()?;
        if let Some(path) = &socket {
            remove_stale(path)?;
        }
        Ok(Self {
            socket,
            made: None,
            locks,
        })
    }

    /// The socket file was made just now.
    pub(crate) fn made(&mut self) {
        self.made = self.socket.as_deref().and_then(at);
    }

    /// Whether the socket file is still the one that was made.
    pub(crate) fn standing(&self) -> Standing {
        let Some(socket) = &self.socket else {
            return Standing::Found;
        };
        let found = at(socket);
        let is_locked = |(path, file): &(PathBuf, File)| {
            file.metadata()
                .is_ok_and(|held| at(path) == Some(id(&held)))
        };
        match found {
            Some(_) if found == self.made => Standing::Found,
            None if self.locks.iter().all(is_locked) => Standing::Gone,
            _ => Standing::Lost,
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if let Some(socket) = &self.socket
            && self.made.is_some()
            && at(socket) == self.made
        {
            // The next node clears what could not be removed here.
            let _ = std::fs::remove_file(socket);
        }
    }
}

/// What has this name now.
fn at(path: &Path) -> Option<FileId> {
    path.symlink_metadata().ok().as_ref().map(id)
}

fn id(found: &Metadata) -> FileId {
    (found.dev(), found.ino())
}

/// The lock of a socket: `node.sock` is guarded by `node.sock.lock`.
fn beside(socket: &Path) -> PathBuf {
    let mut name = socket.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// The lock file itself stays for ever: removing it would let two processes lock two files of the
/// same name.
fn lock_file(path: &Path) -> Result<File, StartError> {
    let failed = |source| StartError::Lock {
        path: path.to_owned(),
        source,
    };
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(StartError::AlreadyRunning {
            lock: path.to_owned(),
        }),
        Err(error) => Err(failed(error.into())),
    }
}

fn private_folder(socket: &Path, insecure: bool) -> Result<(), StartError> {
    let folder = match socket.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    make_private(folder)?;
    if !insecure {
        check_private(folder)?;
    }
    Ok(())
}

/// Only under the lock: whoever left the socket is dead.
fn remove_stale(socket: &Path) -> Result<(), StartError> {
    let failed = |source| StartError::Socket {
        path: socket.to_owned(),
        source,
    };
    match socket.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(failed(error)),
        Ok(found) if found.file_type().is_socket() => std::fs::remove_file(socket).map_err(failed),
        Ok(_) => Err(StartError::NotASocket {
            path: socket.to_owned(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::DirBuilder;
    use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
    use std::os::unix::net::UnixListener;

    use super::*;

    fn config(address: &str) -> NodeConfig {
        NodeConfig::new(address.parse().expect("an address"), 64 << 20)
    }

    #[test]
    fn an_address_beyond_this_machine_is_refused_without_insecure_and_the_message_says_how() {
        for address in ["0.0.0.0:0", "[::]:0", "10.1.2.3:7421", "example.org:7421"] {
            let message = Claim::take(&config(address))
                .expect_err(address)
                .to_string();
            assert!(message.contains("--insecure"), "{message}");
            let opened = NodeConfig {
                insecure: true,
                ..config(address)
            };
            assert!(Claim::take(&opened).is_ok(), "{address}");
        }
        for address in ["127.0.0.1:0", "[::1]:0", "localhost:0"] {
            assert!(Claim::take(&config(address)).is_ok(), "{address}");
        }
    }

    #[test]
    fn a_second_claim_on_one_socket_is_refused_until_the_first_ends() {
        let folder = tempfile::tempdir().expect("a folder");
        let config = config(&format!("unix:{}/run/node.sock", folder.path().display()));
        let first = Claim::take(&config).expect("the first claim");
        let mode = folder
            .path()
            .join("run")
            .metadata()
            .expect("made")
            .permissions()
            .mode();
        assert_eq!(mode & 0o777, 0o700);
        let refused = Claim::take(&config).expect_err("the second claim");
        assert!(
            matches!(refused, StartError::AlreadyRunning { .. }),
            "{refused}"
        );
        drop(first);
        Claim::take(&config).expect("a claim after the first ended");
    }

    #[test]
    fn a_lock_of_ones_own_is_no_right_to_a_socket_that_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |lock: &str| NodeConfig {
            lock: Some(folder.path().join("run").join(lock)),
            ..config(&format!("unix:{}/run/node.sock", folder.path().display()))
        };
        let first = Claim::take(&at("a.lock")).expect("the first claim");
        for lock in ["a.lock", "b.lock"] {
            let refused = Claim::take(&at(lock)).expect_err(lock);
            assert!(
                matches!(refused, StartError::AlreadyRunning { .. }),
                "{refused}"
            );
        }
        drop(first);
        // The lock beside the socket may be the configured one.
        Claim::take(&at("node.sock.lock")).expect("a claim after the first ended");
    }

    #[test]
    fn a_stale_socket_is_cleared_and_a_file_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run/node.sock");
        let config = config(&format!("unix:{}", path.display()));
        DirBuilder::new()
            .mode(0o700)
            .create(folder.path().join("run"))
            .expect("a folder");
        drop(UnixListener::bind(&path).expect("a socket to leave behind"));
        drop(Claim::take(&config).expect("a claim over a stale socket"));
        assert!(!path.exists());
        std::fs::write(&path, b"precious").expect("a file");
        let refused = Claim::take(&config).expect_err("a file in the way");
        assert!(
            matches!(refused, StartError::NotASocket { .. }),
            "{refused}"
        );
        assert!(path.exists());
    }

    #[test]
    fn a_folder_that_others_can_enter_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let open = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).expect("permissions");
        let config = config(&format!("unix:{}/node.sock", folder.path().display()));
        let message = Claim::take(&config)
            .expect_err("an open folder")
            .to_string();
        assert!(message.contains("chmod 700"), "{message}");
    }

    #[test]
    fn a_claim_knows_its_socket_from_another_and_removes_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("run/node.sock");
        let config = config(&format!("unix:{}", path.display()));
        let claimed = || {
            let mut claim = Claim::take(&config).expect("a claim");
            let socket = UnixListener::bind(&path).expect("a socket");
            claim.made();
            (claim, socket)
        };
        let (claim, _socket) = claimed();
        assert_eq!(claim.standing(), Standing::Found);
        std::fs::remove_file(&path).expect("the socket");
        assert_eq!(claim.standing(), Standing::Gone);
        std::fs::remove_file(beside(&path)).expect("the lock");
        assert_eq!(claim.standing(), Standing::Lost);
        let (second, _other) = claimed();
        assert_eq!(claim.standing(), Standing::Lost);
        drop(claim);
        assert_eq!(second.standing(), Standing::Found);
        drop(second);
        assert!(!path.exists());
    }
}
