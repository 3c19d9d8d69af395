"""Engines that hand prompts over and share a node as well: decode takes from prefill what it can,
else from the cache, else it computes; on one rank and on two."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any

import pytest
from conftest import TOKENS, Prompts
from harness import Engine, Node, Run, connector, prompt, wait_until
from tickets import NAME

ENGINES = [("llama", 1), ("gemma3", 2)]


@dataclass
class Both:
    """A prefill engine that saves and offers, and a decode engine that loads and takes."""

    prefill: Engine
    decode: Engine
    prompts: Prompts
    ranks: int
    numbers: Iterator[int]

    def new_prompt(self) -> list[int]:
        return prompt(2 * self.prompts.chunk + 9, f"{self.prefill.name} {next(self.numbers)}")

    def computed(self, tokens: list[int]) -> tuple[list[int], dict[str, Any]]:
        """What prefill alone answers, and its offer; all of it is saved."""
        answer = self.prefill.generate([tokens], TOKENS).tokens[0]
        self.prefill.settle()
        self.prefill.reset()
        names = self.prefill.add([tokens], 1, handovers=[{"do_remote_decode": True}])
        handover = self.prefill.finish(names).results[0].handover
        assert handover is not None
        self.prefill.step()
        return answer, handover

    def take(self, tokens: list[int], handover: dict[str, Any] | None) -> Run:
        self.decode.reset()
        return self.decode.finish(self.decode.add([tokens], TOKENS, handovers=[handover]))

    def rests(self) -> None:
        """All blocks of both are free."""
        for engine in (self.decode, self.prefill):
            wait_until(engine.is_rested, f"{engine.name} to rest")


@pytest.fixture(scope="module", params=ENGINES, ids=lambda it: f"{it[0]}-{it[1]}")
def both(
    request: pytest.FixtureRequest,
    launch: Callable[..., Engine],
    node: Node,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Both]:
    model, ranks = request.param
    folder = tmp_path_factory.mktemp("key")
    folder.chmod(0o700)
    options = {
        "peer_listen": "127.0.0.1:0",
        "peer_lease_ms": 600_000,
        "local_dir": str(folder),
        "tenant": f"both {ranks}",
    }

    def use(role: str) -> dict[str, Any]:
        return {**connector(node.address, **options), "kv_role": role}

    size = {"tensor_parallel_size": ranks}
    with (
        launch(model, f"{model}-{ranks}-both-prefill", use("kv_producer"), size) as prefill,
        launch(model, f"{model}-{ranks}-both-decode", use("kv_consumer"), size) as decode,
    ):
        prompts = Prompts(prefill.start().block_tokens)
        decode.start()
        yield Both(prefill, decode, prompts, ranks, count())


def test_decode_takes_from_prefill_what_the_cache_has_too(both: Both) -> None:
    tokens = both.new_prompt()
    answer, handover = both.computed(tokens)
    run = both.take(tokens, handover)
    assert run.tokens == [answer]
    assert run.external == len(tokens) - 1
    assert run.counted("peer_transfers_succeeded") == both.ranks
    assert run.counted("loads_ordered") == 0
    both.rests()


@pytest.mark.parametrize("spoiled", ["absent", "forged"])
def test_decode_takes_from_the_cache_what_no_good_ticket_names(both: Both, spoiled: str) -> None:
    tokens = both.new_prompt()
    answer, handover = both.computed(tokens)
    last = "0" if handover[NAME][-1] != "0" else "1"
    forged = {**handover, NAME: handover[NAME][:-1] + last}
    run = both.take(tokens, forged if spoiled == "forged" else None)
    assert run.tokens == [answer]
    assert run.external == both.prompts.hit(tokens)
    assert run.counted("peer_takes") == 0
    assert run.counted("loads_ended") == 1
    both.decode.abort(both.decode.add([tokens], TOKENS, handovers=[handover]))
    both.rests()


def test_decode_takes_from_the_cache_what_prefill_no_longer_has(both: Both) -> None:
    """The last test of two engines: prefill is gone."""
    tokens = both.new_prompt()
    answer, handover = both.computed(tokens)
    both.prefill.child.kill()
    both.prefill.child.wait()
    run = both.take(tokens, handover)
    assert run.tokens == [answer]
    assert run.counted("peer_transfers_failed") == both.ranks
    wait_until(both.decode.is_rested, "decode to rest")
    # The request that failed has asked the cache again, or computed; the next one asks it first.
    again = both.take(tokens, None)
    assert again.tokens == [answer]
    assert again.external == both.prompts.hit(tokens)
    assert again.counted("loads_ended") == 1
