"""The connector's side in the scheduler: translates its hooks into native calls, one each.

Created by `TesseraConnector` in the scheduler's process. It keeps only what vLLM hands over once
and needs again: the requests, whose block hashes grow, and how many of them were passed on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from vllm.logger import init_logger

from tessera_kv import _native
from tessera_kv.vllm import handover
from tessera_kv.vllm.data import Document, PeerPlace, TesseraMetadata

logger = init_logger("vllm.tessera")

# A request as the native part takes it whole: id, tokens computed before the step, tokens of the
# step, blocks of each group, block hashes.
NewRequest = tuple[str, int, int, Sequence[list[int]], list[bytes]]


class TesseraScheduler:
    """The hooks of the scheduler, in the order in which a request meets them."""

    def __init__(self, document: Document, binary: str, engine: str = "") -> None:
        """Start the native scheduler, and the local node where no nodes are configured.

        `engine` is the engine's own name, which routers pass on.
        """
        self._native = _native.Scheduler(json.dumps(document), binary)
        logger.info(
            "Cache identity %s, nodes %s: engines of one identity share what they save.",
            self._native.namespace,
            ", ".join(self._native.nodes),
        )
        self._engine = engine
        self._places: list[PeerPlace] = []
        self._samples = handover.Samples()
        self._requests: dict[str, Any] = {}
        # Those that came with a pass, and whose prompt is written to another engine.
        self._promised: dict[str, Any] = {}
        self._hashes_sent: dict[str, int] = {}
        # Whether counters may have changed since they were read: steps without a plan change none.
        self._counting = True

    def meet(self, places: Iterable[PeerPlace]) -> None:
        """Take note of where this engine's own workers listen for other engines."""
        self._places = sorted(places, key=lambda place: place.rank)
        self._native.meet(
            [(place.rank, place.incarnation, place.address) for place in self._places]
        )

    def arrived(self, request: Any) -> None:
        """A request is new: it may come from prefill, or be for decode to go on with."""
        if self._places and handover.is_wanted(request):
            handover.leave_to_decode(request, self._native.left_to_decode)
        refused = self._admit(request)
        if refused is not None:
            logger.warning("Request %s is computed here alone: %s.", request.request_id, refused)

    def _admit(self, request: Any) -> str | None:
        """Pass the request's ticket or pass on; why it is not used, if it is not."""
        name, prompt = request.request_id, handover.identity(request)
        if prompt is None:
            return None
        self._counting = True
        sealed = handover.pass_of(request)
        if sealed is not None and handover.is_wanted(request):
            refused = self._native.promise(name, sealed)
            if refused is None:
                self._promised[name] = request
            return refused
        if sealed is not None and handover.is_taken(request):
            return self._native.expect(name, sealed, prompt)
        ticket = handover.ticket(request)
        return None if ticket is None else self._native.admit(name, ticket, prompt)

    def lookup(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        """How many tokens after the computed ones can be loaded, and whether it waits for them."""
        self._requests[request.request_id] = request
        self._counting = True
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
        self._counting = True
        self._native.allocated(request.request_id, blocks.get_block_ids(), external_tokens)

    def step(self, output: Any) -> TesseraMetadata:
        """Plan the step that the scheduler has decided."""
        known = output.scheduled_cached_reqs
        for request_id in known.resumed_req_ids:
            self._hashes_sent.pop(request_id, None)
        # Requests that run on stay the columns that they come in: there may be hundreds of them in
        # every step, and most have nothing new.
        columns = (
            known.req_ids,
            known.new_block_ids,
            known.num_computed_tokens,
            scheduled_tokens(output, known.req_ids),
            known.resumed_req_ids,
        )
        plan = self._native.step(
            self._new_requests(output),
            columns,
            self._grown(known.req_ids),
            list(output.preempted_req_ids or ()),
            list(output.finished_req_ids),
        )
        self._counting |= plan is not None
        return TesseraMetadata(plan)

    def _new_requests(self, output: Any) -> list[NewRequest]:
        """Requests that are sent whole; one of vLLM's model runners resumes them like this too."""
        new = output.scheduled_new_reqs
        if not new:
            return []
        tokens = scheduled_tokens(output, [it.req_id for it in new])
        whole = []
        for it, scheduled in zip(new, tokens, strict=True):
            hashes = self._requests[it.req_id].block_hashes
            self._hashes_sent[it.req_id] = len(hashes)
            whole.append((it.req_id, it.num_computed_tokens, scheduled, it.block_ids, hashes))
        return whole

    def _grown(self, request_ids: Sequence[str]) -> dict[str, tuple[int, list[bytes]]]:
        """Hashes that were not passed on yet, by request, and the index of the first of them."""
        grown = {}
        for request_id in request_ids:
            hashes = self._requests[request_id].block_hashes
            sent = self._hashes_sent.get(request_id, 0)
            if len(hashes) > sent:
                grown[request_id] = (sent, hashes[sent:])
                self._hashes_sent[request_id] = len(hashes)
        return grown

    def worker_output(self, output: Any) -> None:
        """What all workers together reported about loads: nothing, after most steps."""
        if output.finished_sending:
            self._native.sent(list(output.finished_sending))
        received, failed = output.finished_recving, output.failed_recving
        invalid = output.invalid_block_ids
        if received or failed or invalid:
            self._counting = True
            self._native.worker_output(
                list(received or ()), list(failed or ()), list(invalid or ())
            )

    def finished(
        self, request: Any, blocks: Sequence[list[int]]
    ) -> tuple[bool, dict[str, Any] | None]:
        """The request is over; whether its blocks must be kept, and what a router passes on."""
        self._counting = True
        request_id = request.request_id
        # A name may come again, and the step that says so of the first may already hold the second.
        if self._requests.get(request_id) is request:
            del self._requests[request_id]
            self._hashes_sent.pop(request_id, None)
        wanted = handover.wanted(request, blocks) if self._places else None
        if self._promised.get(request_id) is request:
            del self._promised[request_id]
            return self._native.computed(request_id, wanted), None
        if wanted is not None and handover.pass_of(request) is not None:
            # Whoever sent it takes no ticket.
            wanted = None
        earlier = self._samples.answer(request) if wanted else None
        ticket = self._native.finished(request_id, None if earlier else wanted)
        if ticket is None:
            return False, earlier
        answer = handover.answer(request, blocks, ticket, self._engine, self._places)
        return True, self._samples.keep(request, answer)

    def is_sending(self) -> bool:
        """Whether blocks are kept that only further steps can free."""
        return self._native.is_sending

    def changes(self) -> dict[str, int] | None:
        """By how much counters have changed since the last call; None if none has."""
        if not self._counting:
            return None
        self._counting = False
        return self._native.changes()

    def shutdown(self) -> None:
        """End the native scheduler. Hooks raise from now on."""
        self._native.shutdown()


def scheduled_tokens(output: Any, request_ids: Sequence[str]) -> list[int]:
    """Tokens of the step that will stay: drafts may be rejected, and are not counted."""
    tokens, drafts = output.num_scheduled_tokens, output.scheduled_spec_decode_tokens
    return [tokens[request_id] - len(drafts.get(request_id, ())) for request_id in request_ids]
