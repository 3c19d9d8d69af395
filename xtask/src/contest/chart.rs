//! The chart of a contest: GB/s of each system, as an SVG that any browser shows.
//!
//! Called by the run. Two panels, GET and PUT with eight in flight, a group of bars for each object
//! size. A system without a figure has a gap where its bar would be.

use std::fmt::Write;

use super::figures::Figures;
use super::{IN_FLIGHT, SIZES, SYSTEMS};

const WIDTH: f64 = 900.0;
const PANEL_HEIGHT: f64 = 260.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 160.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 40.0;
const GRID_LINES: u32 = 4;
const GROUP_GAP: f64 = 24.0;

/// In the order of the systems: floors in grey, ours in red.
const COLOURS: [&str; SYSTEMS.len()] = [
    "#888888", "#c0392b", "#bbbbbb", "#dddddd", "#2c6fbb", "#27865a", "#b8860b", "#7d4f9e",
];

/// The whole document.
pub(super) fn svg(figures: &Figures) -> String {
    let mut body = String::new();
    for (at, operation) in [(0.0, "get"), (1.0, "put")] {
        panel(&mut body, figures, operation, at * PANEL_HEIGHT);
    }
    for (at, (system, colour)) in SYSTEMS.iter().zip(COLOURS).enumerate() {
        let (x, y) = (WIDTH - RIGHT + 20.0, TOP + 20.0 * at as f64);
        rectangle(&mut body, (x, y - 9.0), (12.0, 12.0), colour);
        text(&mut body, (x + 18.0, y + 2.0), "start", system.name);
    }
    let height = 2.0 * PANEL_HEIGHT;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

fn panel(body: &mut String, figures: &Figures, operation: &str, down: f64) {
    let in_flight = IN_FLIGHT[IN_FLIGHT.len() - 1];
    let speed = |size: &str, system: &str| {
        let row = format!("{operation} {size} x{in_flight}");
        figures.figure(&row, system).map(|figure| figure.speed)
    };
    let all = SIZES
        .iter()
        .flat_map(|(size, _)| SYSTEMS.iter().map(move |system| (size, system)));
    let speeds = all.filter_map(|(size, system)| speed(size, system.name));
    let most = speeds.fold(1.0, f64::max).ceil();
    let (floor, height) = (down + PANEL_HEIGHT - BOTTOM, PANEL_HEIGHT - TOP - BOTTOM);
    let title = format!("{operation}, GB/s, {in_flight} in flight");
    text(body, (LEFT, down + TOP - 16.0), "start", &title);
    for line in 0..=GRID_LINES {
        let value = most * f64::from(line) / f64::from(GRID_LINES);
        let y = floor - height * value / most;
        rectangle(body, (LEFT, y), (WIDTH - LEFT - RIGHT, 1.0), "#dddddd");
        text(body, (LEFT - 6.0, y + 4.0), "end", &format!("{value:.1}"));
    }
    let group = (WIDTH - LEFT - RIGHT) / SIZES.len() as f64;
    let bar = (group - GROUP_GAP) / SYSTEMS.len() as f64;
    for (place, (size, _)) in SIZES.iter().enumerate() {
        let begin = LEFT + group * place as f64 + GROUP_GAP / 2.0;
        for (at, (system, colour)) in SYSTEMS.iter().zip(COLOURS).enumerate() {
            let Some(speed) = speed(size, system.name) else {
                continue;
            };
            let tall = height * speed / most;
            let corner = (begin + bar * at as f64, floor - tall);
            rectangle(body, corner, (bar - 2.0, tall), colour);
        }
        let middle = begin + (group - GROUP_GAP) / 2.0;
        text(body, (middle, floor + 18.0), "middle", size);
    }
}

fn rectangle(body: &mut String, (x, y): (f64, f64), (width, height): (f64, f64), colour: &str) {
    // A string takes everything.
    let _ = writeln!(
        body,
        r#"<rect x="{x:.1}" y="{y:.1}" width="{width:.1}" height="{height:.1}" fill="{colour}"/>"#
    );
}

fn text(body: &mut String, (x, y): (f64, f64), anchor: &str, said: &str) {
    let _ = writeln!(
        body,
        r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{said}</text>"#
    );
}

#[cfg(test)]
mod tests {
    use super::super::figures::Pass;
    use super::*;

    #[test]
    fn every_figure_has_a_bar_as_high_as_it_is_fast() {
        let mut figures = Figures::default();
        for (system, seconds) in [("tessera", 0.1), ("redis", 0.2)] {
            figures.add(Pass {
                row: "get 1MiB x8".to_owned(),
                system,
                seconds,
            });
        }
        let chart = svg(&figures);
        let height = |colour: &str| {
            let bars = chart.lines().filter(|line| line.contains(colour));
            // The last one: the first explains the colour.
            let bar = bars
                .clone()
                .find(|line| !line.contains(r#"height="12.0""#))?;
            let (_, rest) = bar.split_once("height=\"")?;
            rest.split('"').next()?.parse::<f64>().ok()
        };
        let (ours, theirs) = (height(COLOURS[1]).unwrap(), height(COLOURS[4]).unwrap());
        assert!((ours / theirs - 2.0).abs() < 0.01, "{ours} {theirs}");
        assert!(height(COLOURS[5]).is_none(), "a bar without a figure");
    }
}
