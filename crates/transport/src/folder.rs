//! The folder of a unix socket: whoever can enter it can connect.
//!
//! Called by a node before it listens and by an engine before it starts one or connects, so that
//! both accept and refuse the same folders. Invariant: a folder that passes is this user's own and
//! nobody else can enter it, or put another in its place by way of a link.

use std::fs::{DirBuilder, symlink_metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Why a folder is no place for a socket.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// Other users could reach the socket, or replace it.
    #[error(
        "{folder} is not private: it must be a folder itself, not a link to one, belong to this \
         user, and let nobody else in; run `chmod 700 {folder}` if it is yours alone, never on a \
         shared one such as /tmp"
    )]
    NotPrivate {
        /// The folder.
        folder: PathBuf,
    },
    /// It could not be made or looked at.
    #[error("the folder {folder} cannot be used: {source}")]
    Io {
        /// The folder.
        folder: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Makes `folder` for this user alone, if it is not there.
///
/// # Errors
/// [`FolderError::Io`].
pub fn make_private(folder: &Path) -> Result<(), FolderError> {
    let mut builder = DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.map_err(|source| FolderError::Io {
        folder: folder.to_owned(),
        source,
    })
}

/// Whether only this user can enter `folder`.
///
/// # Errors
/// See [`FolderError`].
pub fn check_private(folder: &Path) -> Result<(), FolderError> {
    let found = symlink_metadata(folder).map_err(|source| FolderError::Io {
        folder: folder.to_owned(),
        source,
    })?;
    let ours = found.uid() == rustix::process::geteuid().as_raw();
    if found.is_dir() && ours && found.mode() & 0o077 == 0 {
        return Ok(());
    }
    Err(FolderError::NotPrivate {
        folder: folder.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn a_made_folder_is_private_and_one_that_others_enter_or_that_is_a_link_is_not() {
        let base = tempfile::tempdir().unwrap();
        let folder = base.path().join("a/b");
        make_private(&folder).unwrap();
        check_private(&folder).unwrap();
        let link = base.path().join("link");
        symlink(&folder, &link).unwrap();
        let refused = check_private(&link).unwrap_err().to_string();
        assert!(refused.contains("not a link"), "{refused}");
        for mode in [0o755, 0o711, 0o770, 0o701] {
            set_permissions(&folder, Permissions::from_mode(mode)).unwrap();
            let refused = check_private(&folder).unwrap_err().to_string();
            assert!(refused.contains("chmod 700"), "{mode:o}: {refused}");
        }
        let missing = check_private(&base.path().join("none")).unwrap_err();
        assert!(matches!(missing, FolderError::Io { .. }), "{missing}");
    }
}
