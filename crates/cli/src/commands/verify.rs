//! `tessera verify`: the offline check of data folders.

use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::json;
use tessera_node::{DiskReport, verify};

use crate::args::VerifyArguments;
use crate::units::format_size;

/// Prints what each folder holds, for people or as one JSON object a folder. Damaged objects are an
/// error, though no node would give them out; what a crash tore is none.
pub(crate) fn run(arguments: &VerifyArguments) -> Result<()> {
    let mut damaged = 0;
    for folder in &arguments.data {
        let report = verify(folder)?.unwrap_or_default();
        damaged += report.damaged;
        print(folder, &report, arguments.json);
    }
    ensure!(
        damaged == 0,
        "{damaged} damaged objects: they count as missing and will be written again"
    );
    Ok(())
}

fn print(folder: &Path, report: &DiskReport, json: bool) {
    let DiskReport {
        segments,
        unsealed,
        objects,
        bytes,
        removals,
        drops,
        torn,
        damaged,
    } = *report;
    let folder = folder.display();
    if json {
        let folder = folder.to_string();
        println!(
            "{}",
            json!({ "folder": folder, "segments": segments, "unsealed": unsealed,
                    "objects": objects, "bytes": bytes, "removals": removals,
                    "drops": drops, "torn": torn, "damaged": damaged })
        );
    } else {
        println!(
            "{folder}: {objects} objects, {}, in {segments} segments ({unsealed} unsealed), \
             {removals} removals, {drops} drops, {torn} torn, {damaged} damaged",
            format_size(bytes)
        );
    }
}
