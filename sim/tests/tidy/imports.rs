//! Who may import whom: the table of ARCHITECTURE.md against what cargo says.
//!
//! The table is the rule; this module only reads it. Development dependencies are free, since a
//! test may drive both sides; normal and build dependencies are what a crate cannot be without.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

use crate::tree::{self, Source};

/// A workspace member as cargo sees it.
struct Package {
    name: String,
    /// Names of our own packages that it is built with.
    ours: BTreeSet<String>,
    /// Names of outside packages that it is built with.
    foreign: BTreeSet<String>,
}

impl Package {
    fn sample(name: &str, ours: &[&str], foreign: &[&str]) -> Self {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        Self {
            name: name.to_owned(),
            ours: owned(ours),
            foreign: owned(foreign),
        }
    }
}

/// The rows of the import table: package, and whom it may import.
type Table = BTreeMap<String, BTreeSet<String>>;

/// Packages that may be used where nothing may be seen but bytes: all others are refused there.
const PURE: [(&str, &[&str]); 2] = [
    (
        "tessera-proto",
        &["blake3", "crc-fast", "hmac", "sha2", "thiserror"],
    ),
    ("tessera-lifecycle", &["postcard", "serde", "thiserror"]),
];

fn packages() -> Vec<Package> {
    let metadata = MetadataCommand::new()
        .manifest_path(tree::root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata reads the workspace");
    let names: BTreeSet<String> = metadata
        .packages
        .iter()
        .map(|package| package.name.to_string())
        .collect();
    let read = |package: &cargo_metadata::Package| {
        let built_with = |dependency: &&cargo_metadata::Dependency| {
            matches!(
                dependency.kind,
                DependencyKind::Normal | DependencyKind::Build
            )
        };
        let (ours, foreign) = package
            .dependencies
            .iter()
            .filter(built_with)
            .map(|dependency| dependency.name.clone())
            .partition(|name| names.contains(name));
        Package {
            name: package.name.to_string(),
            ours,
            foreign,
        }
    };
    metadata.packages.iter().map(read).collect()
}

/// Reads the table whose second column is headed `package` and fourth `may import`.
fn table(architecture: &str) -> Table {
    let rows = architecture
        .lines()
        .skip_while(|line| !(line.starts_with('|') && line.contains("may import")))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    let mut table = Table::new();
    for row in rows {
        let cells: Vec<&str> = row.split('|').collect();
        let [_, _, package, _, imports, ..] = cells[..] else {
            continue;
        };
        let Some(package) = tree::quoted(package).next() else {
            continue;
        };
        table.insert(
            package.to_owned(),
            tree::quoted(imports).map(str::to_owned).collect(),
        );
    }
    table
}

fn check_imports(table: &Table, packages: &[Package]) -> Vec<String> {
    let mut complaints = Vec::new();
    for package in packages {
        let Some(allowed) = table.get(&package.name) else {
            complaints.push(format!("{} has no row in the import table", package.name));
            continue;
        };
        for import in package.ours.difference(allowed) {
            complaints.push(format!(
                "{} imports {import}: the table forbids it",
                package.name
            ));
        }
    }
    let exists = |row: &&String| packages.iter().any(|package| package.name == **row);
    complaints.extend(
        table
            .keys()
            .filter(|row| !exists(row))
            .map(|row| format!("{row} has a row and no crate")),
    );
    complaints
}

fn check_pure(packages: &[Package]) -> Vec<String> {
    let mut complaints = Vec::new();
    for (name, allowed) in PURE {
        let Some(package) = packages.iter().find(|package| package.name == name) else {
            complaints.push(format!("{name} is pure and does not exist"));
            continue;
        };
        for foreign in &package.foreign {
            if !allowed.contains(&foreign.as_str()) {
                complaints.push(format!("{name} is pure and depends on {foreign}"));
            }
        }
    }
    complaints
}

/// Every outside package that ships must have its reason in the architecture.
fn check_reasons(architecture: &str, packages: &[Package]) -> Vec<String> {
    let named: BTreeSet<&str> = architecture.lines().flat_map(tree::quoted).collect();
    let unnamed = |foreign: &&String| !named.contains(foreign.as_str());
    let foreign: BTreeSet<&String> = packages
        .iter()
        .flat_map(|package| &package.foreign)
        .collect();
    foreign
        .into_iter()
        .filter(unnamed)
        .map(|foreign| format!("{foreign} is a dependency without a reason in ARCHITECTURE.md"))
        .collect()
}

fn architecture() -> String {
    let sources = tree::read();
    let found = sources
        .into_iter()
        .find(|source: &Source| source.path == "ARCHITECTURE.md");
    found.expect("ARCHITECTURE.md exists").text
}

#[test]
fn crates_import_only_what_the_table_allows() {
    tree::assert_none(&check_imports(&table(&architecture()), &packages()));
}

#[test]
fn pure_crates_depend_on_nothing_that_could_do_io() {
    tree::assert_none(&check_pure(&packages()));
}

#[test]
fn every_dependency_has_its_reason() {
    tree::assert_none(&check_reasons(&architecture(), &packages()));
}

const TABLE: &str = "
| folder | package | holds | may import (ours) | must never see |
|---|---|---|---|---|
| `crates/a` | `a` | x | none | `y` |
| `crates/b` | `b` | x | `a` | |

after
";

#[test]
fn a_forbidden_import_is_reported() {
    let packages = [
        Package::sample("a", &["b"], &[]),
        Package::sample("b", &["a"], &[]),
    ];
    let complaints = check_imports(&table(TABLE), &packages);
    assert_eq!(complaints, ["a imports b: the table forbids it"]);
}

#[test]
fn a_crate_without_a_row_and_a_row_without_a_crate_are_reported() {
    let packages = [
        Package::sample("a", &[], &[]),
        Package::sample("c", &[], &[]),
    ];
    let complaints = check_imports(&table(TABLE), &packages);
    assert_eq!(
        complaints,
        [
            "c has no row in the import table",
            "b has a row and no crate"
        ]
    );
}

#[test]
fn a_runtime_in_a_pure_crate_is_reported() {
    let packages = [
        Package::sample("tessera-proto", &[], &["blake3", "tokio"]),
        Package::sample("tessera-lifecycle", &[], &["serde"]),
    ];
    assert_eq!(
        check_pure(&packages),
        ["tessera-proto is pure and depends on tokio"]
    );
    assert_eq!(check_pure(&packages[..1]).len(), 2);
}

#[test]
fn a_dependency_without_a_reason_is_reported() {
    let packages = [Package::sample("a", &[], &["serde", "leftpad"])];
    let complaints = check_reasons("`serde` reads options", &packages);
    assert_eq!(complaints.len(), 1);
    assert!(complaints[0].starts_with("leftpad"));
}
