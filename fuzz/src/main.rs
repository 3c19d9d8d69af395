//! The runner: writes the seeds, builds the targets with coverage, runs them for a given time.
//!
//! `cargo run --manifest-path fuzz/Cargo.toml -- --seconds 60 [--seed N]`, or with `--reproduce
//! FILE` one input alone. It needs cargo, a C++ compiler and the stable toolchain: coverage comes
//! from the compiler pass itself, without a sanitizer, which is all that safe code needs. The last
//! line counts decoders, and recovery as one more: one has passed if the run ended well and reached
//! it.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tessera_fuzz::{DECODERS, check, choose, input_for, recovery, sample_plan};

/// Coverage as libFuzzer reads it: counters, a table of places, and the operands of comparisons.
const COVERAGE: [&str; 6] = [
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "--cfg=fuzzing",
];

/// Longest input, bytes; the limits are declared lengths, so reaching them needs no long input.
const INPUT_BYTES_MAX: u32 = 4_096;
/// Resident memory above which a decoder is found to allocate what it was told to.
const MEMORY_MIB_MAX: u32 = 512;

/// The targets, each with half of the time, a corpus and a folder of findings of its name.
const TARGETS: [&str; 2] = ["decoders", RECOVERY];
const RECOVERY: &str = "recovery";

struct Options {
    seconds: u32,
    seed: Option<u32>,
    reproduce: Option<PathBuf>,
}

/// The part of a golden file that makes seeds.
#[derive(Deserialize)]
struct Golden {
    frames: Vec<GoldenFrame>,
}

#[derive(Deserialize)]
struct GoldenFrame {
    message: String,
    header: String,
    body: String,
}

/// The same of the golden file of what engines say to each other.
#[derive(Deserialize)]
struct GoldenPeer {
    frames: Vec<GoldenPeerFrame>,
}

#[derive(Deserialize)]
struct GoldenPeerFrame {
    name: String,
    body: String,
}

fn main() -> Result<()> {
    let options = options()?;
    let home = Path::new(env!("CARGO_MANIFEST_DIR"));
    if let Some(file) = &options.reproduce {
        return reproduce(file);
    }
    let corpus = |target| home.join("corpus").join(target);
    for target in TARGETS {
        fs::create_dir_all(corpus(target)).context("creating fuzz/corpus")?;
    }
    let seeds = write_seeds(home, &corpus("decoders"))?;
    let disks = recovery::seeds();
    for (number, seed) in disks.iter().enumerate() {
        fs::write(corpus(RECOVERY).join(format!("golden-{number:03}")), seed)
            .context("writing a seed")?;
    }
    println!(
        "{seeds} seeds for {} decoders, {} disks, {} s",
        DECODERS.len(),
        disks.len(),
        options.seconds
    );
    let decoders = run_target(home, "decoders", &options)?;
    let disks = run_target(home, RECOVERY, &options)?;
    let reached = reached(&corpus("decoders"))?;
    for (name, inputs) in &reached {
        println!("{name:>16} {inputs:>6} inputs");
    }
    let inputs = fs::read_dir(corpus(RECOVERY)).context("reading fuzz/corpus")?;
    println!("{RECOVERY:>16} {:>6} inputs", inputs.count());
    let passed = match decoders {
        true => reached.values().filter(|inputs| **inputs > 0).count(),
        false => 0,
    };
    let (passed, all) = (passed + usize::from(disks), DECODERS.len() + 1);
    println!("{passed} passed, {} failed", all - passed);
    ensure!(
        passed == all,
        "a target failed: its input is under fuzz/artifacts; run it alone with --reproduce FILE"
    );
    Ok(())
}

/// Runs one input, of the target in whose folder it lies.
fn reproduce(file: &Path) -> Result<()> {
    let input = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
    if file
        .parent()
        .is_some_and(|folder| folder.ends_with(RECOVERY))
    {
        println!("{RECOVERY}, {} bytes", input.len());
        recovery::check(&input);
    } else {
        let name = choose(&input).map_or("none", |(decoder, _)| decoder.name);
        println!("decoder {name}, {} bytes", input.len());
        check(&input);
    }
    Ok(())
}

