"""The connector's side in a worker: translates its hooks into native calls, one each.

Created by `TesseraConnector` in every worker process. Block memory is described once and never
touched from here: the native part reads and writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tessera_kv import _native
from tessera_kv.vllm import layout
from tessera_kv.vllm.data import Document, TesseraMetadata


class TesseraWorker:
    """The hooks of a worker, in the order of a step."""

    def __init__(self, document: Document, kv_cache_config: Any) -> None:
        """Keep what is needed to register block memory; nothing runs before that."""
        self._document = document
        self._kv_cache_config = kv_cache_config
        self._native: _native.Worker | None = None

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """Start the native worker on the engine's block memory."""
        # The native part holds the tensors for as long as anything may still touch their memory.
        self._native = _native.Worker(
            json.dumps(self._document),
            json.dumps(layout.layers(kv_caches, self._kv_cache_config)),
            self._kv_cache_config.num_blocks,
            list(kv_caches.values()),
        )

    @property
    def native(self) -> _native.Worker:
        """The native worker; there is none before memory is registered."""
        if self._native is None:
            raise RuntimeError("register_kv_caches was not called: report this engine")
        return self._native

    def before_step(self, metadata: TesseraMetadata) -> None:
        """Memory is about to be overwritten: what still needs it ends first."""
        self.native.preempt(metadata.plan)

    def begin_step(self, metadata: TesseraMetadata) -> None:
        """Start the loads of the step."""
        self.native.begin_step(metadata.plan)

    def end_step(self) -> None:
        """Copy what the step completed, to be saved."""
        self.native.end_step()

    def results(self) -> tuple[list[str], list[str], list[str]]:
        """Requests whose sends ended, whose receives ended, and whose receives failed."""
        return self.native.poll()

    def invalid_blocks(self) -> list[int]:
        """Blocks that a load without an outcome of its own could not fill."""
        return self.native.take_invalid_blocks()

    def metrics(self) -> dict[str, int]:
        """The counters since the start."""
        return {} if self._native is None else self._native.metrics()

    def shutdown(self) -> None:
        """End the native worker: wait for what still touches memory. Hooks raise from now on."""
        if self._native is not None:
            self._native.shutdown()
