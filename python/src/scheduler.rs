//! The native side in the scheduler's process.
//!
//! Each method translates one hook into one call of the driver, with the interpreter released while
//! the driver works: a lookup may wait for nodes, and Python's other threads go on meanwhile.

use std::collections::{HashMap, HashSet};

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyBytes;
use tessera_client::Incarnation;
use tessera_client::driver::{
    EngineConfig, Finished, Prompt, ScheduledRequest, SchedulerDriver, StepInput, TicketWorker,
};
use tessera_client::local::LocalNode;

use crate::error::Raise as _;
use crate::local;
use crate::meter::Meter;

/// A request that is sent whole: id, tokens computed before the step, tokens of the step, blocks of
/// each group, and its hashes.
type New = (String, u64, u64, Vec<Vec<u32>>, Vec<PyBackedBytes>);

/// Requests that run on, as the engine has them, a column each: ids, new blocks of each group
/// (None: no new ones), tokens computed before the step, tokens of the step; and which of them
/// resume, whose blocks are whole tables.
type Known = (
    Vec<String>,
    Vec<Option<Vec<Vec<u32>>>>,
    Vec<u64>,
    Vec<u64>,
    HashSet<String>,
);

/// New hashes of known requests by id: the index of the first, and the hashes.
type Grown = HashMap<String, (u64, Vec<PyBackedBytes>)>;

/// What identifies a prompt: tokens, block hashes, and what its blocks depend on beside them.
type Identity = (Vec<u32>, Vec<PyBackedBytes>, Vec<PyBackedBytes>);

/// A finished request that another engine may take: its prompt, the tokens computed of it, and the
/// blocks of each group.
type Wanted = (Identity, u64, Vec<Vec<u32>>);

/// The scheduler's side of the connector.
#[pyclass(frozen, module = "tessera_kv._native")]
pub(crate) struct Scheduler {
    driver: SchedulerDriver,
    namespace: String,
    hash_tokens: u64,
    meter: Meter,
    local: Mutex<Option<LocalNode>>,
}

#[pymethods]
impl Scheduler {
    /// Starts the driver from the engine's document, and keeps the local node alive if no nodes
    /// are configured. `binary` is the path of the `tessera` program.
    #[new]
    fn new(py: Python<'_>, document: &str, binary: &str) -> PyResult<Self> {
        let config = EngineConfig::from_json(document).map_err(|error| error.raise(py))?;
        let namespace = config.namespace().map_err(|error| error.raise(py))?;
        let local = local::keep_alive(py, &config, binary)?;
        let driver = py.detach(|| SchedulerDriver::start(&config));
        let driver = driver.map_err(|error| error.raise(py))?;
        Ok(Self {
            driver,
            namespace: namespace.to_string(),
            hash_tokens: config.hash_tokens,
            meter: Meter::default(),
            local: Mutex::new(local),
        })
    }

    /// The identity of all objects of this engine, as hexadecimal digits: engines share what they
    /// save if, and only if, theirs are equal.
    #[getter]
    fn namespace(&self) -> String {
        self.namespace.clone()
    }

    /// Where the objects are: the nodes of the options, or the local node.
    #[getter]
    fn nodes(&self) -> Vec<String> {
        let nodes = self.driver.remote().metrics().nodes;
        nodes.iter().map(|node| node.address.to_string()).collect()
    }

