//! A data folder: one file, locked against a second node, behind the engine that suits it.
//!
//! Called by the node at its start, and by the offline check. Invariant: the lock is held by the
//! open file itself, so it lasts exactly as long as the disk that is made of it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use thiserror::Error;

use super::device::Disk;
use super::layout::{DiskSize, Layout};
use super::portable::FileDisk;
use super::superblock::{FormatError, Superblock, check_sizes};
use super::uring::UringDisk;

/// The one file of a data folder.
const FILE: &str = "tessera.data";

/// How a disk is read and written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// Direct I/O through io_uring.
    Uring,
    /// Positional reads and writes through the page cache.
    Portable,
}

/// Why a data folder cannot be used. Nothing was written.
#[derive(Debug, Error)]
pub enum FolderError {
    /// Another node uses it: stop that one, or name another folder.
    #[error("{path} is in use by another node: stop that node, or name another folder")]
    InUse {
        /// The data file.
        path: PathBuf,
    },
    /// The folder is new and no size was given.
    #[error("{path} does not exist yet: say how large it is to be")]
    SizeMissing {
        /// The data file.
        path: PathBuf,
    },
    /// What the file says of itself cannot be used.
    #[error("{path}: {source}")]
    Format {
        /// The data file.
        path: PathBuf,
        /// Why.
        source: FormatError,
    },
    /// The system refused it.
    #[error("{path} cannot be used: {source}")]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// An open, locked data folder.
pub struct DataFolder {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    engine: Engine,
    segment_bytes: u64,
}

impl DataFolder {
    /// Opens the data file in `folder`, or makes one of `size`, which only its user can read. One
    /// that exists keeps its size, and refuses to be asked for another.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open(folder: &Path, size: Option<DiskSize>) -> Result<Self, FolderError> {
        let mut make = DirBuilder::new();
        let made = make.recursive(true).mode(0o700).create(folder);
        made.map_err(|source| FolderError::Io {
            path: folder.to_owned(),
            source,
        })?;
        let wanted = size.map(|size| Layout::of_disk(size.bytes, size.segment_bytes));
        Self::open_file(folder.join(FILE), wanted, true)
    }

    /// Opens the data file in `folder`, which must exist.
    ///
    /// # Errors
    /// See [`FolderError`].
    pub fn open_existing(folder: &Path) -> Result<Self, FolderError> {
        Self::open_file(folder.join(FILE), None, false)
    }

    /// Removes the data file in `folder`, of whatever version and size, and the folder if it is
    /// empty then. False if there was none.
    ///
    /// # Errors
    /// It is in use, or is none of ours, or the system refused.
    pub fn remove(folder: &Path) -> Result<bool, FolderError> {
        let path = folder.join(FILE);
        let failed = |source| FolderError::Io {
            path: path.clone(),
            source,
        };
        let file = match open(&path, false, OFlags::empty()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            file => file.map_err(failed)?,
        };
        lock(&path, &file)?;
        let disk = FileDisk::new(file).map_err(failed)?;
        match Superblock::find(&disk) {
            Err(FormatError::Foreign) => {
                let source = FormatError::Foreign;
                return Err(FolderError::Format { path, source });
            }
            // Only its removal is asked for.
            Ok(_) | Err(_) => fs::remove_file(&path).map_err(failed)?,
        }
        // Something else may lie there; then it stays.
        let _ = fs::remove_dir(folder);
        Ok(true)
    }

    /// The data file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How it is read and written.
    #[must_use]
    pub fn engine(&self) -> Engine {
        self.engine
    }

    /// Bytes of its segments.
    #[must_use]
    pub fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// The disk, which holds the lock.
    #[must_use]
    pub fn into_disk(self) -> Arc<dyn Disk> {
        self.disk
    }

    fn open_file(path: PathBuf, wanted: Option<Layout>, make: bool) -> Result<Self, FolderError> {
        let failed = |source| FolderError::Io {
            path: path.clone(),
            source,
        };
        let refused = |source| FolderError::Format {
            path: path.clone(),
            source,
        };
        let file = open(&path, make, OFlags::empty()).map_err(failed)?;
        lock(&path, &file)?;
        let found = {
            let file = file.try_clone().map_err(failed)?;
            Superblock::find(&FileDisk::new(file).map_err(failed)?).map_err(refused)?
        };
        let layout = match (found, wanted) {
            (Some(found), Some(wanted)) if found.layout != wanted => {
                return Err(refused(FormatError::geometry(found.layout, wanted)));
            }
            (Some(found), _) => {
                let file = file.try_clone().map_err(failed)?;
                let disk = FileDisk::new(file).map_err(failed)?;
                found.check_length(&disk).map_err(refused)?;
                found.layout
            }
            (None, Some(wanted)) => {
                check_sizes(wanted).map_err(refused)?;
                file.set_len(wanted.disk_bytes()).map_err(failed)?;
                wanted
            }
            (None, None) => return Err(FolderError::SizeMissing { path }),
        };
        let (disk, engine) = with_engine(&path, file).map_err(failed)?;
        Ok(Self {
            path,
            disk,
            engine,
            segment_bytes: layout.segment_bytes,
        })
    }
}

/// Takes the lock of a data file, for as long as `file` is open.
fn lock(path: &Path, file: &File) -> Result<(), FolderError> {
    let path = path.to_owned();
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(()),
        Err(Errno::WOULDBLOCK) => Err(FolderError::InUse { path }),
        Err(errno) => Err(FolderError::Io {
            path,
            source: errno.into(),
        }),
    }
}

/// Direct I/O if file system and kernel have it, else the page cache. The lock goes with either.
fn with_engine(path: &Path, file: File) -> io::Result<(Arc<dyn Disk>, Engine)> {
    let direct = open(path, false, OFlags::DIRECT).and_then(UringDisk::new);
    match direct {
        Ok(disk) => Ok((Arc::new(disk.with_lock(file)), Engine::Uring)),
        Err(_) => Ok((Arc::new(FileDisk::new(file)?), Engine::Portable)),
    }
}

fn open(path: &Path, make: bool, flags: OFlags) -> io::Result<File> {
    let flags = i32::try_from(flags.bits()).map_err(|_| io::ErrorKind::InvalidInput)?;
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(make)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags)
        .open(path)
}
