//! Saves of one rank: which of the ordered pieces are this rank's, and how they ended.
//!
//! Called by [`WorkerRoot`](super::WorkerRoot) at the end of a step. The invariant: of the ranks
//! that hold the same bytes exactly one saves them.

use tessera_proto::KeyDigest;

use crate::ids::SaveId;
use crate::metadata::SaveOrder;
use crate::plan;
use crate::worker::command::{Save, WorkerCommand};
use crate::worker::config::{SaveOutcome, WorkerConfig};
use crate::worker::root::WorkerRoot;

/// An order that names no object of this shape.
struct Malformed;

impl WorkerRoot {
    /// Has the driver ask for what the end of the step will save.
    pub(super) fn probe(&mut self, orders: &[SaveOrder]) {
        let objects = orders
            .iter()
            .filter_map(|order| self.object(order).ok().flatten());
        let objects = objects.map(|(_, key)| key);
        let keys: Vec<_> = objects.take(self.config.limits.saves).collect();
        if !keys.is_empty() {
            self.commands.push_back(WorkerCommand::Probe(keys));
        }
    }

    pub(super) fn save(&mut self, order: &SaveOrder) {
        let object = self.object(order);
        if let Ok(None) = object {
            return;
        }
        let (Ok(Some((group, key))), true) = (object, self.saves.len() < self.config.limits.saves)
        else {
            self.counters.saves_skipped += 1;
            return;
        };
        self.next_save += 1;
        let save = SaveId(self.next_save);
        self.saves.insert(save);
        self.counters.saves += 1;
        self.commands.push_back(WorkerCommand::Save(Save {
            save,
            group,
            key,
            blocks: order.blocks.clone(),
        }));
    }

    /// The object of an order: its group and its key, or none if another rank saves it.
    fn object(&self, order: &SaveOrder) -> Result<Option<(usize, KeyDigest)>, Malformed> {
        let WorkerConfig {
            namespace,
            shape,
            rank,
            ..
        } = &self.config;
        let group = usize::try_from(order.group).map_err(|_| Malformed)?;
        let hash = order.hash.block_hash().ok_or(Malformed)?;
        if group >= shape.groups().len() {
            return Err(Malformed);
        }
        let position = self.shards.position(shape, group, *rank);
        if !position.is_some_and(|(_, saves)| saves) {
            return Ok(None);
        }
        let at = plan::coordinates(shape, group, *rank);
        Ok(Some((group, plan::key(namespace, group, at, &hash))))
    }

    pub(super) fn saved(&mut self, save: SaveId, outcome: SaveOutcome) {
        if !self.saves.remove(&save) {
            self.counters.late_completions += 1;
            return;
        }
        match outcome {
            SaveOutcome::Stored => self.counters.saves_stored += 1,
            SaveOutcome::Existed => self.counters.saves_existed += 1,
            SaveOutcome::StagingFull | SaveOutcome::Device => self.counters.saves_skipped += 1,
            SaveOutcome::Refused => self.counters.saves_refused += 1,
        }
    }
}
