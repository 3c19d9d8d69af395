//! Fingerprints of what a step is made from; a step whose fingerprint is stamped is current.
//!
//! 64-bit FNV-1a: it must be stable over builds of xtask and tell edits apart, not resist anyone.

use std::fmt;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0000_0100_0000_01b3;

/// What tools leave behind in source folders; never an input.
const LEFTOVERS: [&str; 6] = [
    "target",
    "__pycache__",
    "bin",
    ".pytest_cache",
    ".mypy_cache",
    ".ruff_cache",
];

/// The hash of everything fed so far. Fields are framed by their length: they never run together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fingerprint(u64);

impl Fingerprint {
    /// The fingerprint of nothing.
    pub(crate) fn new() -> Self {
        Self(OFFSET)
    }

    /// With the bytes of `field` added.
    pub(crate) fn with(self, field: impl AsRef<[u8]>) -> Self {
        let field = field.as_ref();
        let length = u64::try_from(field.len()).unwrap_or(u64::MAX);
        let framed = length
            .to_le_bytes()
            .into_iter()
            .chain(field.iter().copied());
        Self(framed.fold(self.0, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(PRIME)
        }))
    }

    /// With every source file at or below `root/relative` added, names and contents, in order.
    pub(crate) fn with_tree(self, root: &Path, relative: &str) -> Result<Self> {
        let path = root.join(relative);
        if !path.is_dir() {
            let bytes =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            return Ok(self.with(relative).with(bytes));
        }
        let mut names = Vec::new();
        for entry in fs::read_dir(&path)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            if !LEFTOVERS.contains(&name.as_str()) && !name.ends_with(".so") {
                names.push(name);
            }
        }
        names.sort_unstable();
        names.iter().try_fold(self, |hash, name| {
            hash.with_tree(root, &format!("{relative}/{name}"))
        })
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:016x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_answer_of_fnv1a() {
        // Offset basis folded over the frame of one field "a": eight length bytes, then the byte.
        let mut hash = OFFSET;
        for byte in [1, 0, 0, 0, 0, 0, 0, 0, b'a'] {
            hash = (hash ^ u64::from(byte)).wrapping_mul(PRIME);
        }
        assert_eq!(Fingerprint::new().with("a"), Fingerprint(hash));
    }

    #[test]
    fn fields_do_not_run_together() {
        let split = Fingerprint::new().with("ab").with("c");
        assert_ne!(split, Fingerprint::new().with("a").with("bc"));
    }
}
