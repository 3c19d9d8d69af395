//! The store against a naive model: a map of objects and a list of leases.
//!
//! Called by the test runner. The model does not know when the store evicts, only what it must
//! not evict: a missing object is believed, unless it is leased or pinned.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;

use proptest::prelude::*;
use tessera_proto::{Instant, LeaseId, WriteId, checksum};
use tessera_store::{
    LeaseLimits, Lifetimes, OwnerId, Presence, Published, RamStore, ReadPin, ReserveRefusal,
    StoreConfig, TenantLimits,
};

use crate::sample::{NAMESPACE_SHIFT, id, namespace_of, put};

/// Times are multiples of this: leases end within a few seconds, as objects do.
const TICK_NS: u64 = 50_000_000;
const LIFETIME_S: u32 = 3;

const LIMITS: LeaseLimits = LeaseLimits {
    ttl_ns_max: 40 * TICK_NS,
    store_bytes_max: 120_000,
    owner_bytes_max: 90_000,
    owner_leases_max: 3,
};

#[derive(Clone, Debug)]
enum Step {
    Put {
        key: u64,
        length: u64,
    },
    Read {
        key: u64,
    },
    Pin {
        key: u64,
    },
    Unpin {
        which: prop::sample::Index,
    },
    Remove {
        key: u64,
        which_write: u8,
    },
    Acquire {
        owner: u64,
        keys: Vec<u64>,
        ttl_ns: u64,
        max_bytes: u64,
    },
    Release {
        which: prop::sample::Index,
        keys: Option<Vec<u64>>,
    },
    LoseOwner {
        owner: u64,
    },
    Drop {
        key: u64,
    },
    Price {
        key: u64,
        ns_per_kib: NonZeroU32,
    },
    Wait {
        nanos: u64,
    },
}

/// Keys of two namespaces.
fn keyed(number: u64) -> u64 {
    number | (number % 2) << NAMESPACE_SHIFT
}

fn step() -> impl Strategy<Value = Step> {
    let key = || (0..24_u64).prop_map(keyed);
    let keys = || prop::collection::vec(key(), 1..6);
    let which = || any::<prop::sample::Index>();
    let length = prop_oneof![4 => 1..3_000_u64, 2 => 60_000..70_000_u64, 1 => 90_000..200_000_u64];
    prop_oneof![
        8 => (key(), length).prop_map(|(key, length)| Step::Put { key, length }),
        4 => key().prop_map(|key| Step::Read { key }),
        2 => key().prop_map(|key| Step::Pin { key }),
        2 => which().prop_map(|which| Step::Unpin { which }),
        1 => (key(), 0..3_u8).prop_map(|(key, which_write)| Step::Remove { key, which_write }),
        4 => (0..3_u64, keys(), 1..80_u64, prop_oneof![Just(u64::MAX), 0..80_000_u64]).prop_map(
            |(owner, keys, ticks, max_bytes)| {
                let ttl_ns = ticks * TICK_NS;
                Step::Acquire { owner, keys, ttl_ns, max_bytes }
            }),
        2 => (which(), prop::option::of(keys()))
            .prop_map(|(which, keys)| Step::Release { which, keys }),
        1 => (0..3_u64).prop_map(|owner| Step::LoseOwner { owner }),
        1 => key().prop_map(|key| Step::Drop { key }),
        1 => (key(), any::<NonZeroU32>())
            .prop_map(|(key, ns_per_kib)| Step::Price { key, ns_per_kib }),
        2 => (1..30_u64).prop_map(|ticks| Step::Wait { nanos: ticks * TICK_NS }),
    ]
}

/// One write of one object: (key, write).
type Write = (u64, u64);

#[derive(Debug)]
struct ModelLease {
    id: LeaseId,
    owner: u64,
    deadline: Instant,
    holds: BTreeMap<u64, (Write, u64)>,
}

#[derive(Debug)]
struct Model {
    store: RamStore,
    now: Instant,
    writes: u64,
    /// What may be found: write and length by key.
    objects: BTreeMap<u64, (u64, u64)>,
    /// When it was stored, seconds.
    stored: BTreeMap<u64, u64>,
    leases: Vec<ModelLease>,
    pins: Vec<(Write, ReadPin)>,
}

