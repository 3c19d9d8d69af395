//! The requests of a trace in Mooncake's format, one JSON object a line.
//!
//! Called by the replay. `hash_ids` names the blocks of 512 tokens of a prompt, in
//! order; two requests with the same beginning have the same first ids. The last block may be
//! shorter, and a line whose ids do not cover its tokens exactly is refused.

use std::collections::HashSet;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

/// Tokens of a block.
pub(crate) const BLOCK_TOKENS: u64 = 512;

/// One prompt.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq)]
pub(crate) struct Request {
    /// Its tokens.
    #[serde(rename = "input_length")]
    pub(crate) tokens: u64,
    /// Its blocks, the first one first.
    #[serde(rename = "hash_ids")]
    pub(crate) blocks: Vec<u64>,
}

/// All requests, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Trace {
    pub(crate) requests: Vec<Request>,
}

impl Trace {
    /// Reads a file.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("reading the trace {}", path.display()))?;
        Self::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        if text.starts_with("TIMESTAMP,") {
            bail!(
                "this trace names lengths only: without the identity of blocks nothing can be hit; \
                 give one in Mooncake's format, with hash_ids on each line"
            );
        }
        let lines = text.lines().enumerate();
        let requests = lines.map(|(at, line)| {
            let request: Request = serde_json::from_str(line)
                .with_context(|| format!("line {} is not a request", at + 1))?;
            ensure!(
                request.blocks.len() as u64 == request.tokens.div_ceil(BLOCK_TOKENS),
                "line {}: {} hash_ids do not cover {} tokens at {BLOCK_TOKENS} each",
                at + 1,
                request.blocks.len(),
                request.tokens
            );
            Ok(request)
        });
        let requests: Vec<_> = requests.collect::<Result<_>>()?;
        ensure!(!requests.is_empty(), "the trace is empty");
        Ok(Self { requests })
    }

    /// Tokens of all prompts.
    pub(crate) fn tokens(&self) -> u64 {
        self.requests.iter().map(|request| request.tokens).sum()
    }

    /// Blocks of all prompts.
    pub(crate) fn blocks(&self) -> u64 {
        self.requests
            .iter()
            .map(|request| request.blocks.len() as u64)
            .sum()
    }

    /// Different blocks: the working set.
    pub(crate) fn unique_blocks(&self) -> u64 {
        let blocks = self.requests.iter().flat_map(|request| &request.blocks);
        blocks.collect::<HashSet<_>>().len() as u64
    }
}

impl Request {
    /// Tokens of its first `blocks` blocks.
    pub(crate) fn tokens_of(&self, blocks: usize) -> u64 {
        self.tokens.min(blocks as u64 * BLOCK_TOKENS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_block_counts_with_its_real_length() {
        let line = r#"{"timestamp":0,"input_length":1030,"output_length":9,"hash_ids":[7,8,9]}"#;
        let trace = Trace::parse(line).expect("a request");
        let request = &trace.requests[0];
        let tokens: Vec<_> = (0..=3).map(|blocks| request.tokens_of(blocks)).collect();
        assert_eq!(tokens, [0, 512, 1024, 1030]);
        assert_eq!((trace.tokens(), trace.unique_blocks()), (1030, 3));
    }

    #[test]
    fn what_cannot_be_replayed_is_refused_with_the_reason() {
        for (text, reason) in [
            ("TIMESTAMP,ContextTokens,GeneratedTokens\n", "hash_ids"),
            ("{}", "line 1"),
            (r#"{"input_length":1025,"hash_ids":[7,8]}"#, "1025 tokens"),
            ("", "empty"),
        ] {
            let refused = format!("{:#}", Trace::parse(text).expect_err(text));
            assert!(refused.contains(reason), "{refused}");
        }
    }
}
