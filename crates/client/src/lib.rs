//! Placeholder, replaced at once.
#![forbid(unsafe_code)]

pub mod geometry;
pub mod local;
pub mod options;
pub mod weights;
