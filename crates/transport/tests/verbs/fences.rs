//! The fences: each proof, and that nothing changes behind it.

use std::sync::Arc;

use tessera_transport::verbs::{Exposed, Failure, PostError, Registered, Rights, Work};
use tessera_transport::{Lent, Region, SegmentError, Segments};

use crate::support::{
    Cable, Local, assert_bytes, bytes, connected, drained, fill, ids, part, pattern, post, rail,
    told, until,
};

const MIB: usize = 1 << 20;

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn f1_memory_is_lent_until_as_many_have_finished_as_were_posted() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, _peer) = connected(&near, &far);
    let source = pattern(4 * MIB, 5);
    let arena = Local::new(&far, &source);
    let readable = Registered::new(&far, &arena.region, Rights::Read).unwrap();
    let local = Local::new(&near, &vec![0; 4 * MIB]);
    assert!(pair.is_drained());
    let batch = (0..4_usize).map(|at| {
        let from = readable.remote(at * MIB, MIB).unwrap();
        local.read(at as u64, at * MIB, from)
    });
    post(&mut pair, batch.collect());
    // Four are posted, and whatever has landed of them, none has been reported.
    assert!(!pair.is_drained());
    assert_eq!(pair.room(), 12);
    let lent = Lent::new(Segments::whole(&local.region)).unwrap_err();
    assert!(matches!(lent, SegmentError::Lent { .. }), "{lent}");
    let ended = drained(&mut pair);
    assert_eq!(ids(&ended), [0, 1, 2, 3]);
    // Reported, they are still lent, to whoever has what was reported.
    assert!(Lent::new(Segments::whole(&local.region)).is_err());
    drop(ended);
    assert!(Lent::new(Segments::whole(&local.region)).is_ok());
    assert_bytes(&local.region, &source, "what was read");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn f2_a_closed_side_reports_every_posted_request_once_and_writes_no_more() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, _peer) = connected(&near, &far);
    let arena = Local::new(&far, &pattern(16 * MIB, 6));
    let readable = Registered::new(&far, &arena.region, Rights::Read).unwrap();
    let local = Local::new(&near, &vec![0; 16 * MIB]);
    let batch = (0..16_usize).map(|at| {
        let from = readable.remote(at * MIB, MIB).unwrap();
        local.read(at as u64, at * MIB, from)
    });
    post(&mut pair, batch.collect());
    pair.close().unwrap();
    assert!(!pair.is_drained(), "closed is not flushed");
    let more = vec![local.write(99, 0, readable.remote(0, 1).unwrap(), None)];
    assert!(matches!(pair.post(more), Err((PostError::Ended, _))));
    let mut ended = drained(&mut pair);
    let flushed = |ended: &&_| -> bool {
        let ended: &&tessera_transport::verbs::Ended = ended;
        ended.outcome == Err(Failure::Flushed)
    };
    assert!(
        ended.iter().filter(flushed).count() > 0,
        "16 MiB take longer than the close"
    );
    ended.sort_by_key(|ended| ended.request.id);
    assert_eq!(ids(&ended), (0..16).collect::<Vec<u64>>(), "each once");
    drop(ended);
    // The memory is ours again. Whatever the peer's answers were on their way, none lands.
    let canary = pattern(16 * MIB, 7);
    fill(&local.region, 0, &canary);
    // A second pair works meanwhile, and is how we know that time has passed on the wire.
    let (mut other, _its_peer) = connected(&near, &far);
    let beside = Local::new(&near, &vec![0; 4 * MIB]);
    post(
        &mut other,
        vec![beside.read(1, 0, readable.remote(0, 4 * MIB).unwrap())],
    );
    assert!(drained(&mut other)[0].outcome.is_ok());
    assert_bytes(&local.region, &canary, "behind the flush");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn f3_a_write_after_the_target_has_revoked_changes_no_byte() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, _peer) = connected(&near, &far);
    let target = Region::allocate(MIB).unwrap();
    let exposed = Exposed::new(&far, Lent::new(Segments::whole(&target)).unwrap()).unwrap();
    let to = exposed.remotes()[0];
    let local = Local::new(&near, &pattern(MIB, 8));
    post(&mut pair, vec![local.write(1, 0, to, None)]);
    assert!(drained(&mut pair)[0].outcome.is_ok());
    assert!(
        Lent::new(Segments::whole(&target)).is_err(),
        "exposed is lent"
    );

    let mut lent = exposed.revoke().unwrap();
    let canary = pattern(MIB, 9);
    lent.copy_from(&canary).unwrap();
    post(&mut pair, vec![local.write(2, 0, to, None)]);
    let ended = drained(&mut pair);
    assert_eq!(ended[0].outcome, Err(Failure::RemoteAccess));
    drop(lent);
    assert_bytes(&target, &canary, "behind the revocation");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn f3_writes_that_are_on_their_way_when_the_target_revokes_change_no_byte_behind_it() {
    for round in 0..4_u8 {
        let (near, far) = (rail(1), rail(2));
        let (mut pair, _peer) = connected(&near, &far);
        let target = Region::allocate(8 * MIB).unwrap();
        let exposed = Exposed::new(&far, Lent::new(Segments::whole(&target)).unwrap()).unwrap();
        let all = exposed.remotes()[0];
        let local = Local::new(&near, &pattern(8 * MIB, 10));
        let batch = (0..8_usize).map(|at| {
            let to = part(all, (at * MIB) as u64, MIB as u64);
            local.write(at as u64, at * MIB, to, None)
        });
        post(&mut pair, batch.collect());
        let mut lent = exposed.revoke().unwrap();
        let canary = pattern(8 * MIB, 11 + round);
        lent.copy_from(&canary).unwrap();
        let ended = drained(&mut pair);
        assert_eq!(ended.len(), 8);
        assert!(
            ended.iter().any(|ended| ended.outcome.is_err()),
            "8 MiB take longer than that"
        );
        drop(lent);
        assert_bytes(&target, &canary, "behind the revocation");
    }
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn f3_bytes_land_behind_the_error_of_their_sender_until_the_target_revokes() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, _peer) = connected(&near, &far);
    let (mut other, mut its_peer) = connected(&near, &far);
    let (open, revoked) = (
        Region::allocate(4096).unwrap(),
        Region::allocate(4096).unwrap(),
    );
    let exposed = [&open, &revoked].map(|region| {
        let lent = Lent::new(Segments::whole(region)).unwrap();
        Exposed::new(&far, lent).unwrap()
    });
    let local = Local::new(&near, &pattern(4096, 15));
    let last = Registered::new(&far, &Region::allocate(1).unwrap(), Rights::Write).unwrap();

    let cable = Cable::made(&["delay", "3s"]);
    let writes = exposed
        .iter()
        .map(|of| local.write(1, 0, of.remotes()[0], None));
    post(&mut pair, writes.collect());
    // On its way behind them, by another pair: what tells that they have arrived.
    post(
        &mut other,
        vec![local.write(2, 0, last.remote(0, 1).unwrap(), Some(1))],
    );
    pair.close().unwrap();
    let ended = drained(&mut pair);
    assert!(
        ended.iter().all(|ended| ended.outcome.is_err()),
        "to their sender they have failed"
    );
    let [_still_open, exposed] = exposed;
    let mut lent = exposed.revoke().unwrap();
    let canary = pattern(4096, 16);
    lent.copy_from(&canary).unwrap();

    assert_eq!(told(&mut its_peer), 1);
    let sent = pattern(4096, 15);
    until("what had failed lands all the same", || {
        bytes(&open) == sent
    });
    assert_bytes(&revoked, &canary, "behind the revocation");
    drop(cable);
    assert!(drained(&mut other)[0].outcome.is_ok());
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn f3_a_reset_pair_gives_its_peer_no_access_to_an_arena_that_others_still_reach() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, peer) = connected(&near, &far);
    let (mut other, _its_peer) = connected(&near, &far);
    let target = Region::allocate(8 * MIB).unwrap();
    let arena = Registered::new(&far, &target, Rights::Write).unwrap();
    let local = Local::new(&near, &pattern(8 * MIB, 12));
    let batch = |count: u64| {
        let write = |at: u64| {
            let offset = usize::try_from(at).unwrap() * MIB;
            local.write(at, offset, arena.remote(offset, MIB).unwrap(), None)
        };
        (0..count).map(write).collect::<Vec<_>>()
    };
    post(&mut pair, batch(8));
    assert!(
        peer.reset().unwrap().is_empty(),
        "the target had posted nothing"
    );
    let mut want = pattern(8 * MIB, 13);
    fill(&target, 0, &want);
    let ended = drained(&mut pair);
    assert_eq!(ended.len(), 8);
    assert!(
        ended
            .iter()
            .any(|ended| ended.outcome == Err(Failure::NoAnswer)),
        "{:?}",
        ended.iter().map(|ended| ended.outcome).collect::<Vec<_>>()
    );
    assert_bytes(&target, &want, "behind the reset");
    // The registration is still there, for others.
    post(&mut other, batch(1));
    assert!(drained(&mut other)[0].outcome.is_ok());
    want[..MIB].copy_from_slice(&pattern(8 * MIB, 12)[..MIB]);
    assert_bytes(&target, &want, "what another pair wrote");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn a_reset_initiator_has_all_its_memory_back_and_no_answer_lands_in_it() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, _peer) = connected(&near, &far);
    let arena = Local::new(&far, &pattern(8 * MIB, 14));
    let readable = Registered::new(&far, &arena.region, Rights::Read).unwrap();
    let local = Local::new(&near, &vec![0; 8 * MIB]);
    let batch = (0..8_usize).map(|at| {
        let from = readable.remote(at * MIB, MIB).unwrap();
        local.read(at as u64, at * MIB, from)
    });
    post(&mut pair, batch.collect());
    let ended = pair.reset().unwrap();
    assert_eq!(ids(&ended), (0..8).collect::<Vec<u64>>());
    assert!(
        ended
            .iter()
            .all(|ended| ended.outcome == Err(Failure::Reset))
    );
    for ended in ended {
        let Work::Read { mut into, .. } = ended.request.work else {
            panic!("a read stays one")
        };
        into.clear();
    }
    let (mut other, _its_peer) = connected(&near, &far);
    let beside = Local::new(&near, &vec![0; 4 * MIB]);
    post(
        &mut other,
        vec![beside.read(1, 0, readable.remote(0, 4 * MIB).unwrap())],
    );
    assert!(drained(&mut other)[0].outcome.is_ok());
    assert_bytes(&local.region, &vec![0; 8 * MIB], "behind the reset");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn a_pair_that_is_dropped_with_requests_gives_the_memory_back_behind_a_reset() {
    let rail = rail(0);
    let (mut pair, _peer) = connected(&rail, &rail);
    let arena = Registered::new(&rail, &Region::allocate(MIB).unwrap(), Rights::Read).unwrap();
    let local = Local::new(&rail, &vec![0; MIB]);
    let request = local.read(1, 0, arena.remote(0, MIB).unwrap());
    let held = Arc::downgrade(&request.within);
    post(&mut pair, vec![request]);
    drop(pair);
    assert!(Lent::new(Segments::whole(&local.region)).is_ok());
    drop(local);
    assert!(held.upgrade().is_none(), "nobody holds the registration");
}
