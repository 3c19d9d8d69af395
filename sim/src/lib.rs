//! The simulator's home, and that of the tests that need the whole house.
//!
//! Holds nothing that ships. Its tests drive client and node together, which no shipped crate may,
//! and `tests/tidy` holds the rules that every file of the repository obeys.

#![forbid(unsafe_code)]

pub mod counts;
pub mod faults;
