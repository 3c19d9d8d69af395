//! The failures: each ends every request, gives its memory back, and costs the pair and no more.

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};
use std::ptr;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use tessera_transport::verbs::{
    CARD_BYTES, Card, Ended, Exposed, Failure, LinkState, PostError, QueuePair, Rail, Registered,
    Remote, Rights, VerbsError,
};
use tessera_transport::{Lent, Region, Segments};

use crate::support::{
    Cable, DEPTH, Local, assert_bytes, connected, drained, filled, ids, part, pattern, post, rail,
    until,
};

const MIB: usize = 1 << 20;

fn outcomes(ended: &[Ended]) -> Vec<Result<(), Failure>> {
    ended.iter().map(|ended| ended.outcome).collect()
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn a_wrong_key_fails_its_request_and_flushes_those_behind_it() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, _peer) = connected(&near, &far);
    let target = filled(&[0xaa; 4096]);
    let arena = Registered::new(&far, &target, Rights::Write).unwrap();
    let to = arena.remote(0, 1024).unwrap();
    let wrong = Remote {
        key: to.key ^ 0x00ff_ff00,
        ..to
    };
    let local = Local::new(&near, &[1; 4096]);
    let batch = vec![
        local.write(1, 0, to, None),
        local.write(2, 0, wrong, None),
        local.write(3, 0, to, None),
    ];
    post(&mut pair, batch);
    let ended = drained(&mut pair);
    assert_eq!(ids(&ended), [1, 2, 3]);
    let want = [Ok(()), Err(Failure::RemoteAccess), Err(Failure::Flushed)];
    assert_eq!(outcomes(&ended), want);
    let again = vec![local.write(4, 0, to, None)];
    let Err((PostError::Ended, back)) = pair.post(again) else {
        panic!("after the first failure nothing more is posted")
    };
    assert_eq!(back.len(), 1);
    let mut bytes = vec![0xaa; 4096];
    bytes[..1024].fill(1);
    assert_bytes(&target, &bytes, "what the first wrote");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn rights_and_bounds_of_what_is_exposed_are_the_peers_own() {
    let rail = rail(0);
    let target = filled(&[0xbb; 4096]);
    let readable = Exposed::new(&rail, Segments::whole(&target)).unwrap();
    let name = readable.remotes()[0];
    let local = Local::new(&rail, &[1; 8192]);
    let beyond = Remote {
        address: name.address + 4000,
        length: 200,
        ..name
    };
    for request in [local.write(1, 0, name, None), local.read(2, 0, beyond)] {
        let (mut pair, _peer) = connected(&rail, &rail);
        post(&mut pair, vec![request]);
        let ended = drained(&mut pair);
        assert_eq!(outcomes(&ended), [Err(Failure::RemoteAccess)]);
    }
    assert_bytes(&target, &[0xbb; 4096], "what may only be read");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn a_full_queue_refuses_the_batch_whole_and_takes_it_when_there_is_room() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, _peer) = connected(&near, &far);
    let target = Region::allocate(MIB).unwrap();
    let arena = Registered::new(&far, &target, Rights::Write).unwrap();
    let local = Local::new(&near, &pattern(MIB, 1));
    let write = |id| local.write(id, 0, arena.remote(0, MIB).unwrap(), None);
    post(&mut pair, (0..u64::from(DEPTH) - 1).map(write).collect());
    let Err((error, batch)) = pair.post(vec![write(100), write(101)]) else {
        panic!("there is room for one")
    };
    assert_eq!(error, PostError::Full { want: 2, room: 1 });
    assert_eq!(batch.len(), 2, "both are back");
    let ended = drained(&mut pair);
    assert_eq!(ids(&ended), (0..u64::from(DEPTH) - 1).collect::<Vec<_>>());
    post(&mut pair, batch);
    assert_eq!(ids(&drained(&mut pair)), [100, 101]);
    assert_bytes(&target, &pattern(MIB, 1), "what was written");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn memory_that_cannot_be_registered_is_refused_with_the_reason_and_given_back() {
    let rail = rail(0);
    // SAFETY: a fresh mapping at an address of the kernel's choice.
    let base = unsafe {
        mmap_anonymous(ptr::null_mut(), 8192, ProtFlags::empty(), MapFlags::PRIVATE).unwrap()
    };
    // SAFETY: it stays mapped for the life of the process; nobody may touch it, and nobody does.
    let region = unsafe { Region::from_raw(base.cast(), 8192) };
    let error = Registered::new(&rail, &region, Rights::Local).unwrap_err();
    let VerbsError::Register { length: 8192, .. } = error else {
        panic!("{error}")
    };
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    // The first range can be registered, the second cannot.
    let good = Region::allocate(4096).unwrap();
    let mut both = Segments::with_capacity(2);
    both.push(&good, 0, 4096).unwrap();
    both.push(&region, 0, 8192).unwrap();
    let refused = Exposed::new(&rail, Lent::new(both).unwrap()).unwrap_err();
    let (VerbsError::Register { .. }, Some(lent)) = *refused else {
        panic!("the loan comes back")
    };
    assert!(Lent::new(Segments::whole(&good)).is_err());
    drop(lent);
    assert!(Lent::new(Segments::whole(&good)).is_ok());
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn a_cable_that_is_cut_ends_what_was_posted_and_a_new_pair_works_when_it_is_mended() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, _peer) = connected(&near, &far);
    let target = Region::allocate(8 * MIB).unwrap();
    let arena = Registered::new(&far, &target, Rights::Write).unwrap();
    let local = Local::new(&near, &pattern(8 * MIB, 2));
    let write = |at: u64| {
        let offset = usize::try_from(at).unwrap() * MIB;
        local.write(at, offset, arena.remote(offset, MIB).unwrap(), None)
    };
    let cable = Cable::made(&["cut"]);
    until("the link is down", || {
        near.link().unwrap() == LinkState::Down
    });
    post(&mut pair, (0..8).map(write).collect());
    let ended = drained(&mut pair);
    drop(cable);
    until("the link is up", || near.link().unwrap() == LinkState::Up);
    assert_eq!(ids(&ended), (0..8).collect::<Vec<_>>());
    assert!(ended[0].outcome.is_err() && ended[0].outcome != Err(Failure::Flushed));
    assert!(
        ended[1..]
            .iter()
            .all(|ended| ended.outcome == Err(Failure::Flushed))
    );
    assert_bytes(&target, &vec![0; 8 * MIB], "nothing came through");
    let (mut pair, _peer) = connected(&near, &far);
    post(&mut pair, (0..8).map(write).collect());
    assert!(drained(&mut pair).iter().all(|ended| ended.outcome.is_ok()));
    assert_bytes(&target, &pattern(8 * MIB, 2), "what came through");
}

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn lost_packets_are_sent_again_and_all_bytes_land() {
    let (near, far) = (rail(1), rail(2));
    let (mut pair, _peer) = connected(&near, &far);
    let (source, other) = (pattern(MIB, 4), pattern(MIB, 5));
    let target = filled(&other);
    let (readable, writable) = (
        Registered::new(&far, &target, Rights::Read).unwrap(),
        Registered::new(&far, &target, Rights::Write).unwrap(),
    );
    let (from, into) = (Local::new(&near, &source), Local::new(&near, &source));
    let cable = Cable::made(&["loss", "2%"]);
    // The requests of reads go through the holes, and the bytes of writes. Small ones: the device
    // counts its retries by the request.
    let parts = || (0..u64::from(DEPTH)).zip((0..MIB).step_by(MIB / 16));
    let reads = parts().map(|(id, at)| {
        let remote = readable.remote(at, MIB / 16).unwrap();
        into.read(id, at, remote)
    });
    post(&mut pair, reads.collect());
    assert_eq!(outcomes(&drained(&mut pair)), [Ok(()); 16]);
    assert_bytes(&into.region, &other, "what was read");
    let writes = parts().map(|(id, at)| {
        let remote = writable.remote(at, MIB / 16).unwrap();
        from.write(id, at, remote, None)
    });
    post(&mut pair, writes.collect());
    assert_eq!(outcomes(&drained(&mut pair)), [Ok(()); 16]);
    assert_bytes(&target, &source, "what was written");
    drop(cable);
}

