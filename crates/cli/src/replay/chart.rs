//! The chart of a replay: hit rate over capacity, as an SVG that any browser shows.
//!
//! Called by the command. Capacities stand at equal distances, since they grow by factors.

use std::fmt::Write;

use super::figures::{Figures, Row};

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const RIGHT: f64 = 110.0;
const TOP: f64 = 40.0;
const BOTTOM: f64 = 50.0;
const GRID_LINES: u32 = 5;

/// Name, colour and value of a line.
type Line = (&'static str, &'static str, fn(&Row) -> f64);

const LINES: [Line; 3] = [
    ("Belady", "#888888", |row| row.belady),
    ("Tessera", "#c0392b", |row| row.tessera),
    ("LRU", "#2c6fbb", |row| row.lru),
];

/// The whole document.
pub(crate) fn svg(figures: &Figures) -> String {
    let rows = &figures.rows;
    let top = rows.iter().map(|row| row.belady.max(row.tessera));
    let most = top.fold(1.0, f64::max).ceil();
    let step = (WIDTH - LEFT - RIGHT) / (rows.len().max(2) - 1) as f64;
    let x = |at: usize| LEFT + step * at as f64;
    let y = |percent: f64| HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * percent / most;
    let mut body = String::new();
    text(
        &mut body,
        (LEFT, TOP - 16.0),
        "start",
        &format!("hit rate, {}", figures.trace),
    );
    for line in 0..=GRID_LINES {
        let percent = most * f64::from(line) / f64::from(GRID_LINES);
        let (from, to, at) = (LEFT, WIDTH - RIGHT, y(percent));
        line_of(&mut body, "#dddddd", &[(from, at), (to, at)]);
        text(
            &mut body,
            (LEFT - 6.0, at + 4.0),
            "end",
            &format!("{percent:.0} %"),
        );
    }
    for (at, row) in rows.iter().enumerate() {
        let label = format!("{} %", row.capacity_percent);
        text(&mut body, (x(at), HEIGHT - BOTTOM + 18.0), "middle", &label);
    }
    let middle = (LEFT + WIDTH - RIGHT) / 2.0;
    text(
        &mut body,
        (middle, HEIGHT - 10.0),
        "middle",
        "capacity of the working set",
    );
    for (at, (name, colour, value)) in LINES.into_iter().enumerate() {
        let points: Vec<_> = rows
            .iter()
            .enumerate()
            .map(|(at, row)| (x(at), y(value(row))))
            .collect();
        line_of(&mut body, colour, &points);
        for (x, y) in points {
            writeln_to(
                &mut body,
                format_args!(r#"<circle cx="{x:.1}" cy="{y:.1}" r="3" fill="{colour}"/>"#),
            );
        }
        let at = (WIDTH - RIGHT + 20.0, TOP + 20.0 * at as f64);
        line_of(
            &mut body,
            colour,
            &[(at.0, at.1 - 4.0), (at.0 + 16.0, at.1 - 4.0)],
        );
        text(&mut body, (at.0 + 22.0, at.1), "start", name);
    }
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"white\"/>\n{body}</svg>\n"
    )
}

fn line_of(body: &mut String, colour: &str, points: &[(f64, f64)]) {
    let points: Vec<_> = points
        .iter()
        .map(|(x, y)| format!("{x:.1},{y:.1}"))
        .collect();
    let points = points.join(" ");
    writeln_to(
        body,
        format_args!(
            r#"<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>"#
        ),
    );
}

fn text(body: &mut String, (x, y): (f64, f64), anchor: &str, said: &str) {
    let said = said.replace('&', "&amp;").replace('<', "&lt;");
    writeln_to(
        body,
        format_args!(r#"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}">{said}</text>"#),
    );
}

fn writeln_to(body: &mut String, line: std::fmt::Arguments<'_>) {
    // A string takes everything.
    let _ = writeln!(body, "{line}");
}
