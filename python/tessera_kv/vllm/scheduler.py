"""The connector's side in the scheduler: translates its hooks into native calls, one each.

Created by `TesseraConnector` in the scheduler's process. It keeps only what vLLM hands over once
and needs again: the requests, whose block hashes grow, and how many of them were passed on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from tessera_kv import _native
from tessera_kv.vllm.data import Document, TesseraMetadata

# One scheduled request as the native part takes it: id, whether the table is sent whole, tokens
# computed before the step, tokens of the step, new blocks of each group, new block hashes, and the
# index of the first of these.
Scheduled = tuple[str, bool, int, int, Sequence[list[int]], list[bytes], int]


class TesseraScheduler:
    """The hooks of the scheduler, in the order in which a request meets them."""

    def __init__(self, document: Document, binary: str) -> None:
        """Start the native scheduler, and the local node where no nodes are configured."""
        self._native = _native.Scheduler(json.dumps(document), binary)
        self._requests: dict[str, Any] = {}
        self._hashes_sent: dict[str, int] = {}

    def lookup(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens after the computed ones can be loaded, and whether it waits for them."""
        self._requests[request.request_id] = request
        return self._native.lookup(
            request.request_id,
            request.num_tokens,
            computed_tokens,
            request.block_hashes,
            not request.skip_reading_prefix_cache,
        )

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        """The request got its blocks; `external_tokens` of them are to be loaded."""
        self._requests[request.request_id] = request
        self._native.allocated(request.request_id, blocks.get_block_ids(), external_tokens)

    def step(self, output: Any) -> TesseraMetadata:
        """Plan the step that the scheduler has decided."""
        scheduled = [*self._new_requests(output), *self._known_requests(output)]
        plan = self._native.step(
            scheduled, list(output.preempted_req_ids or ()), list(output.finished_req_ids)
        )
        for request_id in output.finished_req_ids:
            self._requests.pop(request_id, None)
            self._hashes_sent.pop(request_id, None)
        return TesseraMetadata(plan)

    def _new_requests(self, output: Any) -> Iterator[Scheduled]:
        for new in output.scheduled_new_reqs:
            # Sent again whole after a preemption by one of vLLM's model runners.
            self._hashes_sent.pop(new.req_id, None)
            yield (
                new.req_id,
                True,
                new.num_computed_tokens,
                scheduled_tokens(output, new.req_id),
                new.block_ids,
                *self._new_hashes(new.req_id),
            )

    def _known_requests(self, output: Any) -> Iterator[Scheduled]:
        known = output.scheduled_cached_reqs
        for request_id, blocks, computed in zip(
            known.req_ids, known.new_block_ids, known.num_computed_tokens, strict=True
        ):
            resumed = request_id in known.resumed_req_ids
            if resumed:
                self._hashes_sent.pop(request_id, None)
            yield (
                request_id,
                resumed,
                computed,
                scheduled_tokens(output, request_id),
                blocks or (),
                *self._new_hashes(request_id),
            )

    def _new_hashes(self, request_id: str) -> tuple[list[bytes], int]:
        """The hashes that were not passed on yet, and the index of the first of them."""
        sent = self._hashes_sent.get(request_id, 0)
        hashes = self._requests[request_id].block_hashes
        if len(hashes) <= sent:
            return [], sent
        self._hashes_sent[request_id] = len(hashes)
        return hashes[sent:], sent

    def worker_output(self, output: Any) -> None:
        """What all workers together reported about loads."""
        self._native.worker_output(
            list(output.finished_recving or ()),
            list(output.failed_recving or ()),
            list(output.invalid_block_ids or ()),
        )

    def finished(self, request: Any) -> bool:
        """The request is over; whether its blocks must be kept for now."""
        return self._native.finished(request.request_id)

    def changes(self) -> dict[str, int] | None:
        """By how much counters have changed since the last call; None if none has."""
        return self._native.changes()

    def shutdown(self) -> None:
        """End the native scheduler. Hooks raise from now on."""
        self._native.shutdown()


def scheduled_tokens(output: Any, request_id: str) -> int:
    """Tokens of the step that will stay: drafts may be rejected, and are not counted."""
    drafts = output.scheduled_spec_decode_tokens.get(request_id, ())
    return int(output.num_scheduled_tokens[request_id]) - len(drafts)
