"""Requests that two engines get at the same time: prefill writes the prompt into decode's blocks.

Two real engines of one model share a key, and a dispatcher's pass stands in both requests. Neither
saves nor loads anything else, so that every token that decode does not compute was written by
prefill. What one engine alone answers is what decode must answer, whatever happens.

With recurrent state the last token of a prompt is the one that an engine alone goes on with after
the others, as in `test_handover`.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import pytest
from conftest import TOKENS, Prompts
from harness import Engine, Node, Run, connector, wait_until
from pairs import Damage, Engines
from passes import Desk, legs, mint
from servers import free_port
from tickets import Ticket

MODELS = ("llama", "gemma3", "qwen3_next")
LONG_MS = 600_000
"""Longer than any test: blocks that come back before were not given back by a clock."""


@dataclass
class Pair(Engines):
    """Both get a request at once, with a pass of whoever has the key too."""

    inbox: str

    def passes(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return legs(mint(self.key, self.inbox))

    def ask_decode(self, tokens: list[int], leg: dict[str, Any]) -> list[str]:
        """Decode has the request, blocks for it, and has lent them."""
        names = self.decode.add([tokens], TOKENS, handovers=[leg])
        self.decode.step()
        return names

    def compute(self, tokens: list[int], leg: dict[str, Any]) -> None:
        """Prefill computes the prompt."""
        names = self.prefill.add([tokens], 1, handovers=[leg])
        assert self.prefill.finish(names).results[0].handover is None

    def answer(self, names: list[str], decode: Engine | None = None) -> Run:
        """Decode's answer, while prefill goes on with its steps."""
        stop = threading.Event()

        def go_on() -> None:
            while not stop.is_set():
                self.prefill.step()

        steps = threading.Thread(target=go_on)
        steps.start()
        try:
            return (decode or self.decode).finish(names)
        finally:
            stop.set()
            steps.join()


