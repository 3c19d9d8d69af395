//! Every message of the wire, over a real socket, against a node in this process.

use crate::support::{
    Client, MIB, config, lease_of, object, put_frame, raw, roomy, start, stat, stop, until_stat,
    write,
};
use tessera_proto::message::{
    Get, GetAnswer, GetStatus, Ping, Presence, Put, PutStatus, Refusal, Release, ReleaseAnswer,
    Remove, RemoveAnswer, RemoveItem, Stat, StatAnswer,
};
use tessera_proto::{Kind, LeaseId, ObjectId, WriteId};
use tokio::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread")]
async fn an_object_comes_back_as_it_was_stored_whatever_its_length() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    for (seed, length) in [1, 2, 63, 4_096, 65_536, 1_000_001, 8 << 20]
        .into_iter()
        .enumerate()
    {
        let (header, bytes) = object(seed as u64, length);
        assert_eq!(
            client.put(header, &bytes).await,
            PutStatus::Stored,
            "{length} bytes"
        );
        let (answer, received) = client.get_object(&header).await;
        assert_eq!(answer, GetAnswer::Found(header), "{length} bytes");
        assert!(received == bytes, "{length} bytes came back different");
    }
    assert_eq!(stat(&node, "put_stored"), 7);
    assert_eq!(stat(&node, "get_found"), 7);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_second_writer_is_told_that_the_object_existed() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 10_000);
    assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    assert_eq!(client.put(header, &bytes).await, PutStatus::Existed);
    assert_eq!(stat(&node, "objects"), 1);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_or_mislabelled_bytes_are_never_visible_and_the_connection_goes_on() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let (header, mut bytes) = object(1, 100_000);
    bytes[77_777] ^= 1;
    assert_eq!(client.put(header, &bytes).await, PutStatus::Corrupt);
    let (answer, _) = client.get_object(&header).await;
    assert_eq!(answer, GetAnswer::Absent(GetStatus::Missing));
    assert_eq!(stat(&node, "integrity_failures"), 1);
    assert_eq!(client.put(header, &bytes[1..]).await, PutStatus::Mismatch);
    bytes[77_777] ^= 1;
    assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    assert_eq!(stat(&node, "unpublished_bytes"), 0);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_object_over_the_limit_is_refused_and_the_connection_goes_on() {
    let mut config = config();
    // No budget for it either: too large is for ever and must not read as busy.
    config.limits.object_bytes = MIB;
    config.limits.unpublished_bytes = 4 * MIB / 3 + 4;
    let node = start(config).await;
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, (1 << 20) + 100);
    assert_eq!(client.put(header, &bytes).await, PutStatus::TooLarge);
    let (header, bytes) = object(2, 1 << 20);
    assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_with_room_for_another_length_gets_no_payload() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 5_000);
    client.put(header, &bytes).await;
    for length_bytes in [4_999, 5_001] {
        let (answer, payload) = client
            .get(Get {
                id: header.id(),
                lease: None,
                length_bytes,
            })
            .await;
        assert_eq!(answer, GetAnswer::Absent(GetStatus::Length));
        assert!(payload.is_empty());
    }
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_holds_what_it_found_until_it_is_released() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let (first, bytes) = object(1, 5_000);
    client.put(first, &bytes).await;
    let (second, bytes) = object(2, 6_000);
    client.put(second, &bytes).await;
    let absent = ObjectId([9; 16]);
    let answer = client
        .acquire(vec![first.id(), absent, second.id()], 60_000)
        .await;
    let found: Vec<_> = answer
        .items
        .iter()
        .map(|item| (item.presence, item.length_bytes))
        .collect();
    assert_eq!(
        found,
        [
            (Presence::Held, 5_000),
            (Presence::Missing, 0),
            (Presence::Held, 6_000)
        ]
    );
    assert_eq!(stat(&node, "leased_bytes"), 11_000);

    let lease = lease_of(&answer);
    let get = Get {
        id: second.id(),
        lease: Some(lease),
        length_bytes: 6_000,
    };
    let (answer, payload) = client.get(get).await;
    assert_eq!(answer, GetAnswer::Found(second));
    assert!(payload == bytes);

    for (ids, released, leased_bytes) in
        [(vec![first.id()], 1, 6_000), (vec![], 1, 0), (vec![], 0, 0)]
    {
        let release = Release { lease, ids };
        let reply = client
            .call(Kind::Release, |body| release.encode(body), &[])
            .await;
        let answer = ReleaseAnswer::decode(&reply.body).expect("an answer to RELEASE");
        assert_eq!(answer.released, released);
        assert_eq!(stat(&node, "leased_bytes"), leased_bytes);
    }
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_read_under_an_unknown_lease_of_a_missing_object_says_that_the_lease_is_over() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let get = Get {
        id: ObjectId([9; 16]),
        lease: LeaseId::new(12_345),
        length_bytes: 1,
    };
    assert_eq!(
        client.get(get).await.0,
        GetAnswer::Absent(GetStatus::LeaseOver)
    );
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_removal_is_final_and_hits_only_the_write_that_it_names() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 5_000);
    client.put(header, &bytes).await;
    let other = WriteId(header.write.0 + 1);
    for (write, removed) in [
        (Some(other), false),
        (Some(header.write), true),
        (None, false),
    ] {
        let remove = Remove {
            items: vec![RemoveItem {
                id: header.id(),
                write,
            }],
        };
        let reply = client
            .call(Kind::Remove, |body| remove.encode(body), &[])
            .await;
        let answer = RemoveAnswer::decode(&reply.body).expect("an answer to REMOVE");
        assert_eq!(answer.removed, [removed], "{write:?}");
    }
    let (answer, _) = client.get_object(&header).await;
    assert_eq!(answer, GetAnswer::Absent(GetStatus::Missing));
    assert_eq!(stat(&node, "integrity_failures"), 1);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn stat_and_ping_answer_over_the_wire() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let reply = client
        .call(Kind::Ping, |body| Ping { nonce: 42 }.encode(body), &[])
        .await;
    assert_eq!(Ping::decode(&reply.body), Ok(Ping { nonce: 42 }));
    let reply = client.call(Kind::Stat, |body| Stat.encode(body), &[]).await;
    let answer = StatAnswer::decode(&reply.body).expect("an answer to STAT");
    let value = |name: &str| {
        answer
            .entries
            .iter()
            .find(|entry| entry.name == name)
            .map(|entry| entry.value)
    };
    assert_eq!(value("requests_ping"), Some(1));
    assert_eq!(value("connections"), Some(1));
    for name in [
        "hits",
        "misses",
        "evictions",
        "leased_bytes",
        "integrity_failures",
    ] {
        assert!(value(name).is_some(), "{name} is missing: {answer:?}");
    }
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_requests_in_flight_are_all_answered() {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 100_000);
    client.put(header, &bytes).await;
    let get = Get {
        id: header.id(),
        lease: None,
        length_bytes: 100_000,
    };
    let mut waiting = std::collections::HashSet::new();
    for _ in 0..64 {
        waiting.insert(
            client
                .request(Kind::Get, |body| get.encode(body), &[])
                .await,
        );
        waiting.insert(
            client
                .request(Kind::Ping, |body| Ping { nonce: 1 }.encode(body), &[])
                .await,
        );
    }
    while !waiting.is_empty() {
        let reply = client.reply().await;
        assert!(
            waiting.remove(&reply.header.request),
            "answered twice: {reply:?}"
        );
        assert!(reply.payload.is_empty() || reply.payload == bytes);
    }
    stop(node).await;
}

