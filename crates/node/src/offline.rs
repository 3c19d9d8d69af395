//! What is done to a data folder that no node uses: the check, which only reads, and the removal.
//!
//! Called by `tessera verify` and `tessera clean`.

use std::path::Path;

use tessera_store::{DataFolder, DiskReport, FolderError};

/// Reads every object in a data folder and compares it with its checksum. None if the folder was
/// made and never used.
///
/// # Errors
/// The folder is in use, is none of ours, or cannot be read.
pub fn verify(folder: &Path) -> Result<Option<DiskReport>, FolderError> {
    let folder = DataFolder::open_existing(folder)?;
    let path = folder.path().to_owned();
    tessera_store::verify(&*folder.into_disk())
        .map_err(|source| FolderError::Format { path, source })
}

/// Removes what a node keeps in a data folder. False if there is nothing.
///
/// # Errors
/// The folder is in use, or is none of ours, or the system refused.
pub fn remove(folder: &Path) -> Result<bool, FolderError> {
    DataFolder::remove(folder)
}