/// Names this process as the peer that is to be killed.
const CHILD: &str = "TESSERA_RDMA_CHILD";

#[test]
#[ignore = "needs RDMA devices: cargo xtask rdma-test"]
fn a_peer_that_is_killed_ends_what_was_posted_and_keeps_no_memory_of_ours() {
    if env::var_os(CHILD).is_some() {
        return be_killed();
    }
    let near = rail(1);
    let mut child = Command::new(env::current_exe().unwrap());
    let name = "failures::a_peer_that_is_killed_ends_what_was_posted_and_keeps_no_memory_of_ours";
    child.args(["--exact", name, "--include-ignored", "--nocapture"]);
    child
        .env(CHILD, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = child.spawn().unwrap();
    let mut pair = QueuePair::new(&near, DEPTH).unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&pair.card().encode()).unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    while !line.starts_with("peer ") {
        line.clear();
        assert!(
            output.read_line(&mut line).unwrap() > 0,
            "the peer said nothing"
        );
    }
    let numbers: Vec<u64> = line
        .split_whitespace()
        .skip(1)
        .map(|n| n.parse().unwrap())
        .collect();
    let (card, at) = numbers.split_at(CARD_BYTES);
    let card: Vec<u8> = card
        .iter()
        .map(|byte| u8::try_from(*byte).unwrap())
        .collect();
    let all = Remote {
        address: at[0],
        key: u32::try_from(at[1]).unwrap(),
        length: (8 * MIB) as u64,
    };
    pair.connect(&Card::decode(&card).unwrap()).unwrap();

    let local = Local::new(&near, &vec![0; 8 * MIB]);
    let read = |at: usize| {
        local.read(
            at as u64,
            at * MIB,
            part(all, (at * MIB) as u64, MIB as u64),
        )
    };
    // It answers before it is killed, so that what fails behind this is the killing.
    post(&mut pair, vec![read(0)]);
    assert!(drained(&mut pair)[0].outcome.is_ok());
    post(&mut pair, (0..8).map(read).collect());
    child.kill().unwrap();
    child.wait().unwrap();
    let ended = drained(&mut pair);
    assert_eq!(ids(&ended), (0..8).collect::<Vec<_>>());
    let failed = ended.iter().find_map(|ended| ended.outcome.err());
    assert!(failed.is_some(), "{:?}", outcomes(&ended));
    drop(ended);
    assert!(Lent::new(Segments::whole(&local.region)).is_ok());
}

/// The peer: it lets 8 MiB be read, and waits to be killed.
fn be_killed() {
    let far: Arc<Rail> = rail(2);
    let mut pair = QueuePair::new(&far, DEPTH).unwrap();
    let mut card = [0; CARD_BYTES];
    std::io::stdin().read_exact(&mut card).unwrap();
    pair.connect(&Card::decode(&card).unwrap()).unwrap();
    let memory = filled(&pattern(8 * MIB, 3));
    let exposed = Exposed::new(&far, Segments::whole(&memory)).unwrap();
    let name = exposed.remotes()[0];
    let mut line = String::from("\npeer");
    for byte in pair.card().encode() {
        line += &format!(" {byte}");
    }
    println!("{line} {} {}", name.address, name.key);
    // Ends when the parent does, if nobody kills it.
    let _ = std::io::stdin().read(&mut [0]);
}
