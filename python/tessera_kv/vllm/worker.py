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
from tessera_kv.vllm.self_test import self_test


class TesseraWorker:
    """The hooks of a worker, in the order of a step."""

    def __init__(
        self, document: Document, kv_cache_config: Any, binary: str, self_test: bool
    ) -> None:
        """Keep what is needed to register block memory; nothing runs before that."""
        self._document = json.dumps(document)
        self._kv_cache_config = kv_cache_config
        self._binary = binary
        self._self_test = self_test
        self._native: _native.Worker | None = None

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """Start the native worker on the engine's block memory."""
        layers = layout.layers(kv_caches, self._kv_cache_config)
        num_blocks = self._kv_cache_config.num_blocks
        # The native part holds the tensors for as long as anything may still touch their memory.
        memory = (self._document, json.dumps(layers), num_blocks, list(kv_caches.values()))
        if self._self_test:
            self_test(_native.BlockCopier(*memory), layers, kv_caches, num_blocks)
        self._native = _native.Worker(*memory, self._binary)

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

    def changes(self) -> dict[str, int] | None:
        """By how much counters have changed since the last call; None if none has."""
        return None if self._native is None else self._native.changes()

    def shutdown(self) -> None:
        """End the native worker: wait for what still touches memory. Hooks raise from now on."""
        if self._native is not None:
            self._native.shutdown()
