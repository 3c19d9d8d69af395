//! What happens to the file of a disk under the node: single bits, objects in each other's places,
//! an end that is cut off. All of it is a miss, and no byte is ever wrong.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use tessera_client::{FetchOutcome, StoreOutcome};

use crate::node_process::{NodeProcess, stat};
use crate::tile::{Tile, soon};

/// Payloads begin at multiples of this.
const UNIT_BYTES: usize = 256;

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder")
}

/// A disk on which a node has left objects of one length. More than two segments: the first is
/// sealed, and a start believes its footer.
async fn stored(folder: &Path) -> Vec<Tile> {
    let mut node = NodeProcess::start_on(folder, 64);
    let client = node.client();
    let tiles: Vec<Tile> = (0..20).map(|number| Tile::new(number, 500_000)).collect();
    for tile in &tiles {
        assert_eq!(tile.save(&client, soon()).await, StoreOutcome::Stored);
    }
    client.shutdown().await;
    node.kill();
    tiles
}

#[tokio::test(flavor = "multi_thread")]
async fn one_flipped_bit_on_disk_is_a_miss_and_the_next_writer_replaces_it() {
    let folder = folder();
    let tiles = stored(folder.path()).await;
    flip_bit(folder.path(), &tiles[0]);

    let node = NodeProcess::start_on(folder.path(), 64);
    let client = node.client();
    let outcome = tiles[0].load(&client, None, soon()).await;
    assert_eq!(outcome, FetchOutcome::Missing);
    assert_eq!(stat(&client, "disk_damaged").await, 1);
    assert_eq!(stat(&client, "integrity_failures").await, 1);
    assert_eq!(tiles[0].save(&client, soon()).await, StoreOutcome::Stored);
    for tile in &tiles {
        let outcome = tile.load(&client, None, soon()).await;
        assert_eq!(outcome, FetchOutcome::Loaded);
    }
    client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_objects_in_each_others_places_on_disk_are_misses() {
    let folder = folder();
    let tiles = stored(folder.path()).await;
    swap(folder.path(), [&tiles[0], &tiles[1]], 500_000);
    // With what says which object it is, to the end of its last block.
    swap(folder.path(), [&tiles[2], &tiles[3]], 123 * 4_096);

    let node = NodeProcess::start_on(folder.path(), 64);
    let client = node.client();
    for (index, tile) in tiles.iter().enumerate() {
        let expected = match index {
            0..4 => FetchOutcome::Missing,
            _ => FetchOutcome::Loaded,
        };
        assert_eq!(tile.load(&client, None, soon()).await, expected);
    }
    assert_eq!(stat(&client, "disk_damaged").await, 4);
    assert_eq!(stat(&client, "integrity_failures").await, 4);
    client.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_whose_file_is_cut_under_it_serves_what_is_left_and_goes_on() {
    let folder = folder();
    let tiles = stored(folder.path()).await;
    let node = NodeProcess::start_on(folder.path(), 64);
    let client = node.client();
    let cut = place(folder.path(), &tiles[10]);
    data(folder.path()).set_len(cut).expect("a file of ours");
    let mut missing = 0;
    for tile in &tiles {
        // A load compares every byte.
        match tile.load(&client, None, soon()).await {
            FetchOutcome::Loaded => {}
            FetchOutcome::Missing => missing += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(missing >= 10, "{missing} of what was cut off");
    let fresh = Tile::new(1_000, 500_000);
    assert_eq!(fresh.save(&client, soon()).await, StoreOutcome::Stored);
    let outcome = fresh.load(&client, None, soon()).await;
    assert_eq!(outcome, FetchOutcome::Loaded);
    client.shutdown().await;
}

fn data(folder: &Path) -> File {
    let file = folder.join("tessera.data");
    let mut how = OpenOptions::new();
    how.read(true).write(true);
    how.open(file).expect("the data file")
}

/// Where the payload of `tile` lies in the file: once.
fn place(folder: &Path, tile: &Tile) -> u64 {
    let bytes = std::fs::read(folder.join("tessera.data")).expect("the data file");
    let mut places = (0..bytes.len()).step_by(UNIT_BYTES);
    let mut places = places
        .by_ref()
        .filter(|at| bytes[*at..].starts_with(&tile.bytes));
    let place = places.next().expect("it was written through");
    assert_eq!(places.next(), None, "the object lies in the file once");
    place as u64
}

fn flip_bit(folder: &Path, tile: &Tile) {
    let flipped = [tile.bytes[0] ^ 1];
    let place = place(folder, tile);
    let written = data(folder).write_all_at(&flipped, place);
    written.expect("a file that can be written");
}

/// Exchanges `length` bytes from where the payloads of two objects begin.
fn swap(folder: &Path, tiles: [&Tile; 2], length: usize) {
    let places = tiles.map(|tile| place(folder, tile));
    let file = data(folder);
    let images = places.map(|place| {
        let mut image = vec![0; length];
        let read = file.read_exact_at(&mut image, place);
        read.expect("inside the file");
        image
    });
    for (image, place) in images.iter().rev().zip(places) {
        let written = file.write_all_at(image, place);
        written.expect("a file that can be written");
    }
}
