//! The fuzz target of starts on damaged disks: libFuzzer calls it with one input after another.
//!
//! Built and started by the runner (`src/main.rs`), which gives it the coverage flags.
#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| tessera_fuzz::recovery::check(input));
