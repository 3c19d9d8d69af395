//! Finds the Python that the environments are made with.

use std::env;
use std::process::Command;

use anyhow::{Result, bail};

/// The versions that the engine's wheel is built for (its `Requires-Python`).
const SUPPORTED: std::ops::RangeInclusive<u32> = 11..=14;

/// Asks an interpreter for its version and for what an environment needs.
const PROBE: &str = "import sys; print(*sys.version_info[:2]); import ensurepip, venv";

/// The first interpreter that can make an environment; `TESSERA_PYTHON` is asked before all others.
pub(crate) fn find() -> Result<String> {
    let chosen = env::var("TESSERA_PYTHON").ok();
    let numbered = SUPPORTED.rev().map(|minor| format!("python3.{minor}"));
    let candidates = chosen
        .into_iter()
        .chain(["python3".to_owned()])
        .chain(numbered);
    let mut refusals = Vec::new();
    for candidate in candidates {
        match probe(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(reason) => refusals.push(format!("  {candidate}: {reason}")),
        }
    }
    bail!(
        "no usable Python was found (3.{} to 3.{}, with the venv module):\n{}\n\
         On Debian or Ubuntu: apt-get install python3-venv. \
         Elsewhere: name an interpreter in TESSERA_PYTHON.",
        SUPPORTED.start(),
        SUPPORTED.end(),
        refusals.join("\n")
    )
}

fn probe(candidate: &str) -> Result<(), String> {
    let output = Command::new(candidate)
        .args(["-c", PROBE])
        .output()
        .map_err(|_| "not installed".to_owned())?;
    judge(
        output.status.success(),
        &String::from_utf8_lossy(&output.stdout),
    )
}

/// Judges what the probe printed, and whether it ended well.
fn judge(imports_work: bool, printed: &str) -> Result<(), String> {
    let numbers: Vec<u32> = printed.split_whitespace().flat_map(str::parse).collect();
    match numbers[..] {
        [3, minor] if !SUPPORTED.contains(&minor) => Err(format!("is 3.{minor}")),
        [3, _] if !imports_work => Err("has no venv and ensurepip".to_owned()),
        [3, _] => Ok(()),
        [major, _] => Err(format!("is Python {major}")),
        _ => Err("does not run".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::judge;

    #[test]
    fn only_a_supported_python_with_venv_passes() {
        assert_eq!(judge(true, "3 11\n"), Ok(()));
        assert_eq!(judge(true, "3 10\n"), Err("is 3.10".to_owned()));
        assert_eq!(judge(true, "3 15\n"), Err("is 3.15".to_owned()));
        assert_eq!(
            judge(false, "3 12\n"),
            Err("has no venv and ensurepip".to_owned())
        );
        assert_eq!(judge(false, ""), Err("does not run".to_owned()));
        assert_eq!(judge(false, "2 7\n"), Err("is Python 2".to_owned()));
    }
}
