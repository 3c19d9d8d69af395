//! Bytes: those that land are those that were sent, in both directions, and nothing beside them.

use tessera_transport::verbs::{
    Exposed, LinkState, PostError, Rail, Registered, Request, Rights, VerbsError, Work,
};
use tessera_transport::{Lent, Region, Segments};

use crate::support::{
    Local, asleep, assert_bytes, connected, drained, filled, part, pattern, post, rail, range, told,
};

const MIB: usize = 1 << 20;

/// Lengths that are no multiples of a packet, a page or a word, and the ends of those that are.
const ODD: [usize; 9] = [1, 3, 255, 1023, 1025, 4095, 4097, 70_001, MIB + 1];

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn eight_reads_of_one_batch_bring_the_bytes_of_the_peer() {
    for (near, far) in [(0, 0), (1, 2)] {
        let (near, far) = (rail(near), rail(far));
        let (mut pair, _peer) = connected(&near, &far);
        let want = pattern(8 * MIB, 1);
        let exposed = Exposed::new(&far, Segments::whole(&filled(&want))).unwrap();
        let [all] = exposed.remotes()[..] else {
            panic!("one range has one name")
        };
        let local = Local::new(&near, &vec![0; 8 * MIB]);
        let batch = (0..8_usize).map(|at| {
            let from = part(all, (at * MIB) as u64, MIB as u64);
            local.read(at as u64, at * MIB, from)
        });
        post(&mut pair, batch.collect());
        let ended = drained(&mut pair);
        assert!(ended.iter().all(|ended| ended.outcome.is_ok()));
        assert_eq!(ended.len(), 8);
        assert_bytes(&local.region, &want, "what was read");
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn eight_writes_of_one_batch_land_at_the_peer_before_it_is_told() {
    for (near, far) in [(0, 0), (1, 2)] {
        let (near, far) = (rail(near), rail(far));
        let (mut pair, mut peer) = connected(&near, &far);
        let target = Region::allocate(8 * MIB).unwrap();
        let lent = Lent::new(Segments::whole(&target)).unwrap();
        let exposed = Exposed::new(&far, lent).unwrap();
        let all = exposed.remotes()[0];
        let want = pattern(8 * MIB, 2);
        let local = Local::new(&near, &want);
        let batch = (0..8_usize).map(|at| {
            let to = part(all, (at * MIB) as u64, MIB as u64);
            let tell = (at == 7).then_some(0x0102_0304);
            local.write(at as u64, at * MIB, to, tell)
        });
        post(&mut pair, batch.collect());
        assert_eq!(told(&mut peer), 0x0102_0304);
        // Told: all has landed, whatever our own completions say.
        assert_bytes(&target, &want, "what was written");
        let ended = drained(&mut pair);
        assert!(ended.iter().all(|ended| ended.outcome.is_ok()));
        exposed.revoke().unwrap();
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn odd_lengths_move_both_ways_and_touch_nothing_beside_them() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, _peer) = connected(&near, &far);
    for length in ODD {
        // Three bytes before and five behind are nobody's.
        let source = pattern(length + 8, 3);
        let target = filled(&vec![0xee; length + 8]);
        let mut want = vec![0xee; length + 8];
        want[3..3 + length].copy_from_slice(&source[3..3 + length]);

        let lent = Lent::new(range(&target, 3, length)).unwrap();
        let exposed = Exposed::new(&far, lent).unwrap();
        let local = Local::new(&near, &source);
        let to = exposed.remotes()[0];
        post(&mut pair, vec![local.write(1, 3, to, None)]);
        assert!(drained(&mut pair)[0].outcome.is_ok());
        assert_bytes(&target, &want, "a write");
        exposed.revoke().unwrap();

        let exposed = Exposed::new(&far, range(&target, 3, length)).unwrap();
        let back = Local::new(&near, &vec![0xee; length + 8]);
        post(&mut pair, vec![back.read(2, 3, exposed.remotes()[0])]);
        assert!(drained(&mut pair)[0].outcome.is_ok());
        assert_bytes(&back.region, &want, "a read");
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn ranges_of_blocks_are_gathered_and_scattered_in_order() {
    let (near, far) = (rail(0), rail(0));
    let (mut pair, mut peer) = connected(&near, &far);
    let scattered = |region| {
        let mut list = Segments::with_capacity(3);
        for (offset, length) in [(5000, 700), (0, 4096), (9001, 3)] {
            list.push(region, offset, length).unwrap();
        }
        list
    };
    let (from, to) = (
        filled(&pattern(10_000, 4)),
        Region::allocate(10_000).unwrap(),
    );
    let within = Registered::new(&near, &from, Rights::Local).unwrap();
    let arena = Registered::new(&far, &to, Rights::Write).unwrap();
    let whole = arena.remote(100, 4799).unwrap();
    let gather = Request {
        id: 1,
        within,
        work: Work::Write {
            from: scattered(&from),
            to: whole,
            tell: Some(9),
        },
    };
    post(&mut pair, vec![gather]);
    assert!(drained(&mut pair)[0].outcome.is_ok());
    assert_eq!(told(&mut peer), 9);
    let mut want = vec![0; 4799];
    scattered(&from).copy_to(&mut want).unwrap();
    let mut all = vec![0; 10_000];
    all[100..4899].copy_from_slice(&want);
    assert_bytes(&to, &all, "what was gathered");

    let readable = Registered::new(&far, &to, Rights::Read).unwrap();
    let back = Region::allocate(10_000).unwrap();
    let within = Registered::new(&near, &back, Rights::Local).unwrap();
    let scatter = Request {
        id: 2,
        within,
        work: Work::Read {
            from: readable.remote(100, 4799).unwrap(),
            into: Lent::new(scattered(&back)).unwrap(),
        },
    };
    post(&mut pair, vec![scatter]);
    assert!(drained(&mut pair)[0].outcome.is_ok());
    let mut landed = vec![0; 4799];
    scattered(&back).copy_to(&mut landed).unwrap();
    assert!(landed == want, "what was scattered");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn a_number_is_told_without_bytes_and_more_of_them_than_wait_at_once() {
    let rail = rail(0);
    let (mut pair, mut peer) = connected(&rail, &rail);
    let arena = Registered::new(&rail, &Region::allocate(16).unwrap(), Rights::Write).unwrap();
    let local = Local::new(&rail, &[0; 16]);
    for number in 0..200 {
        let to = arena.remote(0, 0).unwrap();
        post(&mut pair, vec![local.write(1, 0, to, Some(number))]);
        assert_eq!(told(&mut peer), number);
        assert!(drained(&mut pair)[0].outcome.is_ok());
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn a_driver_that_sleeps_is_woken_by_what_ends_and_by_what_is_told() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, mut peer) = connected(&near, &far);
    let arena = Registered::new(&far, &Region::allocate(MIB).unwrap(), Rights::Write).unwrap();
    let local = Local::new(&near, &pattern(MIB, 6));
    for number in 0..3 {
        // Nothing has happened, so that whatever is polled behind this has rung.
        for pair in [&mut pair, &mut peer] {
            pair.arm().unwrap();
            assert_eq!(pair.poll(&mut Vec::new()).unwrap(), 0);
        }
        let to = arena.remote(0, MIB).unwrap();
        post(&mut pair, vec![local.write(1, 0, to, Some(number))]);
        asleep(&peer);
        assert_eq!(told(&mut peer), number);
        asleep(&pair);
        assert!(drained(&mut pair)[0].outcome.is_ok());
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn mistakes_of_the_caller_are_refused_before_anything_is_posted() {
    let rail = rail(0);
    let (mut pair, _peer) = connected(&rail, &rail);
    let arena = Registered::new(&rail, &Region::allocate(64).unwrap(), Rights::Write).unwrap();
    let to = arena.remote(0, 32).unwrap();
    let out = arena.remote(33, 32);
    assert!(matches!(out, Err(VerbsError::OutOfRegistration { .. })));
    let (local, other) = (Local::new(&rail, &[1; 64]), Local::new(&rail, &[2; 64]));
    let mut foreign = local.write(7, 0, to, None);
    foreign.within = other.within;
    let Err((error, batch)) = pair.post(vec![foreign]) else {
        panic!("memory of another registration")
    };
    assert_eq!(error, PostError::NotRegistered { id: 7 });
    assert_eq!(batch.len(), 1);
    let mut longer = local.write(8, 0, to, None);
    if let Work::Write { to, .. } = &mut longer.work {
        to.length = 33;
    }
    let Err((error, _)) = pair.post(vec![longer]) else {
        panic!("one side has more bytes")
    };
    let (local, remote) = (32, 33);
    assert_eq!(
        error,
        PostError::Length {
            id: 8,
            local,
            remote
        }
    );
    assert!(pair.is_drained());
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn devices_are_found_by_name_and_others_are_named_in_the_error() {
    let rail = rail(1);
    assert!(
        Rail::names()
            .unwrap()
            .iter()
            .any(|name| name == rail.name())
    );
    assert_eq!(rail.link().unwrap(), LinkState::Up);
    let error = Rail::open("no-such-device").unwrap_err().to_string();
    assert!(
        error.contains("no-such-device") && error.contains(rail.name()),
        "{error}"
    );
}
