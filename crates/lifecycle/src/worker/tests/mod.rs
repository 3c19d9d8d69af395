//! The worker's machine: named cases, and random histories that must come to their end.

mod cases;
mod fences;
mod parts;
mod random;
mod scene;
