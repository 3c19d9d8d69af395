"""Prompts between engines of unequal tensor parallel size: two ranks to one, and one to two.

Ranks add their parts of a sum in another order than one rank alone, so that engines of unequal size
need not agree on a token for which two are nearly as good. Prompts are those to which engines of
both sizes give one answer by themselves; what decode answers to them must be that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import pytest
from conftest import TOKENS, Prompts
from harness import Engine, Node, Run, connector, prompt, wait_until
from pairs import Engines
from passes import legs, mint
from servers import free_port
from tickets import Ticket

SHAPES = [("llama", 2, 1), ("llama", 1, 2), ("gemma3", 2, 1)]
LEASE_MS = 600_000


@dataclass
class Shapes(Engines):
    """Prefill has another number of ranks than decode."""

    inbox: str

    def agreed(self) -> tuple[list[int], list[int]]:
        """A prompt, and the answer that both engines give to it by themselves."""
        for number in self.numbers:
            tokens = prompt(2 * self.prompts.chunk + 9, f"{self.prefill.name} {number}")
            answers = [
                engine.generate([tokens], TOKENS).tokens[0]
                for engine in (self.prefill, self.decode)
            ]
            self.prefill.reset()
            self.decode.reset()
            if answers[0] == answers[1]:
                return tokens, answers[0]
            assert number < 16, "engines of unequal size agree on hardly any prompt"
        raise AssertionError

    def offer(self, tokens: list[int]) -> dict[str, Any]:
        names = self.prefill.add([tokens], 1, handovers=[{"do_remote_decode": True}])
        handover = self.prefill.finish(names).results[0].handover
        assert handover is not None
        self.prefill.step()
        return handover

    def written(self, tokens: list[int]) -> Run:
        """Both get the request at once, and prefill writes into decode's blocks."""
        to_prefill, to_decode = legs(mint(self.key, self.inbox))
        names = self.decode.add([tokens], TOKENS, handovers=[to_decode])
        self.decode.step()
        self.prefill.finish(self.prefill.add([tokens], 1, handovers=[to_prefill]))
        wait_until(self.prefill.is_rested, "prefill to have written")
        return self.decode.finish(names)


@pytest.fixture(scope="module", params=SHAPES, ids=lambda it: "-".join(map(str, it)))
def shapes(
    request: pytest.FixtureRequest,
    launch: Callable[..., Engine],
    node: Node,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Shapes]:
    folder = tmp_path_factory.mktemp("key")
    folder.chmod(0o700)
    model, given, taken = request.param
    inbox = f"127.0.0.1:{free_port()}"

    def use(role: str, peers: int, **more: Any) -> dict[str, Any]:
        options = {
            "save": False,
            "load": False,
            "peer_listen": "127.0.0.1:0",
            "peer_lease_ms": LEASE_MS,
            "peer_tp_size": peers,
            "peer_timeout_ms": LEASE_MS,
            "local_dir": str(folder),
            **more,
        }
        return {**connector(node.address, **options), "kv_role": role}

    def start(role: str, ranks: int, peers: int, **more: Any) -> Engine:
        log = f"{model}-{given}-to-{taken}-{role}"
        return launch(model, log, use(role, peers, **more), {"tensor_parallel_size": ranks})

    with (
        start("kv_producer", given, taken, peer_inbox=inbox) as prefill,
        start("kv_consumer", taken, given) as decode,
    ):
        prompts = Prompts(prefill.start().block_tokens)
        decode.start()
        another = partial(start, "kv_consumer", taken, given)
        yield Shapes(prefill, decode, prompts, folder / "peer.key", count(), another, inbox)


def test_decode_of_another_size_computes_the_last_token_only(shapes: Shapes) -> None:
    for _ in range(3):
        tokens, answer = shapes.agreed()
        names = shapes.decode.add([tokens], TOKENS, handovers=[shapes.offer(tokens)])
        run = shapes.decode.finish(names)
        assert run.tokens == [answer]
        assert run.external == len(tokens) - 1
        shapes.forget()


def test_prefill_of_another_size_writes_all_but_the_last_token(shapes: Shapes) -> None:
    tokens, answer = shapes.agreed()
    run = shapes.written(tokens)
    assert run.tokens == [answer]
    assert run.external == len(tokens) - 1
    shapes.forget()


def test_tokens_come_from_the_heads_of_the_blocks_that_the_ticket_names(shapes: Shapes) -> None:
    """The control of the other test: with other blocks there are other tokens."""
    changed = 0
    for _ in range(4):
        (tokens, answer), (other, _) = shapes.agreed(), shapes.agreed()
        handover, wrong = shapes.offer(tokens), shapes.offer(other)
        spoiled = Ticket.of(wrong).for_prompt_of(Ticket.of(handover)).seal(shapes.key, wrong)
        run = shapes.decode.finish(shapes.decode.add([tokens], TOKENS, handovers=[spoiled]))
        assert run.external == len(tokens) - 1
        changed += run.tokens != [answer]
        shapes.decode.abort(shapes.decode.add([tokens], TOKENS, handovers=[handover]))
        shapes.forget()
    assert changed >= 3
