//! One job of the hot paths, for a counter of instructions: `tessera-counts JOB`, or the names of
//! all jobs without an argument.
//!
//! Called by `cargo xtask counts`, which runs it under callgrind.

use anyhow::{Context, Result};
use tessera_sim::counts::JOBS;

fn main() -> Result<()> {
    let Some(wanted) = std::env::args().nth(1) else {
        JOBS.iter().for_each(|job| println!("{}", job.name));
        return Ok(());
    };
    let job = JOBS.iter().find(|job| job.name == wanted);
    job.with_context(|| format!("there is no job {wanted}"))?
        .run()
}
