//! Data folders: made once, locked, refused when they are not what was asked for.

use std::fs;
use std::path::Path;

use tessera_store::{
    DataFolder, DiskSize, DiskTier, Engine, FolderError, FormatError, Published, RamStore, Store,
    StoreConfig,
};

use super::support::{MIB, SEGMENT, config, get, put};

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// Megabytes in the smallest segments.
#[expect(clippy::unnecessary_wraps, reason = "as it is passed on")]
fn size(megabytes: u64) -> Option<DiskSize> {
    Some(DiskSize {
        bytes: megabytes * MIB,
        segment_bytes: SEGMENT,
    })
}

fn store(folder: &Path) -> Store {
    let folder = DataFolder::open(folder, size(4)).expect("a folder of ours");
    let ram = RamStore::new(StoreConfig::with_capacity(MIB)).expect("a small arena");
    let tier = DiskTier::open(ram.clone(), &config(), vec![folder.into_disk()]);
    Store::new(ram, Some(tier.expect("a disk of ours")))
}

#[test]
fn objects_survive_in_a_real_folder() {
    let folder = folder();
    for start in 0..3 {
        let store = store(folder.path());
        for key in 0..start * 10 {
            assert_eq!(get(&store, key), Some((1, 50_000 + key)));
        }
        for key in start * 10..start * 10 + 10 {
            assert_eq!(put(&store, key, 1, 50_000 + key), Published::Stored);
        }
    }
}

#[test]
fn direct_engine_is_used_where_it_works() {
    let folder = folder();
    let opened = DataFolder::open(folder.path(), size(4)).expect("a folder");
    assert_eq!(opened.engine(), Engine::Uring);
}

#[test]
fn folder_in_use_is_refused_until_its_node_ends() {
    let folder = folder();
    let store = store(folder.path());
    for _ in 0..2 {
        let refused = DataFolder::open(folder.path(), None).err();
        assert!(matches!(refused, Some(FolderError::InUse { .. })));
    }
    drop(store);
    DataFolder::open_existing(folder.path()).expect("free again");
}

#[test]
fn size_is_needed_once_and_another_one_is_refused() {
    let folder = folder();
    let open = |size| DataFolder::open(folder.path(), size);
    assert!(matches!(
        open(None).err(),
        Some(FolderError::SizeMissing { .. })
    ));
    drop(store(folder.path()));
    assert!(open(None).is_ok());
    let refused = open(size(8)).err().expect("another size");
    assert!(
        refused.to_string().contains("12 segments of 262144 bytes"),
        "{refused}"
    );
    let other_segments = DiskSize {
        bytes: 4 * MIB,
        segment_bytes: 2 * SEGMENT,
    };
    let refused = open(Some(other_segments)).err();
    assert!(matches!(
        refused,
        Some(FolderError::Format {
            source: FormatError::Geometry { .. },
            ..
        })
    ));
    assert!(matches!(
        DataFolder::open(&folder.path().join("small"), size(1)).err(),
        Some(FolderError::Format {
            source: FormatError::Sizes { .. },
            ..
        })
    ));
}

#[test]
fn file_of_somebody_else_is_left_alone() {
    let folder = folder();
    let path = folder.path().join("tessera.data");
    let bytes = b"not yours".repeat(10_000);
    fs::write(&path, &bytes).expect("room");
    let refused = DataFolder::open(folder.path(), size(4)).err();
    assert!(matches!(
        refused,
        Some(FolderError::Format {
            source: FormatError::Foreign,
            ..
        })
    ));
    assert_eq!(fs::read(&path).expect("there"), bytes);
}

#[test]
fn format_of_another_version_is_refused_by_its_number() {
    let folder = folder();
    drop(store(folder.path()));
    let path = folder.path().join("tessera.data");
    let mut bytes = fs::read(&path).expect("there");
    bytes[8] = 3;
    bytes[4_096 + 8] = 3;
    fs::write(&path, &bytes).expect("room");
    let refused = DataFolder::open(folder.path(), None)
        .err()
        .expect("version 3");
    assert!(refused.to_string().contains("format 3"), "{refused}");
    assert_eq!(fs::read(&path).expect("there"), bytes);
}

#[test]
fn file_that_was_cut_is_refused() {
    let folder = folder();
    drop(store(folder.path()));
    let path = folder.path().join("tessera.data");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(path)
        .expect("there");
    file.set_len(3 * MIB).expect("cut");
    let refused = DataFolder::open_existing(folder.path()).err();
    assert!(matches!(
        refused,
        Some(FolderError::Format {
            source: FormatError::Cut { .. },
            ..
        })
    ));
}

#[test]
fn folder_is_removed_whatever_its_version_but_not_under_a_node_nor_if_it_is_foreign() {
    let parent = folder();
    let folder = parent.path().join("data");
    assert_eq!(DataFolder::remove(&folder).ok(), Some(false));
    let used = store(&folder);
    let refused = DataFolder::remove(&folder).err();
    assert!(matches!(refused, Some(FolderError::InUse { .. })));
    drop(used);
    let path = folder.join("tessera.data");
    let mut bytes = fs::read(&path).expect("there");
    bytes[8] = 3;
    bytes[4_096 + 8] = 3;
    fs::write(&path, &bytes).expect("room");
    assert_eq!(DataFolder::remove(&folder).ok(), Some(true));
    assert!(!folder.exists());
    fs::create_dir(&folder).expect("room");
    fs::write(&path, b"not yours".repeat(10_000)).expect("room");
    let refused = DataFolder::remove(&folder).err();
    assert!(matches!(refused, Some(FolderError::Format { .. })));
    assert!(path.exists());
}