/// The sockets hold less than the first object, so the last answer waits until its reader has left.
#[tokio::test(flavor = "multi_thread")]
async fn an_answer_past_its_deadline_is_refused_without_its_payload() {
    let node = start(roomy()).await;
    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(1, 16 << 20);
    client.put(header, &bytes).await;
    let get = Get {
        id: header.id(),
        lease: None,
        length_bytes: header.length_bytes,
    };
    client
        .request(Kind::Get, |body| get.encode(body), &[])
        .await;
    client.deadline_ms = 30;
    client
        .request(Kind::Get, |body| get.encode(body), &[])
        .await;
    until_stat(&node, "requests_get", 2).await;
    let over = Instant::now() + Duration::from_millis(31);
    tokio::time::sleep_until(over).await;
    assert!(client.reply().await.payload == bytes);
    assert_eq!(client.reply().await.refusal().reason, Refusal::Deadline);
    assert_eq!(stat(&node, "refused_deadline"), 1);
    stop(node).await;
}

/// Three connections receive all but the last byte of an object each, which is all that large
/// objects may take.
#[tokio::test(flavor = "multi_thread")]
async fn over_the_budget_of_unpublished_bytes_a_put_is_busy_and_the_connection_goes_on() {
    let mut config = config();
    config.limits.object_bytes = MIB;
    config.limits.unpublished_bytes = 4 * MIB;
    let node = start(config).await;
    let mut slow = Vec::new();
    for seed in 0..3 {
        let (header, bytes) = object(seed, 1 << 20);
        let frame = put_frame(header, &bytes);
        let (last, most) = frame.split_last().expect("a frame");
        let mut writer = raw(node.address()).await;
        write(&mut writer, most).await;
        slow.push((writer, *last));
    }
    until_stat(&node, "unpublished_bytes", 3 * MIB).await;

    let mut client = Client::connect(node.address()).await;
    let (header, bytes) = object(10, 300 << 10);
    let reply = client
        .call(Kind::Put, |body| Put { header }.encode(body), &bytes)
        .await;
    assert_eq!(reply.refusal().reason, Refusal::Busy);
    assert_eq!(stat(&node, "refused_busy_bytes"), 1);
    // Small ones find room all the same.
    let (small, small_bytes) = object(11, 200 << 10);
    assert_eq!(client.put(small, &small_bytes).await, PutStatus::Stored);

    let (writer, last) = &mut slow[0];
    write(writer, &[*last]).await;
    until_stat(&node, "put_stored", 2).await;
    assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    stop(node).await;
}

