//! The tidy test: what the house demands of its own text, held mechanically.
//!
//! Each module holds one kind of rule as a pure function from the tree to a list of complaints, a
//! test that the tree gives none, and tests that bad samples do: what cannot complain is no rule.

#![forbid(unsafe_code)]

mod acceptance;
mod documents;
mod imports;
mod limits;
mod names;
mod purity;
mod shape;
mod tree;
mod words;
