//! Which objects of a step its nodes have already, so that they are neither copied nor sent.
//!
//! Asked when a step begins, beside its computation, and read at its end and by the stores behind
//! it. The invariant: only a node's word that it has an object keeps that object from being saved;
//! silence, an error and an answer that comes late say nothing, and the engine's thread waits for
//! none of them.

use std::collections::HashSet;
use std::sync::Arc;

use tessera_proto::KeyDigest;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::remote::Remote;
use super::transfer::Shared;

/// What nodes have said of the objects of a step, now or later.
#[derive(Debug, Clone, Default)]
pub(super) struct Admission(Vec<watch::Receiver<HashSet<KeyDigest>>>);

impl Admission {
    /// Whether a node has said that it has the object.
    pub(super) fn is_present(&self, key: &KeyDigest) -> bool {
        self.0.iter().any(|said| said.borrow().contains(key))
    }

    /// Whether a node says so by `limit`.
    pub(super) async fn proves_present(mut self, key: &KeyDigest, limit: Instant) -> bool {
        for said in &mut self.0 {
            let present = said.wait_for(|present| present.contains(key));
            if timeout_at(limit, present).await.is_ok_and(|it| it.is_ok()) {
                return true;
            }
        }
        false
    }

    /// Whether an answer is still to come.
    pub(super) fn is_open(&self) -> bool {
        self.0.iter().any(|said| said.has_changed().is_ok())
    }
}

impl<R: Remote> Shared<R> {
    /// Asks for the objects that a step will save. The task owns no memory of anybody's: if it
    /// fails, nothing is known.
    pub(super) fn probe(shared: &Arc<Self>, admission: &mut Admission, keys: Vec<KeyDigest>) {
        let (say, said) = watch::channel(HashSet::new());
        admission.0.push(said);
        let own = Arc::clone(shared);
        let deadline = Instant::now() + shared.store_timeout;
        shared.runtime.spawn(async move {
            let ids = keys.iter().map(KeyDigest::object_id).collect();
            let present = own.remote.probe(ids, deadline).await;
            let present = keys.into_iter().zip(present).filter(|(_, is)| *is);
            say.send_replace(present.map(|(key, _)| key).collect());
        });
    }
}
