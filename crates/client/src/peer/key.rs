//! The secret with which prefill signs tickets and decode opens them.
//!
//! Called once at start by the scheduler's side. The invariant: a key that other users of the
//! machine can read is not used, and none is made that they could.

use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use tessera_proto::ticket::{KEY_BYTES_MIN, TicketKey};

use crate::local::{LocalError, LocalNode};
use crate::options::Options;

/// The environment's name of the secret.
pub const KEY_VARIABLE: &str = "TESSERA_PEER_KEY";

/// The longest file that is read as a key, bytes.
const KEY_BYTES_MAX: u64 = 4_096;

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// No folder for a key that is made.
    #[error(transparent)]
    Folder(#[from] LocalError),
    /// A file that cannot be read or made.
    #[error("the key for direct transfers cannot be read from {path}: {source}; set peer_key_file")]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A file that others can read.
    #[error(
        "others can read the key for direct transfers in {0}: chmod 600 it, and change the key"
    )]
    Open(PathBuf),
    /// Too short a secret.
    #[error("the key for direct transfers in {0} has fewer than {KEY_BYTES_MIN} bytes")]
    Short(String),
}

/// The key of the environment, of the file that the options name, or of the file of this user's
/// engines on this host, which is made when it is missing.
///
/// # Errors
/// See [`KeyError`].
pub fn ticket_key(options: &Options) -> Result<TicketKey, KeyError> {
    if let Ok(secret) = std::env::var(KEY_VARIABLE) {
        let short = || KeyError::Short(KEY_VARIABLE.to_owned());
        return TicketKey::new(secret.trim_end().as_bytes()).ok_or_else(short);
    }
    if options.peer_key_file.is_empty() {
        let path = LocalNode::private_folder(options)?.join("peer.key");
        make(&path).map_err(|source| failed(&path, source))?;
        return read(&path);
    }
    read(Path::new(&options.peer_key_file))
}

fn failed(path: &Path, source: io::Error) -> KeyError {
    let path = path.to_owned();
    KeyError::File { path, source }
}

fn read(path: &Path) -> Result<TicketKey, KeyError> {
    let open = || {
        let file = OpenOptions::new().read(true).open(path)?;
        let mode = file.metadata()?.mode();
        let mut secret = Vec::new();
        file.take(KEY_BYTES_MAX).read_to_end(&mut secret)?;
        Ok((mode, secret))
    };
    let (mode, secret) = open().map_err(|source| failed(path, source))?;
    if mode & 0o077 != 0 {
        return Err(KeyError::Open(path.to_owned()));
    }
    let short = || KeyError::Short(path.display().to_string());
    TicketKey::new(secret.trim_ascii_end()).ok_or_else(short)
}

/// Makes a key if there is none. It appears whole, under its name, or not at all; of several
/// engines that start at once one makes it.
fn make(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    let other = |error: getrandom::Error| io::Error::other(error.to_string());
    let mut secret = String::new();
    for _ in 0..4 {
        secret.push_str(&format!("{:016x}", getrandom::u64().map_err(other)?));
    }
    let unique = getrandom::u64().map_err(other)?;
    let made = path.with_extension(format!("{unique:016x}"));
    let mut open = OpenOptions::new();
    let mut file = open.write(true).create_new(true).mode(0o600).open(&made)?;
    let written = file
        .write_all(secret.as_bytes())
        .and_then(|()| file.sync_all())
        .and_then(|()| match fs::hard_link(&made, path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            linked => linked,
        });
    fs::remove_file(&made)?;
    written
}

#[cfg(test)]
mod tests {
    //! Where a key comes from, and which ones are refused.

    use std::os::unix::fs::PermissionsExt as _;

    use tessera_proto::ticket::Ticket;

    use super::*;

    fn options(folder: &Path, file: &str) -> Options {
        let private = folder.join("run");
        let json = serde_json::json!({
            "local_dir": private.to_str(), "peer_key_file": file,
        });
        Options::parse(&json).unwrap()
    }

    /// A ticket that was signed with the one key is opened with the other.
    fn are_equal(one: &TicketKey, other: &TicketKey) -> bool {
        let ticket = Ticket {
            transfer: tessera_proto::peer::TransferId(1),
            expires_unix_ms: 1,
            prompt: [0; 32],
            tokens: 1,
            generation: tessera_proto::peer::Generation(1),
            workers: Vec::new(),
            tables: Vec::new(),
        };
        Ticket::open(&ticket.seal(one), other, 0).is_ok()
    }

    #[test]
    fn a_key_is_made_once_for_the_engines_of_one_user() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = ticket_key(&options(folder.path(), "")).unwrap();
        let second = ticket_key(&options(folder.path(), "")).unwrap();
        assert!(are_equal(&first, &second));
        let private = folder.path().join("run");
        let path = private.join("peer.key");
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(
            fs::read_dir(private).unwrap().count(),
            1,
            "nothing is left over"
        );
        let elsewhere = ticket_key(&options(other.path(), "")).unwrap();
        assert!(!are_equal(&first, &elsewhere));
        let named = options(other.path(), path.to_str().unwrap());
        assert!(are_equal(&first, &ticket_key(&named).unwrap()));
    }

    #[test]
    fn a_key_that_others_can_read_or_that_is_short_or_missing_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        let named = options(folder.path(), path.to_str().unwrap());
        assert!(matches!(ticket_key(&named), Err(KeyError::File { .. })));
        fs::write(&path, "x".repeat(31) + "\n").unwrap();
        let mode = |mode| fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        mode(0o600);
        assert!(matches!(ticket_key(&named), Err(KeyError::Short(_))));
        fs::write(&path, "x".repeat(32)).unwrap();
        assert!(ticket_key(&named).is_ok());
        mode(0o640);
        assert!(matches!(ticket_key(&named), Err(KeyError::Open(_))));
    }
}
