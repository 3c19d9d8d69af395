//! `tessera replay`: public traces of requests over the order of eviction, beside LRU and Belady.
//!
//! Called by `main`. A request hits the longest run of its blocks, from the first, that the cache
//! holds; every cache here is asked through [`cache::Cache`] and counted by [`cache::replay`], so
//! that their figures mean the same.

mod cache;
mod chart;
mod direct;
mod figures;
mod latency;
mod live;
mod oracle;
#[cfg(test)]
mod policy;
mod run;
mod tiered;
mod trace;

pub(crate) use run::run;