fn options() -> Result<Options> {
    let mut options = Options {
        seconds: 60,
        seed: None,
        reproduce: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .with_context(|| format!("{name} needs a value"))?;
        match name.as_str() {
            "--seconds" => options.seconds = value.parse().context("--seconds is a number")?,
            "--seed" => options.seed = Some(value.parse().context("--seed is a number")?),
            "--reproduce" => options.reproduce = Some(value.into()),
            _ => bail!("unknown option {name}: there are --seconds, --seed and --reproduce"),
        }
    }
    Ok(options)
}

/// Writes every message and header of the golden file, and a plan, as inputs; counts them.
fn write_seeds(home: &Path, corpus: &Path) -> Result<usize> {
    let golden: Golden = read_golden(home, "wire-v1.json")?;
    let peer: GoldenPeer = read_golden(home, "peer-v1.json")?;
    let plan = input_for("StepPlan", &sample_plan()).context("StepPlan is not fuzzed")?;
    fs::write(corpus.join("sample-StepPlan"), plan).context("writing a seed")?;
    let mut seeds = 1;
    for (number, frame) in golden.frames.iter().enumerate() {
        let (header, body) = (bytes(&frame.header)?, bytes(&frame.body)?);
        let object = (frame.message == "Put").then_some(("ObjectHeader", &body));
        let inputs = [("FrameHeader", &header), (&frame.message, &body)];
        for (name, bytes) in inputs.into_iter().chain(object) {
            let input = input_for(name, bytes)
                .with_context(|| format!("{name} has golden bytes but no fuzzed decoder"))?;
            fs::write(corpus.join(format!("golden-{number:02}-{name}")), input)
                .context("writing a seed")?;
            seeds += 1;
        }
    }
    for frame in &peer.frames {
        let input = input_for("PeerFrame", &bytes(&frame.body)?).context("not fuzzed")?;
        fs::write(corpus.join(format!("golden-peer-{}", frame.name)), input)
            .context("writing a seed")?;
        seeds += 1;
    }
    Ok(seeds)
}

fn read_golden<T: DeserializeOwned>(home: &Path, name: &str) -> Result<T> {
    let path = home.join("../crates/proto/tests/golden").join(name);
    let text = fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| format!("reading {}", path.display()))
}

/// Builds a target and runs it; says whether it ended without a finding.
fn run_target(home: &Path, target: &str, options: &Options) -> Result<bool> {
    let artifacts = home.join("artifacts").join(target);
    fs::create_dir_all(&artifacts).context("creating fuzz/artifacts")?;
    let seconds = options.seconds / u32::try_from(TARGETS.len())?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .env("CARGO_ENCODED_RUSTFLAGS", COVERAGE.join("\u{1f}"))
        .arg("run")
        .arg("--manifest-path")
        .arg(home.join("Cargo.toml"))
        // With a target named, build scripts are compiled without the coverage flags.
        .args(["--quiet", "--release", "--target", "host-tuple"])
        .args(["--features", "libfuzzer", "--bin", target, "--"])
        .arg(format!("-max_total_time={}", seconds.max(1)))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .args(["-timeout=5", "-print_final_stats=1", "-verbosity=0"])
        .arg(format!("-artifact_prefix={}/", artifacts.display()));
    if let Some(seed) = options.seed {
        command.arg(format!("-seed={seed}"));
    }
    let corpus = home.join("corpus").join(target);
    let status = command.arg(corpus).status().context("starting cargo")?;
    Ok(status.success())
}

/// How many inputs of the corpus each decoder has.
fn reached(corpus: &Path) -> Result<BTreeMap<&'static str, usize>> {
    let mut inputs: BTreeMap<_, usize> = DECODERS.iter().map(|it| (it.name, 0)).collect();
    for entry in fs::read_dir(corpus).context("reading fuzz/corpus")? {
        let input = fs::read(entry.context("reading fuzz/corpus")?.path())?;
        if let Some((decoder, _)) = choose(&input) {
            *inputs.entry(decoder.name).or_default() += 1;
        }
    }
    Ok(inputs)
}

/// The bytes that `hex` spells.
fn bytes(hex: &str) -> Result<Vec<u8>> {
    ensure!(hex.len().is_multiple_of(2), "hex of odd length");
    let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).context("hex digits");
    (0..hex.len()).step_by(2).map(byte).collect()
}
