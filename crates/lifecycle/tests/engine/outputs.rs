//! How the engine takes the output of a step: receives that are over, blocks that are bad.

use std::collections::BTreeSet;

use tessera_lifecycle::LayoutClass;
use tessera_lifecycle::plan::needed;

use crate::scheduling::{Request, Stage, StepOutput};
use crate::world::{CHUNK, World};

impl World {
    /// The engine looks at the output of a step.
    pub(crate) fn process(&mut self, output: StepOutput) {
        let ranks = self.workers.len();
        let (mut finished, mut invalid) = (Vec::new(), BTreeSet::new());
        for (results, blocks) in output {
            self.failed.extend(results.failed_recving);
            invalid.extend(blocks);
            for name in results.finished_recving {
                let count = self.received.entry(name.clone()).or_default();
                *count += 1;
                assert!(*count <= ranks, "{name} is reported twice by a rank");
                if *count == ranks {
                    self.received.remove(&name);
                    finished.push(name);
                }
            }
        }
        let failed: Vec<String> = finished
            .iter()
            .filter(|name| self.failed.remove(*name))
            .cloned()
            .collect();
        assert!(invalid.is_empty() || self.shape.class() == LayoutClass::Block);
        let names = |list: &[String]| list.to_vec();
        let (done, bad) = (names(&finished), names(&failed));
        let done: Vec<&str> = done.iter().map(String::as_str).collect();
        let bad: Vec<&str> = bad.iter().map(String::as_str).collect();
        let blocks: Vec<u32> = invalid.iter().copied().collect();
        self.scheduler.worker_output(&done, &bad, &blocks);
        self.settle_scheduler();
        self.invalidate(&invalid);
        for name in finished {
            self.receive(&name, failed.contains(&name));
        }
    }

    /// Whether all that a request has computed is sound.
    fn is_sound(&self, request: &Request) -> bool {
        let size = self.shape.groups()[0].block_tokens;
        (0..request.computed / size).all(|index| {
            let block = request.tables[0][usize::try_from(index).unwrap()];
            (0..self.workers.len()).all(|worker| {
                let have = self.workers[worker].memory.get(&(0, block));
                have == Some(&self.sound(request.prompt, 0, index, worker))
            })
        })
    }

    fn invalidate(&mut self, invalid: &BTreeSet<u32>) {
        let size = self.shape.groups()[0].block_tokens;
        for (name, request) in &mut self.requests {
            let at = request.tables[0]
                .iter()
                .position(|block| invalid.contains(block));
            let Some(at) = at.map(|at| u64::try_from(at).unwrap()) else {
                continue;
            };
            assert_eq!(
                request.stage,
                Stage::Parked,
                "{name} has computed on a load"
            );
            request.computed = request.computed.min(at * size);
        }
    }

    fn receive(&mut self, name: &str, failed: bool) {
        if let Some(tables) = self.held.remove(name) {
            self.free_tables(&tables);
            return;
        }
        let request = self
            .requests
            .get_mut(name)
            .expect("a request that the engine holds");
        assert_eq!(request.stage, Stage::Parked, "{name} was not receiving");
        request.stage = Stage::Waiting;
        if failed {
            request.computed = 0;
        }
        if request.computed == 0 {
            let tables = std::mem::take(&mut request.tables);
            request.tables = vec![Vec::new(); tables.len()];
            self.free_tables(&tables);
            return;
        }
        let request = &self.requests[name];
        let (prompt, computed) = (request.prompt, request.computed);
        if self.shape.class() == LayoutClass::Block {
            assert!(
                self.is_sound(request),
                "{name} was received and is not sound"
            );
            return;
        }
        for piece in needed(&self.shape, 0, computed) {
            let spec = self.shape.groups()[piece.group];
            let last = (piece.chunk + 1) * CHUNK / spec.block_tokens - 1;
            let block = self.requests[name].tables[piece.group][usize::try_from(last).unwrap()];
            for worker in 0..self.workers.len() {
                let have = self.workers[worker].memory.get(&(piece.group, block));
                let sound = self.sound(prompt, piece.group, last, worker);
                assert_eq!(have, Some(&sound), "{name} was received and is not sound");
            }
        }
    }
}