    /// How many tokens after the computed ones will be loaded (None: not known yet), and whether
    /// the request is parked meanwhile.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    fn lookup(
        &self,
        py: Python<'_>,
        request: &str,
        num_tokens: u64,
        computed_tokens: u64,
        block_hashes: Vec<PyBackedBytes>,
        can_load: bool,
    ) -> PyResult<(Option<u64>, bool)> {
        let answer = py.detach(|| {
            let hashes: Vec<&[u8]> = block_hashes.iter().map(|hash| &**hash).collect();
            self.driver
                .lookup(request, num_tokens, computed_tokens, &hashes, can_load)
        });
        let answer = answer.map_err(|error| error.raise(py))?;
        Ok((answer.tokens, answer.parks()))
    }

    /// The engine has allocated blocks; `tables` are whole, one for each group.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    fn allocated(
        &self,
        py: Python<'_>,
        request: &str,
        tables: Vec<Vec<u32>>,
        external_tokens: u64,
    ) -> PyResult<()> {
        let done = py.detach(|| self.driver.allocated(request, &tables, external_tokens));
        done.map_err(|error| error.raise(py))
    }

    /// Plans one step; the bytes are for every worker.
    fn step<'py>(
        &self,
        py: Python<'py>,
        new: Vec<New>,
        known: Known,
        grown: Grown,
        preempted: Vec<String>,
        finished: Vec<String>,
    ) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let mut scheduled = known_requests(known, grown)?;
        let plan = py.detach(|| {
            scheduled.extend(new.into_iter().map(new_request));
            self.driver.step(&StepInput {
                scheduled,
                preempted,
                finished,
            })
        });
        let plan = plan.map_err(|error| error.raise(py))?;
        Ok(plan.map(|plan| PyBytes::new(py, &plan)))
    }

    /// What the engine has gathered from all workers.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    fn worker_output(
        &self,
        py: Python<'_>,
        received: Vec<String>,
        failed: Vec<String>,
        invalid_blocks: Vec<u32>,
    ) -> PyResult<()> {
        let received: Vec<&str> = received.iter().map(String::as_str).collect();
        let failed: Vec<&str> = failed.iter().map(String::as_str).collect();
        let done = py.detach(|| {
            self.driver
                .worker_output(&received, &failed, &invalid_blocks)
        });
        done.map_err(|error| error.raise(py))
    }

    /// Where this engine's workers listen: rank, process start, address of each.
    fn meet(&self, py: Python<'_>, mut workers: Vec<(u16, String, String)>) -> PyResult<()> {
        workers.sort();
        let worker = |(rank, incarnation, address): (u16, String, String)| {
            let start = u128::from_str_radix(&incarnation, 16).map_err(|error| {
                PyValueError::new_err(format!("worker {rank}: {incarnation:?}: {error}"))
            })?;
            let incarnation = Incarnation(start);
            PyResult::Ok(TicketWorker {
                incarnation,
                address,
            })
        };
        let workers = workers.into_iter().map(worker).collect::<PyResult<_>>()?;
        self.driver.meet(workers).map_err(|error| error.raise(py))
    }

    /// Tokens at the end of a prompt that is to be handed over, which are not computed here.
    #[getter]
    fn left_to_decode(&self) -> u64 {
        self.driver.left_to_decode()
    }

    /// A request has come with a ticket; why it is not taken, if it is not.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    fn admit(
        &self,
        py: Python<'_>,
        request: &str,
        ticket: &str,
        identity: Identity,
    ) -> PyResult<Option<String>> {
        let admit = |prompt: Prompt<'_>| self.driver.admit(request, ticket, prompt);
        let admitted = py.detach(|| with_prompt(&identity, self.hash_tokens, admit));
        let admitted = admitted.map_err(|error| error.raise(py))?;
        Ok(admitted.err().map(|refused| refused.to_string()))
    }

    /// Decode: a request has come with a pass; why it is computed, if it is.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    fn expect(
        &self,
        py: Python<'_>,
        request: &str,
        pass: &str,
        identity: Identity,
    ) -> PyResult<Option<String>> {
        let expect = |prompt: Prompt<'_>| self.driver.expect(request, pass, prompt);
        let expected = py.detach(|| with_prompt(&identity, self.hash_tokens, expect));
        let expected = expected.map_err(|error| error.raise(py))?;
        Ok(expected.err().map(|refused| refused.to_string()))
    }

    /// Prefill: a request has come with a pass; why it is written to nobody, if it is not.
    fn promise(&self, py: Python<'_>, request: &str, pass: &str) -> PyResult<Option<String>> {
        let promised = py.detach(|| self.driver.promise(request, pass));
        let promised = promised.map_err(|error| error.raise(py))?;
        Ok(promised.err().map(|refused| refused.to_string()))
    }

    /// Prefill has finished with a request that came with a pass. Whether its blocks must be kept
    /// until it is reported as sent.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    #[pyo3(signature = (request, wanted=None))]
    fn computed(&self, py: Python<'_>, request: &str, wanted: Option<Wanted>) -> PyResult<bool> {
        let kept = py.detach(|| match &wanted {
            None => self.driver.computed(request, None),
            Some((identity, computed_tokens, tables)) => {
                with_prompt(identity, self.hash_tokens, |prompt| {
                    let computed = Finished {
                        prompt,
                        computed_tokens: *computed_tokens,
                        tables,
                    };
                    self.driver.computed(request, Some(computed))
                })
            }
        });
        kept.map_err(|error| error.raise(py))
    }

    /// All workers have reported these requests as sent.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    fn sent(&self, py: Python<'_>, requests: Vec<String>) -> PyResult<()> {
        let requests: Vec<&str> = requests.iter().map(String::as_str).collect();
        py.detach(|| self.driver.sent(&requests))
            .map_err(|error| error.raise(py))
    }

    /// Whether blocks of finished requests wait to be written: the engine must go on.
    #[getter]
    fn is_sending(&self) -> bool {
        self.driver.is_sending()
    }

    /// Where tickets of decode engines are taken; None if nothing is written to others.
    #[getter]
    fn inbox(&self) -> Option<String> {
        self.driver.inbox().map(ToString::to_string)
    }

    /// The engine has finished with a request, which another one may take. The ticket for it, if it
    /// can be offered: then its blocks must be kept until it is reported as sent.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "PyO3 hands over what it extracted"
    )]
    #[pyo3(signature = (request, wanted=None))]
    fn finished(
        &self,
        py: Python<'_>,
        request: &str,
        wanted: Option<Wanted>,
    ) -> PyResult<Option<String>> {
        let ticket = py.detach(|| match &wanted {
            None => self.driver.finished(request, None),
            Some((identity, computed_tokens, tables)) => {
                with_prompt(identity, self.hash_tokens, |prompt| {
                    let wanted = Finished {
                        prompt,
                        computed_tokens: *computed_tokens,
                        tables,
                    };
                    self.driver.finished(request, Some(wanted))
                })
            }
        });
        ticket.map_err(|error| error.raise(py))
    }

    /// All values since the start, by name.
    fn metrics(&self, py: Python<'_>) -> HashMap<&'static str, u64> {
        py.detach(|| self.driver.metrics())
            .named()
            .into_iter()
            .collect()
    }

    /// By how much values have changed since the last call, by name; None if none has.
    fn changes(&self, py: Python<'_>) -> Option<HashMap<&'static str, i64>> {
        py.detach(|| self.meter.changes(&self.driver.metrics().named()))
    }

    /// Ends the driver; the local node goes on without this engine.
    fn shutdown(&self, py: Python<'_>) {
        py.detach(|| {
            self.driver.shutdown();
            drop(self.local.lock().take());
        });
    }
}

fn with_prompt<R>(
    (tokens, hashes, others): &Identity,
    hash_tokens: u64,
    use_it: impl FnOnce(Prompt<'_>) -> R,
) -> R {
    let hashes: Vec<&[u8]> = hashes.iter().map(|hash| &**hash).collect();
    let others: Vec<&[u8]> = others.iter().map(|other| &**other).collect();
    use_it(Prompt {
        tokens,
        hashes: &hashes,
        hash_tokens,
        others: &others,
    })
}

fn new_request(new: New) -> ScheduledRequest {
    let (request, computed_tokens, scheduled_tokens, blocks, hashes) = new;
    ScheduledRequest {
        request,
        whole_tables: true,
        computed_tokens,
        scheduled_tokens,
        blocks,
        hashes: owned(&hashes),
        hashes_from: 0,
    }
}

fn known_requests(known: Known, mut grown: Grown) -> PyResult<Vec<ScheduledRequest>> {
    let (requests, blocks, computed, scheduled, resumed) = known;
    let lengths = [blocks.len(), computed.len(), scheduled.len()];
    if lengths != [requests.len(); 3] {
        let message = format!("{} requests with columns of {lengths:?}", requests.len());
        return Err(PyValueError::new_err(message));
    }
    let tokens = computed.into_iter().zip(scheduled);
    let columns = requests.into_iter().zip(blocks).zip(tokens);
    let row = |((request, blocks), (computed_tokens, scheduled_tokens))| {
        let (hashes_from, hashes) = grown.remove(&request).unwrap_or_default();
        ScheduledRequest {
            whole_tables: resumed.contains(&request),
            request,
            computed_tokens,
            scheduled_tokens,
            blocks: Option::unwrap_or_default(blocks),
            hashes: owned(&hashes),
            hashes_from,
        }
    };
    Ok(columns.map(row).collect())
}

fn owned(hashes: &[PyBackedBytes]) -> Vec<Vec<u8>> {
    hashes.iter().map(|hash| hash.to_vec()).collect()
}
