//! A worker's part of direct transfers: gives the plan's orders to the peer driver, and its results
//! the names that the engine knows.
//!
//! Called by [`WorkerDriver`](super::WorkerDriver). The invariant: a result is reported once, under
//! the name that its order carried; what was ordered for nobody is reported to nobody.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tessera_lifecycle::handover::End;
use tessera_lifecycle::worker::TransferResults;
use tessera_lifecycle::{RequestKey, StepPlan};
use tessera_proto::Incarnation;
use tessera_proto::peer::TransferId;
use tessera_transport::Address;
use tokio::runtime::Handle;

use super::config::EngineConfig;
use super::error::{DriverError, StartError};
use crate::layout::Layout;
use crate::peer::{PeerDriver, PeerMetrics, PeerOptions};

/// Where other engines find a worker.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerPlace {
    /// Its place among the ranks of its engine.
    pub rank: u16,
    /// Its process start.
    pub incarnation: Incarnation,
    /// Where it listens, as `host:port`.
    pub address: String,
}

/// One worker's part.
#[derive(Debug)]
pub(super) struct Peers {
    driver: PeerDriver,
    rank: u16,
    book: Mutex<Book>,
}

#[derive(Debug, Default)]
struct Book {
    /// The last plan that was carried out: its scheduler and its number.
    last: (u128, u64),
    /// Orders so far: the newest is named by its number.
    orders: u64,
    /// The engine's names of requests that wait.
    names: BTreeMap<RequestKey, String>,
    invalid_blocks: Vec<u32>,
}

impl Peers {
    /// Listens for other engines; `None` if the options want none.
    pub(super) fn start(
        config: &EngineConfig,
        layout: &Arc<Layout>,
        runtime: &Handle,
    ) -> Result<Option<Self>, StartError> {
        let Some((host, port)) = &config.options.peer_listen else {
            return Ok(None);
        };
        let mut options = PeerOptions::new(config)?;
        let port = match port {
            0 => 0,
            port => port.saturating_add(options.rank),
        };
        options.listen = Address::Tcp(format!("{host}:{port}"));
        options.insecure = config.options.peer_insecure;
        let driver = runtime.block_on(PeerDriver::start(&options, Arc::clone(layout)))?;
        Ok(Some(Self {
            driver,
            rank: options.rank,
            book: Mutex::default(),
        }))
    }

    pub(super) fn place(&self) -> PeerPlace {
        PeerPlace {
            rank: self.rank,
            incarnation: self.driver.incarnation(),
            address: self.driver.address().to_string(),
        }
    }

    /// Begins what the plan orders. A plan that comes again is not carried out again.
    pub(super) fn begin_step(&self, plan: &StepPlan) {
        let mut book = self.book.lock();
        let (scheduler, step) = book.last;
        if scheduler == plan.incarnation && plan.step <= step {
            return;
        }
        book.last = (plan.incarnation, plan.step);
        for order in &plan.handovers {
            // Schedulers count for themselves, and a worker may outlive one.
            book.orders += 1;
            let key = RequestKey(book.orders);
            if let Some(name) = &order.request {
                book.names.insert(key, name.clone());
            }
            let (driver, side) = (&self.driver, order.side());
            let others = driver.others(side);
            for (incarnation, address) in others.iter().filter_map(|other| order.worker(*other)) {
                driver.introduce(incarnation, &Address::Tcp(address.to_owned()));
            }
            let bytes = |other, group| driver.block_bytes(side, other, group);
            driver.order(&order.between(self.rank, &others, key, bytes));
            tracing::debug!(request = ?order.request, end = ?order.end, "a handover begins");
        }
        for transfer in &plan.handovers_cancelled {
            self.driver.cancel(TransferId(*transfer));
        }
    }

    /// Adds what is over to `results`.
    pub(super) fn collect(&self, results: &mut TransferResults) -> Result<(), DriverError> {
        let over = self.driver.collect().map_err(DriverError::Peer)?;
        let mut book = self.book.lock();
        let failed: Vec<_> = over
            .failed
            .iter()
            .filter_map(|key| book.names.get(key))
            .collect();
        results.failed_recving.extend(failed.into_iter().cloned());
        for (end, keys) in [(End::Gives, over.sent), (End::Takes, over.received)] {
            for key in keys {
                // Each order has a key of its own, so that nothing is remembered of it.
                self.driver.request_ended(key);
                let names = match end {
                    End::Gives => &mut results.finished_sending,
                    End::Takes => &mut results.finished_recving,
                };
                names.extend(book.names.remove(&key));
            }
        }
        book.invalid_blocks.extend(over.invalid_blocks);
        Ok(())
    }

    pub(super) fn take_invalid_blocks(&self) -> Vec<u32> {
        std::mem::take(&mut self.book.lock().invalid_blocks)
    }

    pub(super) fn is_idle(&self) -> bool {
        self.driver.is_idle()
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.driver.is_stopped()
    }

    pub(super) fn metrics(&self) -> PeerMetrics {
        self.driver.metrics()
    }

    pub(super) async fn shutdown(&self) {
        self.driver.shutdown().await;
    }
}
