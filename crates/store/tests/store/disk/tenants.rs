//! Tenants on disk: who leaves at a quota, and who is spared when another one floods the disk.

use std::slice;
use std::sync::Arc;

use tessera_store::{DiskConfig, OwnerId, Published, Store, StoreConfig, TenantLimits, TenantStat};

use super::memory::MemoryDisk;
use super::support::{KIB, MIB, SEGMENT, config, drop_namespace, get, put, remove, try_open_with};
use crate::sample::{T0, TENANT_SHIFT, id};

const LENGTH: u64 = 9 * KIB;

/// Key `number` of tenant `tenant`.
fn key(tenant: u64, number: u64) -> u64 {
    tenant << TENANT_SHIFT | number
}

/// Tenants 1 and 2 have a name; the first may have this on disk.
fn open(disk: &Arc<MemoryDisk>, quota: Option<u64>) -> Store {
    let limits = |first| TenantLimits {
        named: vec![("1".to_owned(), first), ("2".to_owned(), None)],
        others: None,
    };
    let ram = StoreConfig {
        tenants: limits(None),
        ..StoreConfig::with_capacity(MIB)
    };
    let config = DiskConfig {
        tenants: limits(quota),
        ..config()
    };
    try_open_with(ram, &config, slice::from_ref(disk)).expect("a disk of ours")
}

fn of(store: &Store, tenant: usize) -> TenantStat {
    store.tenants()[tenant - 1].clone()
}

/// Stores an object that is on disk only.
fn put_cold(store: &Store, key: u64, length: u64) {
    assert_eq!(put(store, key, 1, length), Published::Stored);
    store.ram().remove(&id(key), None);
}

#[test]
fn tenant_at_its_quota_on_disk_loses_its_oldest_objects_and_nobody_elses() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(&disk, Some(100 * KIB));
    for number in 0..20 {
        put_cold(&store, key(2, number), LENGTH);
    }
    for number in 0..200 {
        put_cold(&store, key(1, number), LENGTH);
        assert!(of(&store, 1).disk_bytes <= 100 * KIB);
    }
    assert_eq!(
        (of(&store, 1).disk_objects, of(&store, 1).disk_evictions),
        (11, 189)
    );
    assert_eq!(
        (of(&store, 2).disk_objects, of(&store, 2).disk_evictions),
        (20, 0)
    );
    let there = (0..200).filter(|number| store.contains(&id(key(1, *number))));
    assert!(there.eq(189..200), "the newest stay");
    drop(store);
    // What was forgotten is found again by a start, and leaves again.
    let store = open(&disk, Some(100 * KIB));
    put_cold(&store, key(1, 200), LENGTH);
    let there = (0..=200).filter(|number| store.contains(&id(key(1, *number))));
    assert!(there.eq(190..=200));
    assert_eq!(of(&store, 1).disk_objects, 11);
    assert_eq!(of(&store, 2).disk_objects, 20);
    drop(store);
    let store = open(&disk, None);
    assert!(of(&store, 1).disk_objects > 11, "nothing was removed");
}

#[test]
fn small_objects_of_a_tenant_at_its_quota_leave_many_at_once() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(&disk, Some(100 * KIB));
    let mut times = 0;
    let mut evicted = 0;
    for number in 0..400 {
        put_cold(&store, key(1, number), KIB / 2);
        let now = of(&store, 1);
        assert!(now.disk_bytes <= 100 * KIB);
        assert!(number < 200 || now.disk_bytes > 97 * KIB);
        times += u64::from(now.disk_evictions > evicted);
        evicted = now.disk_evictions;
    }
    // A segment is walked once for a sixty-fourth of the quota, and not for every object.
    assert!(
        evicted >= 200 && times <= evicted / 3 + 1,
        "{evicted} in {times}"
    );
}