/// What one client leases leaves the other half to the others.
#[tokio::test(flavor = "multi_thread")]
async fn one_connection_leases_half_of_what_all_may() {
    let node = start(config()).await;
    let mut first = Client::connect(node.address()).await;
    let mut second = Client::connect(node.address()).await;
    let mut ids = Vec::new();
    for seed in 0..50 {
        let (header, bytes) = object(seed, 1 << 20);
        assert_eq!(first.put(header, &bytes).await, PutStatus::Stored);
        ids.push(header.id());
    }
    let held = |answer: &tessera_proto::message::AcquireAnswer| {
        let held = answer.items.iter();
        held.filter(|item| item.presence == Presence::Held).count()
    };
    assert_eq!(held(&first.acquire(ids.clone(), 60_000).await), 16);
    ids.reverse();
    assert_eq!(held(&second.acquire(ids, 60_000).await), 16);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_number_has_one_name_and_an_unused_node_has_counted_nothing() {
    let node = start(config()).await;
    let entries = node.stat();
    let names: std::collections::HashSet<_> = entries.iter().map(|entry| &entry.name).collect();
    assert_eq!(names.len(), entries.len(), "a name came twice: {entries:?}");
    let gauges = ["uptime_ms", "capacity_bytes", "free_bytes"];
    for entry in entries
        .iter()
        .filter(|entry| !gauges.contains(&entry.name.as_str()))
    {
        assert_eq!(entry.value, 0, "{}", entry.name);
    }
    stop(node).await;
}
