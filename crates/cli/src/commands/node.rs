//! `tessera node`: runs one node until it is told to stop.
//!
//! Prints `listening on ADDRESS` on standard output when clients can connect, and nothing else
//! there: scripts and the connector wait for that line. The log goes to standard error.

use std::collections::BTreeSet;
use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use sysinfo::System;
use tessera_node::{
    Admission, DataConfig, Lifetimes, Node, NodeConfig, RunningNode, StopReason, TenantLimits,
    WritePolicy,
};
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};

use crate::args::{AdmissionMode, NodeArguments, WriteMode};
use crate::units::{Quota, Ttl, format_size};

/// With `--write back`, the share of memory that may wait to be written is one in this many.
const DIRTY_SHARE: u64 = 8;
/// For threads of the runtime to end by themselves.
const LINGER: Duration = Duration::from_millis(100);

/// Runs the node; returns when it is over.
pub(crate) fn run(arguments: NodeArguments) -> Result<()> {
    raise_open_files();
    let NodeArguments {
        listen,
        ram,
        data,
        disk,
        write,
        admission,
        scrub,
        quota,
        disk_quota,
        ttl,
        insecure,
        idle_exit,
        lock,
    } = arguments;
    check_memory(ram)?;
    let (in_ram, on_disk) = tenants(&quota, &disk_quota)?;
    let write = policy((write, admission), ram)?;
    let data = (!data.is_empty()).then_some(DataConfig {
        folders: data,
        bytes: disk,
        write,
        tenants: on_disk,
        scrub_bytes_s: scrub,
    });
    let config = NodeConfig {
        data,
        tenants: in_ram,
        lifetimes: lifetimes(ttl)?,
        insecure,
        idle_exit,
        lock,
        ..NodeConfig::new(listen, ram)
    };
    let runtime = Runtime::new().context("starting the runtime")?;
    let outcome = runtime.block_on(serve(config));
    // A node that was stopped while it took its memory still does so: nobody waits for that.
    runtime.shutdown_timeout(LINGER);
    outcome
}

/// Memory that is not there must not be found out by the system's killer of processes, which may
/// choose another victim.
fn check_memory(wanted: u64) -> Result<()> {
    let mut system = System::new();
    system.refresh_memory();
    // Of a control group only the limit: what counts as used there includes cached files.
    let group = system.cgroup_limits();
    let limit = group.map_or(u64::MAX, |limits| limits.total_memory);
    let available = limit.min(system.available_memory());
    anyhow::ensure!(
        wanted <= available,
        "--ram {} is more than the {} that are available here: choose less, or end what uses them",
        format_size(wanted),
        format_size(available)
    );
    Ok(())
}

/// The limits of memory and of the disks. Who has one in either has a name in both.
fn tenants(quotas: &[Quota], disk_quotas: &[Quota]) -> Result<(TenantLimits, TenantLimits)> {
    let names = quotas.iter().chain(disk_quotas);
    let names: BTreeSet<_> = names.filter_map(|(name, _)| name.as_ref()).collect();
    let limits = |option: &str, quotas: &[Quota]| {
        let mut others = quotas.iter().filter(|(name, _)| name.is_none());
        let other = others.next().map(|(_, bytes)| *bytes);
        anyhow::ensure!(
            others.next().is_none(),
            "{option} *= is given twice: give it once"
        );
        let given: Vec<_> = quotas
            .iter()
            .filter_map(|(name, _)| name.as_ref())
            .collect();
        let once: BTreeSet<_> = given.iter().collect();
        anyhow::ensure!(
            once.len() == given.len(),
            "{option}: a tenant is given twice"
        );
        let of = |wanted: &String| {
            let own = quotas
                .iter()
                .find(|(name, _)| name.as_ref() == Some(wanted));
            own.map(|(_, bytes)| *bytes).or(other)
        };
        let named = names.iter().map(|name| ((*name).clone(), of(name)));
        anyhow::Ok(TenantLimits {
            named: named.collect(),
            others: other,
        })
    };
    Ok((
        limits("--quota", quotas)?,
        limits("--disk-quota", disk_quotas)?,
    ))
}

