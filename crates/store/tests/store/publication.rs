//! Publication and removal: whole or absent, first writer wins, removal is final.
//!
//! Called by the test runner.

use tessera_proto::WriteId;
use tessera_store::{Published, RamStore, ReserveRefusal, StoreConfig, StoreError};

use crate::sample::{T0, fill, get, header, id, put, store};

#[test]
fn object_comes_back_with_its_header_and_every_byte() {
    let store = store(8 << 20);
    for (key, length) in [
        (1, 1),
        (2, 127),
        (3, 4096),
        (4, 65_408),
        (5, 65_409),
        (6, 1 << 21),
    ] {
        assert_eq!(put(&store, key, 9, length, T0), Ok(Published::Stored));
        let pin = store.pin(&id(key), None, T0).expect("just stored");
        let mut expected = vec![0; usize::try_from(length).expect("small")];
        fill(&mut expected, key, 9);
        assert_eq!(&pin[..], &expected[..]);
        assert_eq!(*pin.header(), header(key, 9, &expected));
    }
    store.check_invariants();
}

#[test]
fn large_payload_lies_on_a_page() {
    let store = store(8 << 20);
    put(&store, 1, 1, 100, T0).expect("room");
    for key in 2..6 {
        put(&store, key, 1, 100_000, T0).expect("room");
        let pin = store.pin(&id(key), None, T0).expect("just stored");
        assert_eq!(pin.as_ptr().align_offset(4096), 0);
    }
}

#[test]
fn nothing_is_seen_before_publication_and_a_dropped_extent_is_given_back() {
    let store = store(1 << 20);
    let free = store.stat().free_bytes;
    let extent = store.reserve(10_000, T0).expect("room");
    assert!(!store.contains(&id(1)));
    assert_eq!(get(&store, 1, T0), None);
    assert_eq!(store.stat().reserved_bytes, 10_000);
    drop(extent);
    let stat = store.stat();
    assert_eq!(
        (stat.reserved_bytes, stat.free_bytes, stat.objects),
        (0, free, 0)
    );
    store.check_invariants();
}

#[test]
fn second_writer_of_a_key_is_ignored() {
    let store = store(1 << 20);
    assert_eq!(put(&store, 1, 1, 500, T0), Ok(Published::Stored));
    let free = store.stat().free_bytes;
    assert_eq!(put(&store, 1, 2, 900, T0), Ok(Published::Existed));
    let pin = store.pin(&id(1), None, T0).expect("stored");
    assert_eq!((pin.header().write, pin.len()), (WriteId(1), 500));
    let stat = store.stat();
    assert_eq!(
        (stat.free_bytes, stat.objects, stat.stored, stat.existed),
        (free, 1, 1, 1)
    );
    store.check_invariants();
}

#[test]
fn header_of_another_object_or_length_publishes_nothing() {
    let store = store(1 << 20);
    let other_store = crate::sample::store(1 << 20);
    let extent = || store.reserve(100, T0).expect("room");
    let right = header(1, 1, &[0; 100]);
    assert_eq!(
        store.publish(extent(), id(2), right, T0),
        Published::Mismatch
    );
    let longer = header(1, 1, &[0; 101]);
    assert_eq!(
        store.publish(extent(), id(1), longer, T0),
        Published::Mismatch
    );
    assert_eq!(
        other_store.publish(extent(), id(1), right, T0),
        Published::Mismatch
    );
    assert!(!store.contains(&id(1)) && !other_store.contains(&id(1)));
    assert_eq!(store.stat().free_bytes, store.stat().capacity_bytes);
    store.check_invariants();
}

#[test]
fn removed_object_is_gone_at_once_and_its_pin_reads_on() {
    let store = store(1 << 20);
    put(&store, 1, 1, 70_000, T0).expect("room");
    let pin = store.pin(&id(1), None, T0).expect("stored");
    let before = pin.to_vec();
    assert!(store.remove(&id(1), None));
    assert!(!store.remove(&id(1), None));
    assert!(!store.contains(&id(1)));
    // All memory but the pinned is written over.
    for key in 2..40 {
        put(&store, key, 1, 70_000, T0).expect("room");
    }
    assert_eq!(&pin[..], &before[..]);
    // The next writer of the key is not held up by the old bytes.
    assert_eq!(put(&store, 1, 2, 70_000, T0), Ok(Published::Stored));
    let free = store.stat().free_bytes;
    drop(pin);
    assert_eq!(store.stat().free_bytes, free + 18 * 4096);
    store.check_invariants();
}

#[test]
fn removal_of_one_write_spares_its_replacement() {
    let store = store(1 << 20);
    put(&store, 1, 7, 100, T0).expect("room");
    assert!(!store.remove(&id(1), Some(WriteId(6))));
    assert!(store.contains(&id(1)));
    assert!(store.remove(&id(1), Some(WriteId(7))));
    assert!(!store.contains(&id(1)));
    assert_eq!(store.stat().removed, 1);
}

#[test]
fn impossible_lengths_are_refused_and_counted() {
    let store = store(1 << 20);
    let refusal = |length| store.reserve(length, T0).err();
    assert_eq!(refusal(0), Some(ReserveRefusal::Empty));
    assert_eq!(refusal((1 << 18) + 1), Some(ReserveRefusal::TooLarge));
    assert_eq!(refusal(u64::MAX), Some(ReserveRefusal::TooLarge));
    assert_eq!(store.stat().refused_too_large, 2);
}

#[test]
fn whole_arena_of_writers_refuses_the_next_one() {
    let store = store(1 << 20);
    let extents: Vec<_> = std::iter::from_fn(|| store.reserve(200_000, T0).ok()).collect();
    assert_eq!(extents.len(), 5);
    assert_eq!(
        store.reserve(200_000, T0).err(),
        Some(ReserveRefusal::NoSpace)
    );
    assert_eq!(store.stat().refused_no_space, 2);
    drop(extents);
    assert!(store.reserve(200_000, T0).is_ok());
}

#[test]
fn impossible_configurations_say_what_is_possible() {
    let refusal = |change: fn(&mut StoreConfig)| {
        let mut config = StoreConfig::with_capacity(1 << 20);
        change(&mut config);
        RamStore::new(config).expect_err("impossible")
    };
    let small = refusal(|config| config.capacity_bytes = 4095);
    assert!(
        matches!(small, StoreError::CapacityTooSmall { least: 4096, .. }),
        "{small}"
    );
    let large = refusal(|config| config.capacity_bytes = u64::MAX);
    assert!(
        matches!(large, StoreError::CapacityTooLarge { .. }),
        "{large}"
    );
    let object = refusal(|config| config.max_object_bytes = (1 << 20) - 127);
    assert!(object.to_string().contains("give 1 to 1048448"), "{object}");
}

#[test]
fn numbers_of_the_store_have_their_names() {
    let store = store(1 << 20);
    put(&store, 1, 1, 300, T0).expect("room");
    let entries = store.stat().entries();
    assert!(entries.contains(&("bytes", 300)) && entries.contains(&("capacity_bytes", 1 << 20)));
}
