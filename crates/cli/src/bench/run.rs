//! Runs the families that were asked for and prints what they say.

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

use super::{disk, peer, report, store, wire};
use crate::args::{BenchArguments, Family};

/// Prints a table, and with `--json` the rows as the last line.
/// A row below what this release must hold is marked, and is no error: this machine may be the
/// cause.
pub(crate) fn run(arguments: &BenchArguments) -> Result<()> {
    let wanted = |family| arguments.only.is_none_or(|only| only == family);
    let mut total = 0;
    total += if wanted(Family::Wire) { wire::ROWS } else { 0 };
    total += if wanted(Family::Store) {
        store::ROWS + disk::ROWS
    } else {
        0
    };
    total += if wanted(Family::Peer) { peer::ROWS } else { 0 };
    let progress = ProgressBar::new(total);
    let style = "{bar:30} {pos}/{len} {elapsed} {msg}";
    progress.set_style(ProgressStyle::with_template(style)?);
    let mut rows = Vec::new();
    if wanted(Family::Wire) {
        rows.append(&mut wire::run(arguments.seconds, &progress)?);
    }
    if wanted(Family::Store) {
        rows.append(&mut store::run(arguments.seconds, &progress)?);
        let folder = arguments.data.as_deref();
        rows.append(&mut disk::run(folder, arguments.seconds, &progress)?);
    }
    if wanted(Family::Peer) {
        rows.append(&mut peer::run(arguments.seconds, &progress)?);
    }
    progress.finish_and_clear();
    report::print(&rows, arguments.json)
}
