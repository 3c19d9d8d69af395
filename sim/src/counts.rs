//! Fixed work on the hot paths, for counting instructions: times cannot guard them on a noisy
//! machine.
//!
//! Called by `tessera-counts`, which `cargo xtask counts` runs under callgrind. Invariant: each job
//! is prepared outside of what is counted, does the same work every time, and says how much of it
//! came out as it should, so that one that fails early never counts as fast.

mod layout;
mod messages;
mod scheduler;
mod store;

use anyhow::{Result, ensure};

/// Work that is ready to run: returns how many of its operations did what they should.
type Work = Box<dyn FnMut() -> usize>;

/// One job.
pub struct Job {
    /// Its name in the table of counts.
    pub name: &'static str,
    /// Operations of one run.
    operations: usize,
    prepare: fn() -> Result<Work>,
}

/// All jobs, in the order of the table.
pub const JOBS: [Job; 7] = [
    store::ACQUIRE,
    store::MISS,
    store::GET,
    store::PUT,
    messages::JOB,
    scheduler::JOB,
    layout::JOB,
];

impl Job {
    /// Runs the job twice: the first run, uncounted, meets everything that is done once only.
    ///
    /// # Errors
    /// If it cannot be prepared, or an operation did not do what it should.
    pub fn run(&self) -> Result<()> {
        let mut work = (self.prepare)()?;
        work();
        let done = counted_work(&mut work);
        let (name, operations) = (self.name, self.operations);
        ensure!(
            done == operations,
            "{name}: {done} of {operations} operations did their work"
        );
        Ok(())
    }
}

/// What callgrind collects: it looks for this function by name.
#[inline(never)]
fn counted_work(work: &mut Work) -> usize {
    work()
}

#[cfg(test)]
mod tests {
    use super::JOBS;

    #[test]
    fn every_job_does_all_of_its_operations() {
        for job in JOBS {
            job.run().unwrap();
        }
    }
}
