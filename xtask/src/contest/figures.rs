//! What the repeats say: medians, and ratios of repeats of one round.
//!
//! Called by the run. Invariant: a ratio is of two repeats of the same round, one after the other.

use serde_json::{Value, json};

use super::SYSTEMS;

/// Bytes of a pass, which every contestant knows as well.
const SET_BYTES: f64 = (256_u64 << 20) as f64;

/// One repeat of a row by one system.
pub(super) struct Pass {
    pub(super) row: String,
    pub(super) system: &'static str,
    pub(super) seconds: f64,
}

/// A system without figures, or without all of them.
pub(super) struct Skipped {
    pub(super) system: &'static str,
    pub(super) reason: String,
}

/// All repeats, in the order in which they were made.
#[derive(Default)]
pub(super) struct Figures {
    passes: Vec<Pass>,
}

/// What a row says of a system.
pub(super) struct Figure {
    /// Median, GB/s.
    pub(super) speed: f64,
    /// Median of the ratios to the raw socket.
    pub(super) of_socket: Option<f64>,
    /// Median of how many times as fast ours was.
    pub(super) ours: Option<f64>,
}

impl Figures {
    pub(super) fn add(&mut self, pass: Pass) {
        self.passes.push(pass);
    }

    /// The rows, in order.
    pub(super) fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = Vec::new();
        for pass in &self.passes {
            if !names.contains(&pass.row.as_str()) {
                names.push(&pass.row);
            }
        }
        names
    }

    /// What `row` says of `system`, if it took part to the end.
    pub(super) fn figure(&self, row: &str, system: &str) -> Option<Figure> {
        let seconds = self.seconds(row, system);
        let speeds: Vec<_> = seconds
            .iter()
            .map(|seconds| SET_BYTES / seconds / 1e9)
            .collect();
        let ratio = |over: &str, upside_down: bool| {
            let others = self.seconds(row, over);
            if others.len() != seconds.len() {
                return None;
            }
            let pairs = others.iter().zip(&seconds);
            let ratios = pairs.map(|(other, own)| match upside_down {
                true => own / other,
                false => other / own,
            });
            median(ratios.collect())
        };
        Some(Figure {
            speed: median(speeds)?,
            of_socket: ratio(SYSTEMS[0].name, false),
            ours: ratio(SYSTEMS[1].name, true),
        })
    }

    fn seconds(&self, row: &str, system: &str) -> Vec<f64> {
        let own = |pass: &&Pass| pass.row == row && pass.system == system;
        self.passes
            .iter()
            .filter(own)
            .map(|pass| pass.seconds)
            .collect()
    }

    /// For people: GB/s of each system in each row, and how many times as fast ours is.
    pub(super) fn table(&self, skipped: &[Skipped]) -> String {
        let mut text = format!("{:<14}", "GB/s");
        for system in &SYSTEMS {
            text.push_str(&format!("{:>16}", system.name));
        }
        for row in self.names() {
            text.push_str(&format!("\n{row:<14}"));
            for system in &SYSTEMS {
                let cell = self.figure(row, system.name).map_or_else(
                    || "-".to_owned(),
                    |figure| match figure.ours {
                        Some(ours) if system.name != SYSTEMS[1].name => {
                            format!("{:.2} ({ours:.1}x)", figure.speed)
                        }
                        _ => format!("{:.2}", figure.speed),
                    },
                );
                text.push_str(&format!("{cell:>16}"));
            }
        }
        text.push_str("\n(Nx): how many times as fast tessera was in the same rounds");
        for system in &SYSTEMS {
            text.push_str(&format!("\n{:<16}{}", system.name, system.transport));
        }
        for Skipped { system, reason } in skipped {
            text.push_str(&format!("\nskipped: {system}: {reason}"));
        }
        text
    }

    /// For programs: rows as those of the other families.
    pub(super) fn rows(&self) -> Vec<Value> {
        let mut rows = Vec::new();
        for row in self.names() {
            for system in &SYSTEMS {
                let Some(figure) = self.figure(row, system.name) else {
                    continue;
                };
                let floor = self.figure(row, SYSTEMS[0].name).map(|floor| floor.speed);
                rows.push(json!({
                    "name": format!("{row}, {}", system.name),
                    "value": figure.of_socket,
                    "unit": "of raw socket",
                    "floor": floor,
                    "must": null,
                    "reach": null,
                    "higher": true,
                    "gb_s": figure.speed,
                    "tessera_times": figure.ours,
                    "transport": system.transport,
                }));
            }
        }
        rows
    }
}

/// Whoever was skipped, for programs.
pub(super) fn skipped_json(skipped: &[Skipped]) -> Value {
    skipped
        .iter()
        .map(|skipped| json!({"system": skipped.system, "reason": skipped.reason}))
        .collect()
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(passes: &[(&'static str, f64)]) -> Figures {
        let passes = passes.iter().map(|(system, seconds)| Pass {
            row: "get 1MiB x8".to_owned(),
            system,
            seconds: *seconds,
        });
        Figures {
            passes: passes.collect(),
        }
    }

    #[test]
    fn ratios_are_of_rounds_and_not_of_medians() {
        // The machine was twice as slow in the second round, for all alike.
        let figures = figures(&[
            ("socket", 1.0),
            ("tessera", 2.0),
            ("redis", 4.0),
            ("socket", 2.0),
            ("tessera", 4.0),
            ("redis", 8.0),
        ]);
        let redis = figures.figure("get 1MiB x8", "redis").unwrap();
        assert!((redis.of_socket.unwrap() - 0.25).abs() < 1e-9);
        assert!((redis.ours.unwrap() - 2.0).abs() < 1e-9);
        let speed = (SET_BYTES / 4.0 + SET_BYTES / 8.0) / 2.0 / 1e9;
        assert!((redis.speed - speed).abs() < 1e-9);
    }

    #[test]
    fn a_system_that_left_in_the_middle_of_a_row_has_no_ratio_there() {
        let figures = figures(&[("socket", 1.0), ("redis", 1.0), ("socket", 1.0)]);
        let redis = figures.figure("get 1MiB x8", "redis").unwrap();
        assert!(redis.of_socket.is_none());
        assert!(figures.figure("get 1MiB x8", "mooncake").is_none());
    }

    #[test]
    fn the_table_names_whoever_was_skipped_and_why() {
        let skipped = [Skipped {
            system: "lmcache",
            reason: "it cannot be installed".to_owned(),
        }];
        let table = figures(&[("socket", 1.0)]).table(&skipped);
        assert!(
            table.contains("skipped: lmcache: it cannot be installed"),
            "{table}"
        );
    }
}
