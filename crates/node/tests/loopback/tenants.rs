//! Tenants on one node: quotas, who pays, and what STAT says of them.

use tessera_node::{NodeConfig, StartError, TenantLimits};
use tessera_proto::message::{GetAnswer, PutStatus};
use tessera_proto::{ObjectHeader, TenantTag};

use crate::support::{Client, MIB, config, object, start, stat, stop};

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
async fn quotas_that_contradict_each_other_are_refused() {
    let twice = with_quotas(&[("a", MIB), ("a", 2 * MIB)]);
    let names: Vec<_> = (0..129).map(|number| format!("t{number}")).collect();
    let many: Vec<_> = names.iter().map(|name| (name.as_str(), MIB)).collect();
    for config in [twice, with_quotas(&many)] {
        let refused = tessera_node::Node::start(config).await;
        assert!(matches!(refused, Err(StartError::Limits(_))), "{refused:?}");
    }
}
