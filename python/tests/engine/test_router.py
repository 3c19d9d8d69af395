"""A prefill and a decode server behind `vllm-router` with its serial dispatch, and behind
`tessera proxy` in both of its modes, as users run them.

Who reads sends a prompt to prefill for one token, and what prefill answers with on to decode; who
writes asks both at once. Both servers neither save nor load, so that what decode did not compute
came from prefill. Blocks that nobody takes come back with their lease: a test that no lease may
help asks for transfers that failed, of which there must be none.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from http.client import HTTPException
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import TOKENS
from harness import Node, prompt, wait_until
from servers import READERS, WRITER, Count, HttpError, Pair, Service, ask, counting, events, pair

MODELS = os.environ.get("TESSERA_ROUTER_MODELS", "llama").split()
LEASE_MS = 20_000
LENGTH = 1300
"""Tokens of a prompt: whole blocks of either model, and a part of one."""
MANY = 256


@dataclass
class Dispatched(Pair):
    """Two servers, and what goes through the dispatchers before them."""

    name: str
    _numbers: Iterator[int]

    def new_prompt(self) -> list[int]:
        """With recurrent state its last token is the one that an engine alone goes on with: see
        `test_handover`."""
        tokens = prompt(LENGTH, f"{self.name} {next(self._numbers)}")
        if self.recurrent:
            tokens[-1:] = self.computed(tokens[:-1], 1)
        return tokens

    @property
    def recurrent(self) -> bool:
        return self.name == "qwen3_next"

    def alone(self, tokens: list[int]) -> list[int]:
        """What one engine answers by itself that has computed the last token as decode does."""
        if not self.recurrent:
            return self.computed(tokens, TOKENS)
        last, *answer = self.computed(tokens[:-1], 1 + TOKENS)
        assert last == tokens[-1]
        return answer

    def computed(self, tokens: list[int], count: int) -> list[int]:
        """What prefill answers that computes the whole prompt for itself."""
        (answer,) = self.prefill.complete(tokens, count).samples
        self.forget()
        return answer

    def forget(self) -> None:
        """All blocks of both servers are free, and nothing is open between them."""
        for server in (self.prefill, self.decode):
            wait_until(server.is_rested, f"{server.log.stem} to rest", LEASE_MS / 1000 + 30)

    @contextlib.contextmanager
    def counting(self) -> Iterator[tuple[Count, Count]]:
        """What both count, up to the end of whatever was begun inside."""
        with counting(self.prefill) as prefill, counting(self.decode) as decode:
            yield prefill, decode
            self.forget()


@pytest.fixture(scope="module", params=MODELS)
def both(
    request: pytest.FixtureRequest,
    model: Callable[[str], Path],
    binary: Path,
    node: Node,
    logs: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Dispatched]:
    folder = tmp_path_factory.mktemp("key")
    folder.chmod(0o700)
    name = request.param
    started = pair(model(name), name, binary, node.address, logs, folder, peer_lease_ms=LEASE_MS)
    with started as it:
        yield Dispatched(it.prefill, it.decode, it.dispatchers, name, count())


@pytest.fixture(params=[*READERS, WRITER])
def dispatcher(request: pytest.FixtureRequest, both: Dispatched) -> Service:
    """One after the other, before the same servers."""
    return both.dispatchers[request.param]


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest, both: Dispatched) -> Service:
    """Of many at once whoever writes keeps what it has computed only for as long as a lease."""
    return both.dispatchers[request.param]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_decode_behind_a_dispatcher_computes_the_last_token_and_answers_like_one_engine(
    both: Dispatched, dispatcher: Service, stream: bool
) -> None:
    tokens = both.new_prompt()
    answer = both.alone(tokens)
    with both.counting() as (prefill, decode):
        found = dispatcher.complete(tokens, TOKENS, stream)
    assert found.samples == [answer]
    assert (decode.external, decode.computed) == (LENGTH - 1, 1)
    assert given(prefill) == decode.ours("peer_takes") == 1
    assert_no_lease_helped(prefill, decode)


def test_samples_of_one_prompt_are_one_offer_and_one_transfer(
    both: Dispatched, dispatcher: Service
) -> None:
    """Behind `vllm-router` prefill too computes each sample, and vLLM passes on one ticket."""
    tokens = both.new_prompt()
    answer = both.alone(tokens)
    with both.counting() as (prefill, decode):
        # The best of one is greedy, and vLLM takes no greedy request of several samples.
        found = dispatcher.complete(tokens, TOKENS, n=2, temperature=1, top_k=1)
    assert [len(sample) for sample in found.samples] == [TOKENS, TOKENS]
    # In bfloat16 the best one is often several, of which one is drawn.
    assert both.recurrent or found.samples == [answer, answer]
    assert given(prefill) == decode.ours("peer_takes") == 1
    assert_no_lease_helped(prefill, decode)


def test_client_that_goes_while_it_is_answered_leaves_nothing_behind(
    both: Dispatched, dispatcher: Service
) -> None:
    tokens, wanted = both.new_prompt(), 2000
    with both.counting() as (prefill, decode):
        body = ask(tokens, wanted, stream=True)
        with dispatcher.exchange("POST", "/v1/completions", body) as answer:
            next(events(answer))
    assert decode.of("vllm:generation_tokens_total") < wanted
    assert_no_lease_helped(prefill, decode)


def test_client_that_goes_before_it_is_answered_leaves_nothing_behind(
    both: Dispatched, dispatcher: Service
) -> None:
    """Prefill may have offered by then to a decode engine that nobody asks, or that is gone."""
    tokens = both.new_prompt()
    with both.counting() as (_, decode), pytest.raises(TimeoutError):
        dispatcher.complete(tokens, 2000, timeout_s=0.2)
    assert decode.of("vllm:generation_tokens_total") < 2000


@pytest.mark.parametrize("params", [None, {"do_remote_prefill": True}], ids=["plain", "no ticket"])
def test_request_without_a_ticket_is_computed(
    both: Dispatched, params: dict[str, Any] | None
) -> None:
    tokens = both.new_prompt()
    answer = both.computed(tokens, TOKENS)
    with both.counting() as (prefill, decode):
        found = both.decode.complete(tokens, TOKENS, kv_transfer_params=params)
    assert found.samples == [answer]
    assert (decode.external, decode.computed) == (0, LENGTH)
    assert prefill.ours("peer_offers") == decode.ours("peer_takes") == 0


def test_many_at_once_are_answered_like_one_by_one(both: Dispatched, reader: Service) -> None:
    if both.recurrent:
        pytest.skip("what the first of a batch answers is another question there")
    prompts = [prompt(100 + index, f"{both.name} many {index}") for index in range(MANY)]
    with ThreadPoolExecutor(MANY) as pool:
        alone = list(pool.map(lambda tokens: both.prefill.complete(tokens, TOKENS), prompts))
        both.forget()
        with both.counting() as (prefill, decode):
            found = list(pool.map(lambda tokens: reader.complete(tokens, TOKENS), prompts))
    assert [it.samples for it in found] == [it.samples for it in alone]
    assert decode.ours("peer_transfers_succeeded") == prefill.ours("peer_offers") == MANY
    assert decode.computed == MANY
    assert_no_lease_helped(prefill, decode)


def test_decode_that_is_killed_is_said_and_its_successor_serves(both: Dispatched) -> None:
    tokens = both.new_prompt()
    answer = both.alone(tokens)
    services = both.dispatchers.values()
    with contextlib.ExitStack() as clients:
        body = ask(both.new_prompt(), 2000, stream=True)
        asked = [it.exchange("POST", "/v1/completions", body) for it in services]
        streams = [events(clients.enter_context(it)) for it in asked]
        for stream in streams:
            next(stream)
        both.decode.kill()
        for stream in streams:
            with pytest.raises((EOFError, HTTPException, OSError)):
                list(stream)
    for dispatcher in services:
        with pytest.raises(HttpError) as refused:
            dispatcher.complete(tokens, TOKENS)
        assert refused.value.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    # What prefill had offered comes back with its lease.
    wait_until(both.prefill.is_rested, "prefill to rest", LEASE_MS / 1000 + 30)
    both.decode.launch()
    both.decode.ready()
    for dispatcher in services:
        wait_until(partial(is_answer, dispatcher, tokens, answer), "the decode engine to be found")
        both.forget()


def test_prefill_that_is_killed_is_said_or_made_up_for(both: Dispatched) -> None:
    """The last test of a pair: its prefill server is gone."""
    tokens = both.new_prompt()
    answer = both.computed(tokens, TOKENS)
    router, *proxies = both.dispatchers.values()
    both.prefill.kill()
    with pytest.raises(HttpError) as refused:
        router.complete(tokens, TOKENS)
    assert refused.value.status >= HTTPStatus.INTERNAL_SERVER_ERROR
    # The proxy has decode compute it.
    for proxy in proxies:
        assert is_answer(proxy, tokens, answer)
        wait_until(both.decode.is_rested, "decode to rest")


def given(prefill: Count) -> int:
    """Prompts that were offered, or ordered to be written."""
    return prefill.ours("peer_offers") + prefill.ours("peer_writes")


def assert_no_lease_helped(prefill: Count, decode: Count) -> None:
    """Every transfer ended well: an offer that nobody claims counts as one that failed."""
    assert prefill.ours("peer_transfers_failed") == decode.ours("peer_transfers_failed") == 0


def is_answer(service: Service, tokens: list[int], answer: list[int]) -> bool:
    """Whether a service answers by now, and so."""
    try:
        return service.complete(tokens, TOKENS).samples == [answer]
    except (HttpError, HTTPException, OSError):
        return False