@pytest.fixture(scope="module", params=MODELS)
def pair(
    request: pytest.FixtureRequest,
    launch: Callable[..., Engine],
    node: Node,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("write-key")
    folder.chmod(0o700)
    inbox = f"127.0.0.1:{free_port()}"
    options = {
        "save": False,
        "load": False,
        "peer_listen": "127.0.0.1:0",
        "peer_lease_ms": LONG_MS,
        "peer_timeout_ms": LONG_MS,
        "local_dir": str(folder),
    }

    def use(role: str, **more: Any) -> dict[str, Any]:
        return {**connector(node.address, **options, **more), "kv_role": role}

    model = request.param
    with (
        launch(model, f"{model}-writer", use("kv_producer", peer_inbox=inbox)) as prefill,
        launch(model, f"{model}-written", use("kv_consumer")) as decode,
    ):
        prompts = Prompts(prefill.start().block_tokens)
        decode.start()
        another = partial(launch, model, f"{model}-written-apart", use("kv_consumer"))
        yield Pair(prefill, decode, prompts, folder / "peer.key", count(), another, inbox)


@pytest.mark.parametrize("first", ["prefill", "decode"])
@pytest.mark.parametrize(("chunks", "more"), [(2, 9), (2, 1), (2, 0), (0, 5)])
def test_prefill_writes_and_decode_answers_like_one_engine(
    pair: Pair, first: str, chunks: int, more: int
) -> None:
    tokens = pair.new_prompt(chunks, more)
    answer = pair.alone(tokens)
    to_prefill, to_decode = pair.passes()
    if first == "prefill":
        pair.compute(tokens, to_prefill)
        assert not pair.prefill.is_rested(), "the blocks are kept until decode has come"
        names = pair.ask_decode(tokens, to_decode)
    else:
        names = pair.ask_decode(tokens, to_decode)
        pair.compute(tokens, to_prefill)
    run = pair.answer(names)
    assert run.tokens == [answer]
    assert run.external == len(tokens) - 1
    assert run.counted("peer_transfers_succeeded") == 1
    pair.forget()


def test_tokens_come_from_the_blocks_that_prefill_has_written(pair: Pair) -> None:
    """The control of every other test here: with another prompt's blocks there are other tokens."""
    changed = 0
    for _ in range(4):
        desk = Desk(pair.inbox, pair.key)
        to_desk = partial(mint, pair.key, desk.address)
        tokens, other = pair.new_prompt(), pair.new_prompt()
        answer = pair.alone(tokens)
        names = pair.ask_decode(other, legs(to_desk())[1])
        wrong = desk.seen.get(timeout=30)
        pair.decode.abort(names)
        desk.change = lambda ticket, wrong=wrong: ticket.for_prompt_of(wrong)
        to_prefill, to_decode = legs(to_desk())
        names = pair.ask_decode(tokens, to_decode)
        pair.compute(other, to_prefill)
        run = pair.answer(names)
        assert run.external == len(tokens) - 1
        assert run.counted("peer_transfers_succeeded") == 1
        changed += run.tokens != [answer]
        pair.forget()
    assert changed >= 3


def test_byte_that_changes_on_the_way_is_caught_and_the_prompt_computed(pair: Pair) -> None:
    tokens = pair.new_prompt()
    answer = pair.computed(tokens)
    gates: list[Damage] = []

    def through_a_gate(ticket: Ticket) -> Ticket:
        ((incarnation, address),) = ticket.workers
        gates.append(Damage(address, back=False))
        return replace(ticket, workers=[(incarnation, gates[-1].address)])

    with pair.apart() as decode:
        desk = Desk(pair.inbox, pair.key)
        desk.change = through_a_gate
        to_prefill, to_decode = legs(mint(pair.key, desk.address))
        names = decode.add([tokens], TOKENS, handovers=[to_decode])
        decode.step()
        pair.compute(tokens, to_prefill)
        run = pair.answer(names, decode)
        assert gates[0].damaged.is_set()
        assert run.tokens == [answer]
        assert run.counted("peer_integrity_failures") == 1
        assert run.counted("peer_transfers_failed") == 1
    pair.forget()


def test_prompt_of_another_request_is_not_written(pair: Pair) -> None:
    tokens, other = pair.new_prompt(), pair.new_prompt()
    answer = pair.computed(tokens)
    to_prefill, to_decode = pair.passes()
    names = pair.ask_decode(tokens, to_decode)
    pair.compute(other, to_prefill)
    run = pair.answer(names)
    assert run.tokens == [answer]
    assert run.counted("peer_bytes_received") == 0
    assert run.counted("peer_transfers_failed") == 1
    pair.forget()


def test_request_that_decode_gives_up_frees_prefill(pair: Pair) -> None:
    for when in ("before it began", "while it waits"):
        tokens = pair.new_prompt()
        to_prefill, to_decode = pair.passes()
        pair.compute(tokens, to_prefill)
        names = pair.decode.add([tokens], TOKENS, handovers=[to_decode])
        if when == "while it waits":
            pair.decode.step()
        pair.decode.abort(names)
        pair.forget()


def test_request_that_prefill_gives_up_is_computed_by_decode(pair: Pair) -> None:
    tokens = pair.new_prompt()
    answer = pair.computed(tokens)
    to_prefill, to_decode = pair.passes()
    names = pair.ask_decode(tokens, to_decode)
    pair.prefill.abort(pair.prefill.add([tokens], 1, handovers=[to_prefill]))
    run = pair.answer(names)
    assert run.tokens == [answer]
    assert run.counted("peer_transfers_failed") == 1
    pair.forget()


@pytest.mark.parametrize("spoil", ["forged", "expired"])
def test_pass_that_is_not_good_costs_a_computation_and_dials_nobody(pair: Pair, spoil: str) -> None:
    tokens = pair.new_prompt()
    answer = pair.computed(tokens)
    with socket.create_server(("127.0.0.1", 0)) as victim:
        victim.settimeout(0.2)
        address = f"127.0.0.1:{victim.getsockname()[1]}"
        text = mint(pair.key, address, -1 if spoil == "expired" else 600)
        if spoil == "forged":
            text = text[:-1] + ("0" if text[-1] != "0" else "1")
        run = pair.answer(pair.ask_decode(tokens, legs(text)[1]))
        assert run.tokens == [answer]
        assert run.external == 0
        with pytest.raises(TimeoutError):
            victim.accept()
    # Prefill keeps nothing for it.
    pair.compute(tokens, legs(text)[0])
    pair.forget()


def test_pass_that_was_used_costs_a_computation(pair: Pair) -> None:
    tokens = pair.new_prompt()
    answer = pair.alone(tokens)
    to_prefill, to_decode = pair.passes()
    pair.compute(tokens, to_prefill)
    assert pair.answer(pair.ask_decode(tokens, to_decode)).tokens == [answer]
    pair.forget()
    again = pair.answer(pair.decode.add([tokens], TOKENS, handovers=[to_decode]))
    assert again.tokens == [pair.computed(tokens)]
    assert again.counted("peer_transfers_failed") == 1
    pair.forget()


def test_prefill_that_is_killed_costs_a_computation(pair: Pair) -> None:
    """The last test of a pair: its prefill engine is gone."""
    tokens, other = pair.new_prompt(), pair.new_prompt()
    answer = pair.computed(tokens)
    _, to_decode = pair.passes()
    names = pair.ask_decode(tokens, to_decode)
    pair.prefill.child.kill()
    pair.prefill.child.wait()
    run = pair.decode.finish(names)
    assert run.tokens == [answer]
    assert run.counted("peer_transfers_failed") == 1
    wait_until(pair.decode.is_rested, "decode's blocks to come back")
    assert pair.decode.generate([other], TOKENS).results[0].finish_reason == "length"
