//! Damage to the arena's copy: what the store notices, and what it leaves to the reader.
//!
//! Called by the test runner with the feature `fault-injection`.

use tessera_proto::{ObjectMismatch, checksum};

use crate::sample::{T0, id, put, store};

#[test]
fn flipped_payload_bit_fails_the_checksum_of_the_reader() {
    let store = store(1 << 20);
    put(&store, 1, 1, 5_000, T0).expect("room");
    for bit in [0, 39_999] {
        assert!(store.flip_bit(&id(1), bit));
        let pin = store
            .pin(&id(1), None, T0)
            .expect("the store does not read the payload");
        let verdict = pin.header().check_payload(checksum(&pin));
        assert!(matches!(verdict, Err(ObjectMismatch::Checksum { .. })));
        drop(pin);
        assert!(store.flip_bit(&id(1), bit), "back");
    }
    let pin = store.pin(&id(1), None, T0).expect("whole again");
    pin.header()
        .check_payload(checksum(&pin))
        .expect("whole again");
}

#[test]
fn flipped_header_bit_is_a_miss_and_the_object_goes() {
    // Magic, the key digest's first half, the length.
    for bit in [0, 8 * 40, 8 * 80] {
        let store = store(1 << 20);
        put(&store, 1, 1, 5_000, T0).expect("room");
        assert!(store.flip_bit(&id(1), 8 * 5_000 + bit));
        assert!(store.pin(&id(1), None, T0).is_none());
        let stat = store.stat();
        assert_eq!(
            (stat.damaged, stat.misses, stat.objects),
            (1, 1, 0),
            "bit {bit}"
        );
        assert_eq!(stat.free_bytes, stat.capacity_bytes);
        store.check_invariants();
    }
}

#[test]
fn nothing_is_flipped_under_a_reader_or_outside_the_object() {
    let store = store(1 << 20);
    put(&store, 1, 1, 5_000, T0).expect("room");
    let pin = store.pin(&id(1), None, T0).expect("stored");
    assert!(!store.flip_bit(&id(1), 0));
    drop(pin);
    assert!(!store.flip_bit(&id(1), 8 * 5_128));
    assert!(!store.flip_bit(&id(2), 0));
}
