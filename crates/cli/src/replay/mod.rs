//! Public traces of requests over the order of eviction, beside LRU and Belady.
//!
//! Called by the test runner. A request hits the longest run of its blocks, from the first, that
//! the cache holds; every cache here is asked through [`cache::Cache`] and counted by
//! [`cache::replay`], so that their figures mean the same.

mod cache;
mod direct;
mod oracle;
mod policy;
mod trace;
