//! Steps of the scheduler's machine with sixteen requests that decode and save.
//!
//! Called by the list of jobs. Invariant: every run begins with a machine that knows the requests
//! and ends where the next chunk of each has been ordered to be saved.

use anyhow::Result;
use tessera_lifecycle::scheduler::{ScheduledRequest, SchedulerLimits, StepInput};
use tessera_lifecycle::{Axes, GroupKind, GroupSpec, SchedulerConfig, SchedulerRoot, Shape};
use tessera_proto::{Instant, NamespaceDigest, Topology};

use super::{Job, Work};

const REQUESTS: usize = 16;
const BLOCK_TOKENS: u64 = 16;
const CHUNK_TOKENS: u64 = 128;
/// Tokens of each prompt.
const PROMPT_TOKENS: u64 = 8_192;
/// Steps of one token each: one chunk of each request fills up.
const STEPS: u64 = CHUNK_TOKENS;
const NOW: Instant = Instant(1_000_000_000);

/// A chunk of decoding. An operation is an object that is ordered to be saved.
pub(super) const JOB: Job = Job {
    name: "scheduler, 128 steps of 16 requests",
    operations: REQUESTS,
    prepare,
};

fn prepare() -> Result<Work> {
    let group = GroupSpec {
        kind: GroupKind::Full,
        block_tokens: BLOCK_TOKENS,
        replicated: Axes::default(),
    };
    let unit = BLOCK_TOKENS;
    let config = SchedulerConfig {
        namespace: NamespaceDigest([1; 32]),
        shape: Shape::new(vec![group], Some(CHUNK_TOKENS), unit, Topology::SINGLE)?,
        loads: true,
        saves: true,
        lookup_timeout_ms: 100,
        load_timeout_ms: 5_000,
        lease_ms: 30_000,
        incarnation: 5,
        limits: SchedulerLimits::default(),
    };
    let mut root = SchedulerRoot::new(config);
    let prompts = (0..REQUESTS).map(prompt).collect();
    root.step(NOW, &input(prompts));
    Ok(Box::new(move || {
        let mut root = root.clone();
        let mut saved = 0;
        for step in 0..STEPS {
            let requests = (0..REQUESTS).map(|request| decode(request, step));
            let plan = root.step(NOW, &input(requests.collect()));
            saved += plan.saves.len();
            while root.poll_command().is_some() {}
        }
        saved
    }))
}

fn input(scheduled: Vec<ScheduledRequest>) -> StepInput {
    StepInput {
        scheduled,
        ..StepInput::default()
    }
}

fn name(request: usize) -> String {
    format!("request-{request}")
}

fn hash(request: usize, unit: u64) -> Vec<u8> {
    let mut hash = vec![u8::try_from(request).unwrap_or(u8::MAX); 32];
    hash[..8].copy_from_slice(&unit.to_le_bytes());
    hash
}

fn block(request: usize, number: u64) -> u32 {
    u32::try_from(request * 1_024).unwrap_or(0) + u32::try_from(number).unwrap_or(0) + 1
}

/// The step that computes a whole prompt.
fn prompt(request: usize) -> ScheduledRequest {
    let units = 0..PROMPT_TOKENS / BLOCK_TOKENS;
    ScheduledRequest {
        request: name(request),
        whole_tables: true,
        computed_tokens: 0,
        scheduled_tokens: PROMPT_TOKENS,
        blocks: vec![units.clone().map(|unit| block(request, unit)).collect()],
        hashes: units.map(|unit| hash(request, unit)).collect(),
        hashes_from: 0,
    }
}

/// A step that computes one more token: a new block where it begins one, a hash where it ends one.
fn decode(request: usize, step: u64) -> ScheduledRequest {
    let token = PROMPT_TOKENS + step;
    let unit = token / BLOCK_TOKENS;
    let (begins, ends) = (
        token.is_multiple_of(BLOCK_TOKENS),
        (token + 1).is_multiple_of(BLOCK_TOKENS),
    );
    ScheduledRequest {
        request: name(request),
        whole_tables: false,
        computed_tokens: token,
        scheduled_tokens: 1,
        blocks: vec![begins.then(|| block(request, unit)).into_iter().collect()],
        hashes: ends.then(|| hash(request, unit)).into_iter().collect(),
        hashes_from: unit,
    }
}
