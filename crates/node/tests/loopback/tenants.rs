//! Tenants on one node: quotas, who pays, how long objects live, and what STAT says of them.

use tessera_node::{DataConfig, Lifetimes, NodeConfig, StartError, TenantLimits, WritePolicy};
use tessera_proto::message::{GetAnswer, PutStatus};
use tessera_proto::{KeyDigest, ObjectHeader, TenantTag};
use tokio::time::Instant;

use crate::support::{Client, MIB, PATIENCE, config, object, start, stat, stop};

fn with_quotas(named: &[(&str, u64)]) -> NodeConfig {
    let named = named.iter();
    let named = named.map(|(name, bytes)| ((*name).to_owned(), Some(*bytes)));
    NodeConfig {
        tenants: TenantLimits {
            named: named.collect(),
            others: None,
        },
        ..config()
    }
}

fn of(tenant: &str, seed: u64) -> (ObjectHeader, Vec<u8>) {
    let (header, bytes) = object(seed, 100_000);
    let tenant = TenantTag::of(tenant);
    (ObjectHeader { tenant, ..header }, bytes)
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_of_one_tenant_does_not_evict_another_and_both_are_counted() {
    let node = start(with_quotas(&[("team-a", MIB), ("team-c", 99_999)])).await;
    let mut client = Client::connect(node.address()).await;
    for seed in 0..30 {
        let (header, bytes) = of("team-b", seed);
        assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    }
    for seed in 100..200 {
        let (header, bytes) = of("team-a", seed);
        assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
    }
    let (header, bytes) = of("team-c", 300);
    assert_eq!(client.put(header, &bytes).await, PutStatus::NoSpace);
    for seed in 0..30 {
        let (header, _) = of("team-b", seed);
        let (answer, _) = client.get_object(&header).await;
        assert_eq!(answer, GetAnswer::Found(header), "object {seed} of team-b");
    }
    assert_eq!(stat(&node, "tenant_team-a_objects"), 10);
    assert_eq!(stat(&node, "tenant_team-a_bytes"), 1_000_000);
    assert_eq!(stat(&node, "tenant_team-a_evictions"), 90);
    assert_eq!(stat(&node, "tenants_other_objects"), 30);
    assert_eq!(stat(&node, "tenants_other_evictions"), 0);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quota_on_disk_is_one_of_its_own_and_stat_says_what_tenants_hold_there() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let limits = |bytes| TenantLimits {
        named: vec![("team-a".to_owned(), bytes)],
        others: None,
    };
    let config = NodeConfig {
        tenants: limits(None),
        data: Some(DataConfig {
            folders: vec![folder.path().to_owned()],
            bytes: Some(64 * MIB),
            write: WritePolicy::Through,
            tenants: limits(Some(MIB)),
            scrub_bytes_s: 0,
        }),
        ..config()
    };
    let node = start(config).await;
    let mut client = Client::connect(node.address()).await;
    for seed in 0..30 {
        for tenant in ["team-a", "team-b"] {
            let number = if tenant == "team-a" { 0 } else { 100 };
            let (header, bytes) = of(tenant, seed + number);
            assert_eq!(client.put(header, &bytes).await, PutStatus::Stored);
        }
    }
    assert_eq!(
        stat(&node, "tenant_team-a_objects"),
        30,
        "memory is not bounded"
    );
    assert_eq!(stat(&node, "tenant_team-a_disk_objects"), 10);
    assert_eq!(stat(&node, "tenant_team-a_disk_bytes"), 1_000_000);
    assert_eq!(stat(&node, "tenant_team-a_disk_evictions"), 20);
    assert_eq!(stat(&node, "tenants_other_disk_objects"), 30);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn quotas_that_contradict_each_other_are_refused() {
    let twice = with_quotas(&[("a", MIB), ("a", 2 * MIB)]);
    let names: Vec<_> = (0..129).map(|number| format!("t{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), MIB)).collect();
    for config in [twice, with_quotas(&many)] {
        let refused = tessera_node::Node::start(config).await;
        assert!(matches!(refused, Err(StartError::Limits(_))), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn objects_of_a_tenant_are_missing_once_their_time_is_over() {
    let node = start(NodeConfig {
        lifetimes: Lifetimes {
            named: vec![("team-a".to_owned(), 1)],
            others: None,
        },
        ..config()
    })
    .await;
    let mut client = Client::connect(node.address()).await;
    let [brief, lasting] = ["team-a", "team-b"].map(|tenant| of(tenant, 1));
    // One key each: the tenant is no part of these.
    let lasting = (
        ObjectHeader {
            key: KeyDigest([9; 32]),
            ..lasting.0
        },
        lasting.1,
    );
    for (header, bytes) in [&brief, &lasting] {
        assert_eq!(client.put(*header, bytes).await, PutStatus::Stored);
    }
    let deadline = Instant::now() + PATIENCE;
    while let (GetAnswer::Found(_), _) = client.get_object(&brief.0).await {
        assert!(Instant::now() < deadline, "it is found for ever");
    }
    let (answer, _) = client.get_object(&lasting.0).await;
    assert_eq!(answer, GetAnswer::Found(lasting.0));
    assert_eq!(stat(&node, "expired"), 1);
    assert_eq!(client.put(brief.0, &brief.1).await, PutStatus::Stored);
    stop(node).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lifetimes_that_contradict_each_other_or_are_none_are_refused() {
    let named = |named: &[(&str, u32)]| NodeConfig {
        lifetimes: Lifetimes {
            named: named
                .iter()
                .map(|(name, ttl_s)| ((*name).to_owned(), *ttl_s))
                .collect(),
            others: None,
        },
        ..config()
    };
    for config in [named(&[("a", 1), ("a", 2)]), named(&[("a", 0)])] {
        let refused = tessera_node::Node::start(config).await;
        assert!(matches!(refused, Err(StartError::Limits(_))), "{refused:?}");
    }
}
