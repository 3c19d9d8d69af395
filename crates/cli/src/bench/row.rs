//! One line of the result: a figure, what it was measured against, what it must be.

use serde::Serialize;

/// `value`, `must` and `reach` share a unit; `floor` is the absolute figure that the value was
/// measured against.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    /// Operation, block size, requests in flight.
    pub(crate) name: String,
    /// What was measured.
    pub(crate) value: f64,
    /// Of value, must and reach.
    pub(crate) unit: &'static str,
    /// The floor in its own unit, GB/s or us; none where there is none.
    pub(crate) floor: Option<f64>,
    /// What this release must hold.
    pub(crate) must: Option<f64>,
    /// What the design reaches for.
    pub(crate) reach: Option<f64>,
    /// Whether more is better.
    pub(crate) higher: bool,
    /// The absolute figure for people.
    #[serde(skip)]
    pub(crate) absolute: String,
}

impl Row {
    /// Whether the row holds what this release must hold.
    pub(crate) fn holds(&self) -> bool {
        self.must.is_none_or(|must| {
            if self.higher {
                self.value >= must
            } else {
                self.value <= must
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_holds_in_the_direction_that_is_better() {
        let row = |value, higher| Row {
            name: String::new(),
            value,
            unit: "x",
            floor: None,
            must: Some(1.0),
            reach: None,
            higher,
            absolute: String::new(),
        };
        assert!(row(1.1, true).holds() && !row(0.9, true).holds());
        assert!(row(0.9, false).holds() && !row(1.1, false).holds());
    }
}
