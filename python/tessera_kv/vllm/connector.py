"""The connector that vLLM creates by the name `TesseraConnector`, once in each of its processes.

It has one side in the scheduler and one in every worker; each hook passes the call on to the side
that lives in this process. The hooks keep the rules of `KVConnectorBase_V1`: a lookup is pure,
every request is reported once by every rank, and metrics never raise.
"""

from __future__ import annotations

from typing import Any

import vllm

from tessera_kv.vllm import require_engine

# Before anything that an older engine does not have is imported.
ENGINE = ".".join(map(str, require_engine(vllm.__version__)))

from vllm.distributed.kv_transfer.kv_connector.v1.base import (  # noqa: E402
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    SupportsHMA,
)
from vllm.logger import init_logger  # noqa: E402

from tessera_kv import _native  # noqa: E402
from tessera_kv.command import BINARY  # noqa: E402
from tessera_kv.vllm import layout, metrics  # noqa: E402
from tessera_kv.vllm.data import PeerPlace, TesseraMetadata  # noqa: E402
from tessera_kv.vllm.scheduler import TesseraScheduler  # noqa: E402
from tessera_kv.vllm.worker import TesseraWorker  # noqa: E402

logger = init_logger("vllm.tessera")


class TesseraConnector(KVConnectorBase_V1, SupportsHMA):
    """Saves and loads KV caches through cache nodes, and hands prompts over to other engines."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        """Start the side that `role` names. Raises if this engine cannot be served exactly."""
        super().__init__(vllm_config, role, kv_cache_config)
        transfer = vllm_config.kv_transfer_config
        options = _native.Options(transfer.kv_connector_extra_config)
        document = layout.engine_document(vllm_config, kv_cache_config, options, ENGINE)
        self._scheduler: TesseraScheduler | None = None
        self._worker: TesseraWorker | None = None
        if role == KVConnectorRole.SCHEDULER:
            if options.recompute and transfer.kv_load_failure_policy != "recompute":
                # The engine reads its policy right after this constructor.
                transfer.kv_load_failure_policy = "recompute"
                logger.info("A failed load is computed instead: no request fails for the cache.")
            if not layout.can_continue_prefix(vllm_config):
                logger.warning(
                    "Chunked prefill is off, so this engine cannot compute the rest of a prompt "
                    "whose beginning was loaded: prompts are saved, and no hit is claimed."
                )
            self._scheduler = TesseraScheduler(document, str(BINARY), transfer.engine_id)
        else:
            document["rank"] = layout.rank(vllm_config.parallel_config)
            self._worker = TesseraWorker(document, kv_cache_config, str(BINARY), options.self_test)

    @property
    def requires_kv_delivery(self) -> bool:
        """A save that is dropped is a miss later; nothing waits for it."""
        return False

    def shutdown(self) -> None:
        """End this side: wait, for a bounded time, for transfers under way."""
        for side in (self._scheduler, self._worker):
            if side is not None:
                side.shutdown()

    # The scheduler's hooks.

    @property
    def scheduler(self) -> TesseraScheduler:
        """The scheduler's side."""
        if self._scheduler is None:
            raise RuntimeError("this is a worker's connector: it has no scheduler's hooks")
        return self._scheduler

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """Take note of where the workers listen for other engines."""
        self.scheduler.meet(it for it in metadata.values() if isinstance(it, PeerPlace))

    def on_new_request(self, request: Any) -> None:
        """Take note of a request that comes from prefill, or is for decode to go on with."""
        self.scheduler.arrived(request)

    def get_num_new_matched_tokens(
        self, request: Any, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        """Answer how many tokens can be loaded, None while that is being found out."""
        return self.scheduler.lookup(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Take note of the request's blocks."""
        self.scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        """Plan the step for all workers."""
        return self.scheduler.step(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        """Take note of what all workers reported."""
        self.scheduler.worker_output(connector_output)

    def request_finished(
        self, request: Any, block_ids: list[int]
    ) -> tuple[bool, dict[str, Any] | None]:
        """End the request; its blocks are kept only for a decode engine that will take them."""
        return self.scheduler.finished(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """End the request of an engine with several cache groups."""
        return self.scheduler.finished(request, block_ids)

    def has_pending_push_work(self) -> bool:
        """Go on with steps while a prompt waits for the decode engine that it is written to."""
        return self.scheduler.is_sending()

    def reset_cache(self) -> bool | None:
        """Refuse: one engine cannot empty what others share."""
        logger.warning(
            "The cache is shared and was not reset. After a change of weights, restart the engine "
            'with another "model_revision" or "tenant" in kv_connector_extra_config.'
        )
        return False

    # The workers' hooks.

    @property
    def worker(self) -> TesseraWorker:
        """The worker's side."""
        if self._worker is None:
            raise RuntimeError("this is the scheduler's connector: it has no workers' hooks")
        return self._worker

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        """Start to work on the engine's block memory."""
        self.worker.register(kv_caches)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """Say where other engines find this worker, if they may."""
        return self.worker.place()

    def handle_preemptions(self, kv_connector_metadata: KVConnectorMetadata) -> None:
        """Fence what still needs memory that is about to be overwritten."""
        self.worker.before_step(plan_of(kv_connector_metadata))

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Start the loads of the step."""
        self.worker.begin_step(plan_of(self._get_connector_metadata()))

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing is loaded while the model runs over it."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing is saved before the step is complete."""

    def wait_for_save(self) -> None:
        """Copy what the step completed, to be saved beside the following steps."""
        self.worker.end_step(plan_of(self._get_connector_metadata()))

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Report what ended since the last call, each request once."""
        sent, received, failed = self.worker.results()
        return KVConnectorTransferResults(set(sent), set(received), set(failed))

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Report blocks that could not be filled, where blocks are reported at all."""
        return set(self.worker.invalid_blocks())

    # Metrics of both sides: they never raise.

    def get_kv_connector_stats(self) -> metrics.TesseraStats | None:
        """What was counted since the last call."""
        return metrics.read(self._scheduler or self._worker)

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> metrics.TesseraStats:
        """Rebuild what a worker sent as data."""
        return metrics.TesseraStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: dict[Any, Any],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> metrics.TesseraPromMetrics:
        """Register the metrics of this connector with Prometheus."""
        return metrics.TesseraPromMetrics(
            vllm_config, metric_types, labelnames, per_engine_labelvalues
        )


def plan_of(metadata: KVConnectorMetadata) -> TesseraMetadata:
    """The metadata of a step as this connector made it."""
    if not isinstance(metadata, TesseraMetadata):
        raise TypeError(f"metadata of another connector reached Tessera: {type(metadata).__name__}")
    return metadata