#[test]
fn object_that_left_its_disk_for_a_quota_can_be_removed_for_good() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(&disk, Some(100 * KIB));
    for number in 0..20 {
        assert_eq!(put(&store, key(1, number), 1, LENGTH), Published::Stored);
    }
    // The first is in memory only, the second nowhere.
    assert!(store.ram().contains(&id(key(1, 0))));
    store.ram().remove(&id(key(1, 1)), None);
    assert!(!store.contains(&id(key(1, 1))));
    for number in 0..20 {
        assert_eq!(remove(&store, key(1, number)), number != 1);
    }
    drop(store);
    let store = open(&disk, None);
    let back = (0..20).filter(|number| store.contains(&id(key(1, *number))));
    assert_eq!(back.count(), 0);
}

#[test]
fn leased_objects_of_a_tenant_beyond_its_quota_stay_until_the_lease_ends() {
    let disk = MemoryDisk::new(20, SEGMENT);
    let store = open(&disk, Some(30 * KIB));
    for number in 0..3 {
        put_cold(&store, key(1, number), LENGTH);
    }
    let ids: Vec<_> = (0..3).map(|number| id(key(1, number))).collect();
    let acquired = store.acquire(OwnerId(1), &ids, 1_000, u64::MAX, T0);
    for number in 3..6 {
        put_cold(&store, key(1, number), LENGTH);
        for number in 0..3 {
            assert!(store.contains(&id(key(1, number))));
        }
    }
    assert_eq!(of(&store, 1).disk_objects, 3, "the leased ones");
    store.release(acquired.lease.expect("three are held"), None);
    put_cold(&store, key(1, 6), LENGTH);
    assert!(!store.contains(&id(key(1, 0))));
    assert!(store.contains(&id(key(1, 6))));
    assert_eq!(of(&store, 1).disk_objects, 3);
}

/// Tenant 1 writes three times what the disk holds, over ten small objects of tenant 2, of which
/// `reads` says whether it reads the first now and then. Returns how many of the others are left.
fn flooded(reads: bool) -> usize {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(&disk, None);
    for number in 0..10 {
        put_cold(&store, key(2, number), 20 * KIB);
    }
    for number in 0..300 {
        put_cold(&store, key(1, number), 20 * KIB);
        if reads && number % 30 == 0 {
            assert_eq!(get(&store, key(2, 0)), Some((1, 20 * KIB)));
            store.ram().remove(&id(key(2, 0)), None);
        }
    }
    let stat = store.disk_stat();
    let tenants = store.tenants();
    assert_eq!(
        tenants.iter().map(|tenant| tenant.disk_bytes).sum::<u64>(),
        stat.bytes
    );
    assert_eq!(
        tenants
            .iter()
            .map(|tenant| tenant.disk_evictions)
            .sum::<u64>(),
        stat.evictions
    );
    (1..10)
        .filter(|number| store.contains(&id(key(2, *number))))
        .count()
}

#[test]
fn flood_of_one_tenant_leaves_what_another_has_that_is_not_idle() {
    assert_eq!(flooded(true), 9);
    assert_eq!(flooded(false), 0, "an idle tenant pays like anybody");
}

#[test]
fn what_was_dropped_or_removed_is_charged_to_nobody() {
    let disk = MemoryDisk::new(8, SEGMENT);
    let store = open(&disk, None);
    for number in 0..5 {
        put_cold(&store, key(1, number), LENGTH);
        put_cold(&store, key(2, number), LENGTH);
    }
    let ids = [id(key(1, 0))];
    let lease = store.acquire(OwnerId(1), &ids, 1_000, u64::MAX, T0).lease;
    assert_eq!(drop_namespace(&store, 0).disk_objects, 10, "of both");
    assert_eq!(
        (of(&store, 1).disk_bytes, of(&store, 2).disk_objects),
        (0, 0)
    );
    put_cold(&store, key(1, 7), LENGTH);
    store.release(lease.expect("one is held"), None);
    assert_eq!(of(&store, 1).disk_bytes, LENGTH);
}
