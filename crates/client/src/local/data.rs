//! Where the local node keeps objects on disk, and how much of it.
//!
//! Called when a local node is started, and by `tessera clean`. Invariant: a folder that cannot be
//! used costs what it would hold, never the node.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::statvfs;

use super::{LocalError, cache_folder};
use crate::options::Options;

/// Of what is free on the file system, a new folder takes one in this many at most.
const FREE_SHARE: u64 = 2;
/// A folder for less than this is not worth making.
const DISK_BYTES_MIN: u64 = 64 << 20;

/// What a node is told of its disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Data {
    pub(super) folder: PathBuf,
    pub(super) bytes_max: u64,
}

impl Data {
    /// As the options say; none if they say that nothing is kept on disk.
    pub(super) fn of(options: &Options) -> Result<Option<Self>, LocalError> {
        let bytes_max = options.local_disk_bytes;
        let folder = folder(options)?;
        Ok((bytes_max > 0).then_some(Self { folder, bytes_max }))
    }

    /// The arguments of a node that keeps objects here; none, with a word in the log, if it cannot.
    pub(super) fn arguments(&self) -> Vec<OsString> {
        match self.prepare() {
            Ok(bytes) => {
                let mut arguments = vec!["--data".into(), self.folder.clone().into_os_string()];
                let size = bytes.map(|bytes| ["--disk".into(), format!("{bytes}B").into()]);
                arguments.extend(size.into_iter().flatten());
                arguments
            }
            Err(error) => {
                let folder = &self.folder;
                tracing::warn!(%error, ?folder, "the local node keeps nothing on disk");
                Vec::new()
            }
        }
    }

    /// Makes the folder. Returns the size that it is to have if it holds nothing yet.
    fn prepare(&self) -> io::Result<Option<u64>> {
        let mut make = DirBuilder::new();
        make.recursive(true).mode(0o700).create(&self.folder)?;
        if fs::read_dir(&self.folder)?.next().is_some() {
            return Ok(None);
        }
        let bytes = self.bytes_max.min(free_bytes(&self.folder)? / FREE_SHARE);
        match bytes < DISK_BYTES_MIN {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(Some(bytes)),
        }
    }
}

/// The folder in which the local node of these options keeps objects.
///
/// # Errors
///
/// When there is no home to put it in.
pub(super) fn folder(options: &Options) -> Result<PathBuf, LocalError> {
    match (options.local_data.as_str(), options.local_dir.as_str()) {
        ("", "") => Ok(cache_folder()?.join("data")),
        ("", dir) => Ok(Path::new(dir).join("data")),
        (data, _) => Ok(PathBuf::from(data)),
    }
}

fn free_bytes(folder: &Path) -> io::Result<u64> {
    let found = statvfs(folder)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(options: &serde_json::Value) -> Options {
        Options::parse(options).expect("options")
    }

    #[test]
    fn data_lies_where_the_options_say_or_beside_the_socket_or_in_the_cache() {
        let at = |value: serde_json::Value| folder(&options(&value)).expect("a home");
        let (dir, data) = ("/run/a", "/mnt/b");
        let both = serde_json::json!({ "local_dir": dir, "local_data": data });
        assert_eq!(at(both), Path::new(data));
        assert_eq!(
            at(serde_json::json!({ "local_dir": dir })),
            Path::new("/run/a/data")
        );
        assert!(at(serde_json::json!({})).ends_with("tessera/data"));
        let none = options(&serde_json::json!({ "local_disk": 0 }));
        assert_eq!(Data::of(&none).expect("a home"), None);
    }

    #[test]
    fn size_is_said_for_a_new_folder_only_and_bounded_by_what_is_free() {
        let parent = tempfile::TempDir::new().expect("a folder");
        let data = |bytes_max| Data {
            folder: parent.path().join("data"),
            bytes_max,
        };
        let size = |bytes_max: u64| data(bytes_max).prepare().expect("room");
        assert_eq!(size(1 << 30), Some(1 << 30));
        let most = size(u64::MAX).expect("a new folder");
        assert!(most <= free_bytes(parent.path()).expect("free") && most > 1 << 30);
        assert!(data(1 << 20).prepare().is_err());
        fs::write(data(0).folder.join("tessera.data"), b"").expect("room");
        assert_eq!(size(1 << 30), None);
        assert_eq!(data(1 << 30).arguments().len(), 2);
    }

    #[test]
    fn folder_that_cannot_be_made_costs_the_disk_and_not_the_node() {
        let parent = tempfile::TempDir::new().expect("a folder");
        let file = parent.path().join("file");
        fs::write(&file, b"").expect("room");
        let data = Data {
            folder: file.join("data"),
            bytes_max: 1 << 30,
        };
        assert_eq!(data.arguments(), Vec::<OsString>::new());
    }
}
