//! By how much values have changed since they were last read.
//!
//! Called by both sides once a step, on the model's own time: Python is handed the names that
//! changed and no others, and in most steps there are none.

use std::collections::HashMap;

use parking_lot::Mutex;

/// The values at the last reading, in the order in which the driver names them.
#[derive(Default)]
pub(crate) struct Meter(Mutex<Vec<u64>>);

impl Meter {
    /// What changed since the last call; `None` if nothing did. Gauges may fall.
    pub(crate) fn changes(
        &self,
        named: &[(&'static str, u64)],
    ) -> Option<HashMap<&'static str, i64>> {
        let mut last = self.0.lock();
        last.resize(named.len(), 0);
        let mut changes = HashMap::new();
        for ((name, now), before) in named.iter().zip(last.iter_mut()) {
            if now != before {
                changes.insert(*name, now.wrapping_sub(*before).cast_signed());
                *before = *now;
            }
        }
        (!changes.is_empty()).then_some(changes)
    }
}
