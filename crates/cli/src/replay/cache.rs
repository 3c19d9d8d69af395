//! What a cache is asked during a replay, and the count of what it answers.
//!
//! Called for the store, for a node and for their oracles.

use anyhow::Result;

use super::trace::{Request, Trace};

/// Something that holds blocks.
pub(crate) trait Cache {
    /// Reads the longest run of `blocks`, from the first, that is here, and takes the rest. Returns
    /// the length of that run.
    fn request(&mut self, blocks: &[u64]) -> Result<usize>;
}

/// What a trace came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tokens asked for,
    pub(crate) tokens: u64,
    /// and of these found.
    pub(crate) hit_tokens: u64,
    /// Blocks found.
    pub(crate) hit_blocks: u64,
    /// What it costs to compute all prompts,
    pub(crate) cost: u64,
    /// and of that spared.
    pub(crate) saved_cost: u64,
}

/// Tokens of a context over which attention costs as much as all the rest: the parameters of a
/// layer over the width that attention works on, four times, for a model of 8 billion parameters.
const ATTENTION_TOKENS: u64 = 32 << 10;

/// What it costs to compute the first `tokens` of a prompt: each of them costs the same, and
/// attention over those before it on top. In parts of a token's own cost, `2 * ATTENTION_TOKENS` of
/// them, so that it is a whole number.
fn cost(tokens: u64) -> u64 {
    tokens * (2 * ATTENTION_TOKENS + tokens)
}

impl Tally {
    /// Tokens found, in percent of those asked for.
    pub(crate) fn percent(&self) -> f64 {
        100.0 * self.hit_tokens as f64 / self.tokens.max(1) as f64
    }

    /// Computing spared, in percent of what all prompts cost.
    pub(crate) fn saved_percent(&self) -> f64 {
        100.0 * self.saved_cost as f64 / self.cost.max(1) as f64
    }

    /// The same as it is printed: hundredths of a percent, rounded.
    #[cfg(test)]
    pub(crate) fn rounded(&self) -> String {
        format!("{:.2}", self.percent())
    }
}

/// Asks `cache` for every request in its order; `done` is told after each.
pub(crate) fn replay(
    trace: &Trace,
    cache: &mut impl Cache,
    mut done: impl FnMut(&Request),
) -> Result<Tally> {
    let mut tally = Tally::default();
    for request in &trace.requests {
        let blocks = cache.request(&request.blocks)?;
        tally.tokens += request.tokens;
        let hit_tokens = request.tokens_of(blocks);
        tally.hit_tokens += hit_tokens;
        tally.hit_blocks += blocks as u64;
        tally.cost += cost(request.tokens);
        tally.saved_cost += cost(hit_tokens);
        done(request);
    }
    Ok(tally)
}
