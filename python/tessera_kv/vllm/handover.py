"""What a request says of prefill and decode, and what it is answered, in the routers' words.

Called by `TesseraScheduler`. Where prefill is first, routers pass `kv_transfer_params` from one
engine to the other as they are; all that counts in them is the ticket, which the native part signs
and opens. Where both get the request at once, it is the pass, which whoever sent it has signed.
Nothing here decides: it reads vLLM's requests, and shortens the prompt of one whose last token
decode computes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from vllm.v1.request import RequestStatus

from tessera_kv.vllm.data import PeerPlace

# Tokens, block hashes, and what blocks depend on where no whole block says it.
Identity = tuple[Sequence[int], list[bytes], list[bytes]]

# A prompt, the tokens computed of it, and the blocks of each group.
Wanted = tuple[Identity, int, Sequence[list[int]]]

TICKET = "tessera_ticket"
# Of a request that a dispatcher sends to both engines at once.
PASS = "tessera_pass"

SAMPLES_KEPT = 256
"""Prompts of several samples whose answer is remembered."""


def identity(request: Any) -> Identity | None:
    """What identifies the request's prompt; None if it is not made of tokens."""
    tokens = request.prompt_token_ids
    if tokens is None:
        return None
    lora = request.lora_request
    others = [f"salt {request.cache_salt}", f"lora {lora.lora_name if lora else None}"]
    others += [f"{it.identifier} {it.mm_position}" for it in request.mm_features or ()]
    return tokens, list(request.block_hashes), [other.encode() for other in others]


def ticket(request: Any) -> str | None:
    """The ticket that the request came with."""
    if not is_taken(request):
        return None
    found = request.kv_transfer_params.get(TICKET)
    return found if isinstance(found, str) else None


def pass_of(request: Any) -> str | None:
    """The pass that the request came with, on either engine."""
    found = (request.kv_transfer_params or {}).get(PASS)
    return found if isinstance(found, str) else None


def is_taken(request: Any) -> bool:
    """Whether another engine computes the request's prompt."""
    params = request.kv_transfer_params
    return bool(params and params.get("do_remote_prefill"))


def is_wanted(request: Any) -> bool:
    """Whether another engine is to go on from the request's prompt."""
    params = request.kv_transfer_params
    return bool(params and params.get("do_remote_decode"))


def leave_to_decode(request: Any, tokens: int) -> None:
    """Shorten the prompt by its last `tokens`, unless nothing would be left."""
    prompt = request.prompt_token_ids
    if not tokens or prompt is None or len(prompt) <= tokens or request.num_output_tokens:
        return
    if request.skip_reading_prefix_cache:
        # Decode loads nothing for it.
        return
    request.prompt_token_ids = prompt[:-tokens]
    del request._all_token_ids[-tokens:]
    request.num_prompt_tokens -= tokens
    request.max_tokens = 1


def wanted(request: Any, blocks: Sequence[list[int]]) -> Wanted | None:
    """The finished request as it can be offered; None if it did not end well or nobody asks."""
    ended = (RequestStatus.FINISHED_LENGTH_CAPPED, RequestStatus.FINISHED_STOPPED)
    if not is_wanted(request) or request.status not in ended:
        return None
    prompt = identity(request)
    return None if prompt is None else (prompt, request.num_computed_tokens, blocks)


class Samples:
    """What the samples of one prompt are answered: all the same, with the ticket of the first.

    vLLM makes a request of each sample and passes on what the last one to end is answered. A second
    offer would be one that nobody hears of, or that leaves nobody to hear of the first; it would
    wait for its lease.
    """

    def __init__(self) -> None:
        """Nothing is answered yet."""
        self._answers: OrderedDict[str, tuple[set[str], dict[str, Any]]] = OrderedDict()

    def answer(self, request: Any) -> dict[str, Any] | None:
        """What another sample of the request's prompt was answered; None if it is the first."""
        index, name = sample(request)
        answered, answer = self._answers.get(name, (set(), None))
        if index in answered:
            # A name may come again, with another prompt.
            del self._answers[name]
            return None
        answered.add(index)
        return answer

    def keep(self, request: Any, answer: dict[str, Any]) -> dict[str, Any]:
        """Remember the answer for the other samples, for as long as there is room. Return it."""
        index, name = sample(request)
        if name:
            self._answers[name] = {index}, answer
            if len(self._answers) > SAMPLES_KEPT:
                self._answers.popitem(last=False)
        return answer


def sample(request: Any) -> tuple[str, str]:
    """The index of a sample, and the name that all of its prompt share: vLLM names them
    `INDEX_NAME`. Empty for any other name."""
    index, _, name = request.request_id.partition("_")
    return (index, name) if index.isdecimal() else ("", "")


def answer(
    request: Any, blocks: Sequence[list[int]], sealed: str, engine: str, places: Sequence[PeerPlace]
) -> dict[str, Any]:
    """The parameters with which a router sends the request on to decode."""
    host, _, port = places[0].address.rpartition(":")
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": engine,
        "remote_request_id": request.request_id,
        "remote_block_ids": [list(group) for group in blocks],
        "remote_host": host,
        "remote_port": int(port),
        "tp_size": len(places),
        TICKET: sealed,
    }
