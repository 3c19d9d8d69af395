"""The connector's side in a worker: translates its hooks into native calls, at most one each.

Created by `TesseraConnector` in every worker process. Block memory is described once and never
touched from here: the native part reads and writes it. Most steps neither load nor save anything:
these make no native call at all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from tessera_kv import _native
from tessera_kv.vllm import layout
from tessera_kv.vllm.data import Document, PeerPlace, TesseraMetadata
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
        # Tests put a simulated device under the block memory; no option does.
        self.device: _native.SimDevice | None = None
        # Whether the native part may have news: from a plan until a poll that found it idle. What
        # that poll left behind, such as counters, is collected in the same pass or in the next.
        self._active = self._collecting = True

    def register(self, kv_caches: Mapping[str, Any]) -> None:
        """Start the native worker on the engine's block memory."""
        layers = layout.layers(kv_caches, self._kv_cache_config)
        num_blocks = self._kv_cache_config.num_blocks
        # The native part holds the tensors for as long as anything may still touch their memory.
        memory = (self._document, json.dumps(layers), num_blocks, list(kv_caches.values()))
        if self._self_test:
            self_test(_native.BlockCopier(*memory, self.device), layers, kv_caches, num_blocks)
        self._native = _native.Worker(*memory, self._binary, self.device)

    @property
    def native(self) -> _native.Worker:
        """The native worker; there is none before memory is registered."""
        if self._native is None:
            raise RuntimeError("register_kv_caches was not called: report this engine")
        return self._native

    def place(self) -> PeerPlace | None:
        """Where other engines find this worker, if they may."""
        place = self.native.peer_place
        return None if place is None else PeerPlace(*place)

    def before_step(self, metadata: TesseraMetadata) -> None:
        """Memory is about to be overwritten: what still needs it ends first."""
        if metadata.plan is not None:
            self.native.preempt(metadata.plan)

    def begin_step(self, metadata: TesseraMetadata) -> None:
        """Start the loads of the step."""
        if metadata.plan is not None:
            self._active = self._collecting = True
            self.native.begin_step(metadata.plan)

    def end_step(self, metadata: TesseraMetadata) -> None:
        """Copy what the step completed, to be saved."""
        if metadata.plan is not None:
            self.native.end_step()

    def results(self) -> tuple[list[str], list[str], list[str]]:
        """Requests whose sends ended, whose receives ended, and whose receives failed."""
        self._collecting = self._active
        if not self._active:
            return [], [], []
        results, idle = self.native.poll()
        self._active = not idle
        return results

    def invalid_blocks(self) -> list[int]:
        """Blocks that a load without an outcome of its own could not fill."""
        return self.native.take_invalid_blocks() if self._collecting else []

    def changes(self) -> dict[str, int] | None:
        """By how much counters have changed since the last call; None if none has."""
        if self._native is None or not self._collecting:
            return None
        return self._native.changes()

    def shutdown(self) -> None:
        """End the native worker: wait for what still touches memory. Hooks raise from now on."""
        if self._native is not None:
            self._native.shutdown()
