"""The connector's own time in each engine step, measured from outside.

Used by `engine.py` on request: every hook that vLLM calls is wrapped on the two connectors of an
engine that runs in one process. What the wrapper itself costs is counted too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from vllm.distributed.kv_transfer import get_kv_transfer_group

SCHEDULER = (
    "get_num_new_matched_tokens",
    "update_state_after_alloc",
    "build_connector_meta",
    "update_connector_output",
    "request_finished",
    "request_finished_all_groups",
    "take_events",
    "get_kv_connector_stats",
)
WORKER = (
    "handle_preemptions",
    "bind_connector_metadata",
    "start_load_kv",
    "wait_for_layer_load",
    "save_kv_layer",
    "wait_for_save",
    "get_transfer_results",
    "get_block_ids_with_load_errors",
    "get_kv_connector_stats",
    "get_kv_connector_kv_cache_events",
    "build_connector_worker_meta",
    "clear_connector_metadata",
)


class HookClock:
    """Nanoseconds spent in hooks, and in whole steps, step by step."""

    def __init__(self, engine: Any) -> None:
        self.spent_ns = 0
        self.steps_ns: list[int] = []
        self.whole_ns: list[int] = []
        self._step = engine.step
        scheduler = engine.engine_core.engine_core.scheduler.connector
        for connector, hooks in ((scheduler, SCHEDULER), (get_kv_transfer_group(), WORKER)):
            for hook in hooks:
                setattr(connector, hook, self._timed(getattr(connector, hook)))

    def _timed(self, hook: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter_ns()
            try:
                return hook(*arguments, **named)
            finally:
                self.spent_ns += time.perf_counter_ns() - begun

        return timed

    def step(self) -> Any:
        """One engine step, its hooks added up."""
        self.spent_ns = 0
        begun = time.perf_counter_ns()
        outputs = self._step()
        self.whole_ns.append(time.perf_counter_ns() - begun)
        self.steps_ns.append(self.spent_ns)
        return outputs
