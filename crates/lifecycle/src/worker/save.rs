//! Saves of one rank: which of the ordered pieces are this rank's, and how they ended.
//!
//! Called by [`WorkerRoot`](super::WorkerRoot) at the end of a step. The invariant: of the ranks
//! that hold the same bytes exactly one saves them.

use crate::ids::SaveId;
use crate::metadata::SaveOrder;
use crate::plan;
use crate::worker::command::{Save, WorkerCommand};
use crate::worker::config::{SaveOutcome, WorkerConfig};
use crate::worker::root::WorkerRoot;

impl WorkerRoot {
    pub(super) fn save(&mut self, order: &SaveOrder) {
        let WorkerConfig {
            namespace,
            shape,
            rank,
            limits,
        } = &self.config;
        let group = usize::try_from(order.group).unwrap_or(usize::MAX);
        let hash = order.hash.block_hash();
        let (true, Some(hash)) = (group < shape.groups().len(), hash) else {
            self.counters.saves_skipped += 1;
            return;
        };
        let position = self.shards.position(shape, group, *rank);
        if !position.is_some_and(|(_, saves)| saves) {
            return;
        }
        if self.saves.len() >= limits.saves {
            self.counters.saves_skipped += 1;
            return;
        }
        let at = plan::coordinates(shape, group, *rank);
        let key = plan::key(namespace, group, at, &hash);
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