fn lifetimes(ttls: Vec<Ttl>) -> Result<Lifetimes> {
    let mut lifetimes = Lifetimes::default();
    for (tenant, ttl_s) in ttls {
        match tenant {
            Some(tenant) => lifetimes.named.push((tenant, ttl_s)),
            None => {
                let before = lifetimes.others.replace(ttl_s);
                anyhow::ensure!(before.is_none(), "--ttl without a tenant is given twice");
            }
        }
    }
    Ok(lifetimes)
}

fn policy((write, admission): (WriteMode, AdmissionMode), ram_bytes: u64) -> Result<WritePolicy> {
    let admission = match admission {
        AdmissionMode::All => Admission::All,
        AdmissionMode::SecondTouch => Admission::SecondTouch,
    };
    anyhow::ensure!(
        admission == Admission::All || write == WriteMode::Back,
        "--admission second-touch leaves objects out, and --write through or synced acknowledges \
         none before it is written: give --write back, or --admission all"
    );
    Ok(match write {
        WriteMode::Through => WritePolicy::Through,
        WriteMode::Synced => WritePolicy::Synced,
        WriteMode::Back => WritePolicy::Back {
            dirty_bytes_max: ram_bytes / DIRTY_SHARE,
            admission,
        },
    })
}

async fn serve(config: NodeConfig) -> Result<()> {
    // Before the memory is taken, so that an impatient operator is heard.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // A write beyond a limit on files fails, as that of a failing disk does, and ends no node.
    let _fails = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?;
    let mut node = tokio::select! {
        started = Node::start(config) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    announce(&node);
    let reason = tokio::select! {
        reason = node.wait() => reason,
        _ = terminate.recv() => stop(&mut node).await,
        _ = interrupt.recv() => stop(&mut node).await,
    };
    tracing::info!(?reason, "stopped");
    Ok(())
}

async fn stop(node: &mut RunningNode) -> StopReason {
    node.shutdown();
    node.wait().await
}

/// A node that nobody hears serves all the same: the reader of the line may be gone, as after
/// `tessera node | head -1`, and the file it goes to may be on a full disk.
fn announce(node: &RunningNode) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "listening on {}", node.address()).and_then(|()| out.flush());
}

/// Each connection is a file; the soft limit of most shells is below what a node takes.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit on open files stays at {:?}", limit.current);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quota(name: &str, bytes: u64) -> Quota {
        ((name != "*").then(|| name.to_owned()), bytes)
    }

    #[test]
    fn tenant_with_a_limit_in_one_tier_has_a_name_in_both_and_there_that_of_others() {
        let in_ram = [quota("a", 1), quota("*", 2)];
        let (in_ram, on_disk) = tenants(&in_ram, &[quota("b", 3)]).expect("no contradiction");
        let named = |limits: [(&str, Option<u64>); 2]| {
            let limits = limits.map(|(name, bytes)| (name.to_owned(), bytes));
            limits.to_vec()
        };
        assert_eq!(in_ram.named, named([("a", Some(1)), ("b", Some(2))]));
        assert_eq!(on_disk.named, named([("a", None), ("b", Some(3))]));
        assert_eq!((in_ram.others, on_disk.others), (Some(2), None));
    }

    #[test]
    fn limit_that_is_given_twice_is_refused() {
        for twice in [
            [quota("a", 1), quota("a", 2)],
            [quota("*", 1), quota("*", 2)],
        ] {
            assert!(tenants(&twice, &[]).is_err());
            assert!(tenants(&[], &twice).is_err());
        }
        assert!(lifetimes(vec![(None, 1), (None, 2)]).is_err());
    }

    #[test]
    fn what_is_acknowledged_as_written_is_never_left_out() {
        use AdmissionMode::{All, SecondTouch};
        let policy = |write, admission| policy((write, admission), 80);
        for write in [WriteMode::Through, WriteMode::Synced] {
            let refused = policy(write, SecondTouch).expect_err("it would be lost");
            assert!(refused.to_string().contains("--write back"), "{refused}");
            assert!(policy(write, All).is_ok());
        }
        let back = policy(WriteMode::Back, SecondTouch).expect("nothing is promised");
        let expected = WritePolicy::Back {
            dirty_bytes_max: 10,
            admission: Admission::SecondTouch,
        };
        assert_eq!(back, expected);
    }
}
