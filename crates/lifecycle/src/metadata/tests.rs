//! Plans survive the way; damaged ones are refused without a panic.

use proptest::prelude::*;

use super::*;
use crate::handover::{End, HandoverBlock};
use crate::ids::{Attempt, RequestKey};
use crate::peer::Mode;

fn plans() -> impl Strategy<Value = StepPlan> {
    let hash =
        prop::collection::vec(any::<u8>(), 1..40).prop_map(|bytes| ChunkHash::new(&bytes).unwrap());
    let id = (any::<u64>(), any::<u32>()).prop_map(|(request, attempt)| LoadId {
        request: RequestKey(request),
        attempt: Attempt(attempt),
    });
    let blocks = prop::collection::vec(any::<u32>(), 0..8);
    let lease =
        (any::<u32>(), any::<u128>(), any::<u64>()).prop_map(|(node, incarnation, lease)| {
            LeaseOrder {
                node,
                incarnation,
                lease,
            }
        });
    let load = (
        (".{0,12}", id.clone()),
        any::<[u64; 4]>(),
        prop::collection::vec(blocks.clone(), 0..3),
        prop::collection::vec(hash.clone(), 0..3),
        prop::collection::vec(lease, 0..3),
        prop::collection::vec(any::<u16>(), 0..6),
    );
    let load = load.prop_map(|(name, numbers, tables, hashes, leases, lease_of)| {
        let (request, load) = name;
        let [computed, limit, boundary, timeout_ms] = numbers;
        LoadOrder {
            request,
            load,
            computed,
            limit,
            boundary,
            tables,
            hashes,
            leases,
            lease_of,
            timeout_ms,
        }
    });
    let save = (any::<u32>(), hash, blocks).prop_map(|(group, hash, blocks)| SaveOrder {
        group,
        hash,
        blocks,
    });
    (
        (any::<u128>(), any::<u64>()),
        prop::collection::vec(load, 0..3),
        prop::collection::vec(id.clone(), 0..3),
        prop::collection::vec(id, 0..3),
        prop::collection::vec(save, 0..3),
        prop::collection::vec(handovers(), 0..3),
        prop::collection::vec(any::<u128>(), 0..3),
    )
        .prop_map(
            |(made, loads, cancels, preempted, saves, handovers, gone)| {
                let (incarnation, step) = made;
                StepPlan {
                    incarnation,
                    step,
                    loads,
                    cancels,
                    preempted,
                    saves,
                    handovers,
                    handovers_cancelled: gone,
                }
            },
        )
}

fn handovers() -> impl Strategy<Value = HandoverOrder> {
    let block = any::<(u16, u32, u32)>().prop_map(|(group, local, remote)| HandoverBlock {
        group,
        local,
        remote,
    });
    (
        prop::option::of(".{0,12}"),
        any::<(u128, bool, bool, u64, u64, u64)>(),
        prop::collection::vec((any::<u128>(), ".{0,20}"), 0..3),
        prop::collection::vec(block, 0..5),
    )
        .prop_map(|(request, numbers, workers, blocks)| {
            let (transfer, gives, reads, generation, timeout_ms, lease_ms) = numbers;
            HandoverOrder {
                request,
                transfer,
                end: if gives { End::Gives } else { End::Takes },
                mode: if reads { Mode::Read } else { Mode::Write },
                workers,
                blocks,
                generation,
                timeout_ms,
                lease_ms,
            }
        })
}

proptest! {
    #[test]
    fn a_plan_comes_back_as_it_was(plan in plans()) {
        prop_assert_eq!(StepPlan::decode(&plan.encode()), Ok(plan));
    }

    #[test]
    fn a_damaged_plan_is_an_error_or_another_plan_and_never_a_panic(
        plan in plans(), at in any::<prop::sample::Index>(), bit in 0_u8..8, cut in any::<bool>(),
    ) {
        let mut bytes = plan.encode();
        let at = at.index(bytes.len());
        if cut {
            bytes.truncate(at);
            prop_assert!(StepPlan::decode(&bytes).is_err());
        } else {
            bytes[at] ^= 1 << bit;
            prop_assert_ne!(StepPlan::decode(&bytes), Ok(plan));
        }
    }

    #[test]
    fn random_bytes_are_no_reason_to_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = StepPlan::decode(&bytes);
    }
}

#[test]
fn another_format_is_refused_with_both_versions() {
    let mut bytes = StepPlan::default().encode();
    bytes[0] = 9;
    let error = StepPlan::decode(&bytes).unwrap_err();
    assert_eq!(error, PlanError::Format { got: 9 });
    assert!(error.to_string().contains("install one version"), "{error}");
    assert!(StepPlan::decode(&[]).is_err());
    let mut trailing = StepPlan::default().encode();
    trailing.push(0);
    assert!(StepPlan::decode(&trailing).is_err());
}

#[test]
fn a_plan_that_holds_anything_is_not_empty() {
    let load = LoadId {
        request: RequestKey(1),
        attempt: Attempt(1),
    };
    let save = SaveOrder {
        group: 0,
        hash: ChunkHash::new(&[1]).unwrap(),
        blocks: vec![1],
    };
    let order = HandoverOrder {
        request: None,
        transfer: 1,
        end: End::Gives,
        mode: Mode::Read,
        workers: Vec::new(),
        blocks: Vec::new(),
        generation: 1,
        timeout_ms: 1,
        lease_ms: 1,
    };
    let mut plans = vec![StepPlan::default(); 5];
    plans[0].cancels.push(load);
    plans[1].preempted.push(load);
    plans[2].saves.push(save);
    plans[3].handovers.push(order);
    plans[4].handovers_cancelled.push(1);
    assert!(plans.iter().all(|plan| !plan.is_empty()));
    assert!(StepPlan::default().is_empty());
}

#[test]
fn an_empty_plan_is_small() {
    assert!(StepPlan::default().encode().len() <= 16);
}