impl Model {
    fn new() -> Self {
        let config = StoreConfig {
            capacity_bytes: 512 << 10,
            max_object_bytes: 160_000,
            leases: LIMITS,
            tenants: TenantLimits::default(),
            lifetimes: Lifetimes {
                named: Vec::new(),
                others: Some(LIFETIME_S),
            },
            epoch_s: 0,
            fault_threads: 1,
        };
        Self {
            store: RamStore::new(config).expect("a small arena"),
            now: Instant(0),
            writes: 0,
            objects: BTreeMap::new(),
            stored: BTreeMap::new(),
            leases: Vec::new(),
            pins: Vec::new(),
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Put { key, length } => self.put(key, length),
            Step::Read { key } => drop(self.read(key)),
            Step::Pin { key } => {
                if let Some(pin) = self.read(key) {
                    self.pins.push(pin);
                }
            }
            Step::Unpin { which } if !self.pins.is_empty() => {
                let (write, pin) = self.pins.swap_remove(which.index(self.pins.len()));
                assert_eq!(pin.header().write, WriteId(write.1));
                assert_eq!(pin.header().check_payload(checksum(&pin)), Ok(()));
            }
            Step::Price { key, ns_per_kib } => self.store.price(namespace_of(key), ns_per_kib),
            Step::Remove { key, which_write } => self.remove(key, which_write),
            Step::Acquire {
                owner,
                keys,
                ttl_ns,
                max_bytes,
            } => {
                self.acquire(owner, &keys, ttl_ns, max_bytes);
            }
            Step::Release { which, keys } if !self.leases.is_empty() => {
                let at = which.index(self.leases.len());
                self.release(at, keys.as_deref());
            }
            Step::LoseOwner { owner } => {
                let lost = self.leases.extract_if(.., |lease| lease.owner == owner);
                let holds = lost.map(|lease| lease.holds.len() as u64).sum::<u64>();
                assert_eq!(self.store.release_owner(OwnerId(owner)), holds);
            }
            Step::Drop { key } => {
                let mut there = 0;
                self.objects.retain(|other, (_, length)| {
                    let stays = namespace_of(*other) != namespace_of(key);
                    let found = self.store.contains(&id(*other));
                    there += if !stays && found { *length } else { 0 };
                    stays
                });
                let dropped = self.store.drop_namespace(namespace_of(key));
                // What is over and still takes room is dropped as well.
                assert!(dropped.ram_bytes >= there);
            }
            Step::Wait { nanos } => {
                self.now = self.now.after_nanos(nanos);
                let now = self.now;
                let ended = self
                    .leases
                    .extract_if(.., |lease| lease.deadline <= now)
                    .count();
                assert_eq!(self.store.expire(now), ended as u64);
            }
            Step::Unpin { .. } | Step::Release { .. } => {}
        }
        let leased: BTreeSet<_> = self.leases.iter().flat_map(|l| l.holds.values()).collect();
        let stat = self.store.stat();
        assert_eq!(
            stat.leased_bytes,
            leased.iter().map(|(_, length)| length).sum::<u64>()
        );
        assert_eq!(stat.leases, self.leases.len() as u64);
        assert_eq!(stat.pins, self.pins.len() as u64);
        self.store.check_invariants();
    }

    fn now_s(&self) -> u64 {
        self.now.0 / 1_000_000_000
    }

    /// Whether the time of an object is over.
    fn is_over(&self, key: u64) -> bool {
        self.now_s() - self.stored[&key] >= u64::from(LIFETIME_S)
    }

    fn is_leased(&self, key: u64) -> bool {
        let write = self.objects.get(&key).map(|(write, _)| (key, *write));
        let mut holds = self.leases.iter().filter_map(|lease| lease.holds.get(&key));
        holds.any(|(leased, _)| Some(*leased) == write)
    }

    /// The object is not found: allowed if nobody holds it, or if its time is over and nobody
    /// leases it.
    fn believe_missing(&mut self, key: u64) {
        let leased = self.is_leased(key);
        if let Some((write, _)) = self.objects.remove(&key) {
            let write = (key, write);
            let pinned = self.pins.iter().any(|(pinned, _)| *pinned == write);
            assert!(
                !leased && (!pinned || self.is_over(key)),
                "{write:?} was evicted while it was held"
            );
        }
    }

    /// The object is found: its time is not over, or somebody leases it.
    fn believe_found(&self, key: u64) {
        assert!(self.objects.contains_key(&key));
        assert!(!self.is_over(key) || self.is_leased(key), "it is too old");
    }

    fn put(&mut self, key: u64, length: u64) {
        self.writes += 1;
        match put(&self.store, key, self.writes, length, self.now) {
            Ok(Published::Stored) => {
                self.believe_missing(key);
                self.objects.insert(key, (self.writes, length));
                self.stored.insert(key, self.now_s());
            }
            Ok(Published::Existed) => self.believe_found(key),
            Ok(Published::Mismatch) => panic!("the header is right"),
            Err(ReserveRefusal::TooLarge) => assert!(length > 160_000),
            Err(ReserveRefusal::NoSpace) => {
                assert!(
                    !(self.pins.is_empty() && self.leases.is_empty()),
                    "nothing is in the way"
                );
            }
            Err(ReserveRefusal::Empty) => panic!("it is not empty"),
        }
    }

