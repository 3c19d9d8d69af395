//! PRICE over the wire: what is dear to compute stays for longer.

use std::num::NonZeroU32;

use tessera_proto::message::{Presence, Price, PriceAnswer, PutStatus};
use tessera_proto::{Kind, NamespaceDigest, ObjectHeader, ObjectId};

use crate::support::{Client, MIB, config, object, start, stat, stop};

const OBJECT: usize = 1 << 20;
const CHEAP: NamespaceDigest = NamespaceDigest([1; 32]);
const DEAR: NamespaceDigest = NamespaceDigest([2; 32]);

async fn tell(client: &mut Client, namespace: NamespaceDigest, ns_per_kib: u32) {
    let ns_per_kib = NonZeroU32::new(ns_per_kib).expect("a price");
    let price = Price {
        namespace,
        ns_per_kib,
    };
    let reply = client
        .call(Kind::Price, |body| price.encode(body), &[])
        .await;
    assert_eq!(reply.header.kind, Kind::PriceAnswer, "{reply:?}");
    assert_eq!(PriceAnswer::decode(&reply.body), Ok(PriceAnswer));
}

async fn put(client: &mut Client, namespace: NamespaceDigest, seed: u64) -> ObjectId {
    let (header, bytes) = object(seed, OBJECT);
    let header = ObjectHeader {
        namespace,
        ..header
    };
    assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    header.id()
}

/// How many of ten objects are there after twice the memory was written behind them.
async fn left_of_ten(prices: &[(NamespaceDigest, u32)]) -> usize {
    let node = start(config()).await;
    let mut client = Client::connect(node.address()).await;
    for (namespace, ns_per_kib) in prices {
        tell(&mut client, *namespace, *ns_per_kib).await;
    }
    let mut ids = Vec::new();
    for seed in 0..10 {
        ids.push(put(&mut client, DEAR, seed).await);
    }
    for seed in 100..100 + 128 * MIB / OBJECT as u64 {
        put(&mut client, CHEAP, seed).await;
    }
    let items = client.acquire(ids, 10_000).await.items;
    let held = items.iter().filter(|item| item.presence == Presence::Held);
    let left = held.count();
    assert_eq!(stat(&node, "requests_price"), prices.len() as u64);
    stop(node).await;
    left
}

#[tokio::test(flavor = "multi_thread")]
async fn dear_objects_outlive_what_is_written_behind_them_if_the_node_knows_both_prices() {
    assert_eq!(left_of_ten(&[(DEAR, 4_096), (CHEAP, 512)]).await, 10);
    assert_eq!(left_of_ten(&[(CHEAP, 4_096), (DEAR, 512)]).await, 0);
    assert_eq!(left_of_ten(&[]).await, 0);
}