    fn read(&mut self, key: u64) -> Option<(Write, ReadPin)> {
        let Some(pin) = self.store.pin(&id(key), None, self.now) else {
            self.believe_missing(key);
            return None;
        };
        self.believe_found(key);
        let (write, length) = self.objects[&key];
        assert_eq!(
            (pin.header().write, pin.len() as u64),
            (WriteId(write), length)
        );
        assert_eq!(pin.header().check_payload(checksum(&pin)), Ok(()));
        Some(((key, write), pin))
    }

    fn remove(&mut self, key: u64, which_write: u8) {
        let there = self.store.contains(&id(key));
        let write = self.objects.get(&key).map(|(write, _)| *write);
        let (named, right) = match (which_write, write) {
            (0, _) => (None, true),
            (1, Some(write)) => (Some(WriteId(write)), true),
            (_, write) => (Some(WriteId(write.map_or(1, |write| write + 1))), false),
        };
        assert_eq!(self.store.remove(&id(key), named), there && right);
        if !there {
            self.believe_missing(key);
        } else if right {
            self.objects.remove(&key);
        }
    }

    fn owner_bytes(&self, owner: u64) -> u64 {
        let own = self.leases.iter().filter(|lease| lease.owner == owner);
        own.flat_map(|lease| lease.holds.values())
            .map(|(_, length)| length)
            .sum()
    }

    fn acquire(&mut self, owner: u64, keys: &[u64], ttl_ns: u64, max_bytes: u64) {
        let mut leased: BTreeSet<(Write, u64)> = self
            .leases
            .iter()
            .flat_map(|lease| lease.holds.values())
            .copied()
            .collect();
        let mut left = max_bytes;
        let mut owner_left = LIMITS.owner_bytes_max - self.owner_bytes(owner);
        let full = self
            .leases
            .iter()
            .filter(|lease| lease.owner == owner)
            .count()
            >= 3;
        let ids: Vec<_> = keys.iter().map(|key| id(*key)).collect();
        let acquired = self
            .store
            .acquire(OwnerId(owner), &ids, ttl_ns, max_bytes, self.now);
        let mut holds = BTreeMap::new();
        for (key, item) in keys.iter().zip(&acquired.items) {
            if item.presence == Presence::Missing {
                // What another lease keeps beyond its time is there, but no new lease keeps it.
                if !(self.is_leased(*key) && self.is_over(*key)) {
                    self.believe_missing(*key);
                }
                continue;
            }
            assert!(!self.is_over(*key), "a lease on what is over");
            let (write, length) = self.objects[key];
            let hold = ((*key, write), length);
            let store_bytes: u64 = leased.iter().map(|(_, length)| length).sum();
            let store_has_room =
                leased.contains(&hold) || store_bytes + length <= LIMITS.store_bytes_max;
            let again = holds.contains_key(key);
            let fits = length <= left && length <= owner_left && store_has_room;
            let expected = if again || fits {
                Presence::Held
            } else {
                Presence::Refused
            };
            if fits && !again {
                left -= length;
                owner_left -= length;
                leased.insert(hold);
                holds.insert(*key, hold);
            }
            let expected = if full { Presence::Refused } else { expected };
            assert_eq!(item.presence, expected, "key {key}");
            let shown = if expected == Presence::Held {
                length
            } else {
                0
            };
            assert_eq!(item.length_bytes, shown);
        }
        assert_eq!(acquired.lease.is_some(), !full && !holds.is_empty());
        if let Some(id) = acquired.lease {
            assert_eq!(
                acquired.deadline,
                self.now.after_nanos(ttl_ns.min(LIMITS.ttl_ns_max))
            );
            let deadline = acquired.deadline;
            self.leases.push(ModelLease {
                id,
                owner,
                deadline,
                holds,
            });
        }
    }

    fn release(&mut self, at: usize, keys: Option<&[u64]>) {
        let lease = &mut self.leases[at];
        let before = lease.holds.len();
        let ids = keys.map(|keys| keys.iter().map(|key| id(*key)).collect::<Vec<_>>());
        match keys {
            Some(keys) => lease.holds.retain(|key, _| !keys.contains(key)),
            None => lease.holds.clear(),
        }
        let released = (before - lease.holds.len()) as u64;
        assert_eq!(self.store.release(lease.id, ids.as_deref()), released);
        if lease.holds.is_empty() {
            self.leases.swap_remove(at);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn store_agrees_with_a_map_and_a_list_of_leases(
        steps in prop::collection::vec(step(), 1..150),
    ) {
        let mut model = Model::new();
        for step in steps {
            model.apply(step);
        }
        model.pins.clear();
        model.store.expire(Instant::NEVER);
        for number in 0..24 {
            model.store.remove(&id(keyed(number)), None);
        }
        model.store.check_invariants();
        let stat = model.store.stat();
        prop_assert_eq!((stat.free_bytes, stat.leases), (stat.capacity_bytes, 0));
    }
}
