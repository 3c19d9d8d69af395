"""Prompts that go from a prefill engine to a decode engine directly, and all that may go wrong.

Two real engines of one model share a key; neither saves nor loads anything else, so that every
token that decode does not compute came from prefill. What one engine alone answers is what decode
must answer, whatever happens.

With recurrent state one engine alone has two answers: vLLM's kernels for a prompt and for a next
token do not agree in the last bits, and decode computes the last token of the prompt as a next one.
So the last token of its prompts is the one that an engine alone goes on with after the others: it
then has computed that token as decode does, and what follows must be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from typing import Any

import pytest
from conftest import TOKENS, Prompts
from harness import Engine, Node, Run, connector, wait_until
from pairs import Damage, Engines
from tickets import NAME, Ticket

MODELS = ("llama", "gemma3", "qwen3_next")
LEASE_MS = 600_000
"""Longer than any test: blocks that come back before have been released."""


class Pair(Engines):
    """Prefill offers what it has computed, and decode takes it."""

    def offer(self, tokens: list[int]) -> dict[str, Any]:
        """Prefill computes the prompt, and its workers know of the offer."""
        names = self.prefill.add([tokens], 1, handovers=[{"do_remote_decode": True}])
        handover = self.prefill.finish(names).results[0].handover
        assert handover is not None
        self.prefill.step()
        return handover

    def take(self, tokens: list[int], handover: dict[str, Any], samples: int = 1) -> Run:
        """Decode goes on from there."""
        names = self.decode.add([tokens] * samples, TOKENS, handovers=[handover] * samples)
        return self.decode.finish(names)

    def give_back(self, tokens: list[int], handover: dict[str, Any]) -> None:
        """Decode is given the request, and gives it up before it has looked at it."""
        self.decode.abort(self.decode.add([tokens], TOKENS, handovers=[handover]))

    def is_held(self) -> bool:
        """Whether prefill still holds blocks, as far as its engine knows now."""
        return not self.prefill.is_rested()


@pytest.fixture(scope="module", params=MODELS)
def pair(
    request: pytest.FixtureRequest,
    launch: Callable[..., Engine],
    node: Node,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("key")
    folder.chmod(0o700)
    options = {
        "save": False,
        "load": False,
        "peer_listen": "127.0.0.1:0",
        "peer_lease_ms": LEASE_MS,
        "local_dir": str(folder),
    }

    def use(role: str) -> dict[str, Any]:
        return {**connector(node.address, **options), "kv_role": role}

    model = request.param
    with (
        launch(model, f"{model}-prefill", use("kv_producer")) as prefill,
        launch(model, f"{model}-decode", use("kv_consumer")) as decode,
    ):
        prompts = Prompts(prefill.start().block_tokens)
        decode.start()
        another = partial(launch, model, f"{model}-apart", use("kv_consumer"))
        yield Pair(prefill, decode, prompts, folder / "peer.key", count(), another)


@pytest.mark.parametrize(("chunks", "more"), [(2, 9), (2, 1), (2, 0), (0, 5), (1, 2)])
def test_decode_computes_the_last_token_only_and_answers_like_one_engine(
    pair: Pair, chunks: int, more: int
) -> None:
    tokens = pair.new_prompt(chunks, more)
    answer = pair.alone(tokens)
    handover = pair.offer(tokens)
    assert pair.is_held(), "the blocks are kept until decode has them"
    run = pair.take(tokens, handover)
    assert run.tokens == [answer]
    assert run.external == len(tokens) - 1
    assert run.counted("peer_transfers_succeeded") == 1
    pair.forget()


def test_tokens_come_from_the_blocks_that_the_ticket_names(pair: Pair) -> None:
    """The control of every other test here: with other blocks there are other tokens."""
    changed = 0
    for _ in range(4):
        tokens, other = pair.new_prompt(), pair.new_prompt()
        answer = pair.alone(tokens)
        handover, wrong = pair.offer(tokens), pair.offer(other)
        spoiled = Ticket.of(wrong).for_prompt_of(Ticket.of(handover))
        run = pair.take(tokens, spoiled.seal(pair.key, wrong))
        assert run.external == len(tokens) - 1
        changed += run.tokens != [answer]
        pair.give_back(tokens, handover)
        pair.forget()
    assert changed >= 3


def test_byte_that_changes_on_the_way_is_caught_and_the_prompt_computed(pair: Pair) -> None:
    tokens = pair.new_prompt()
    answer = pair.computed(tokens)
    with pair.apart() as decode:
        handover = pair.offer(tokens)
        ticket = Ticket.of(handover)
        ((incarnation, address),) = ticket.workers
        proxy = Damage(address, back=True)
        ticket.workers = [(incarnation, proxy.address)]
        names = decode.add([tokens], TOKENS, handovers=[ticket.seal(pair.key, handover)])
        run = decode.finish(names)
        assert proxy.damaged.is_set()
        assert run.tokens == [answer]
        assert run.counted("peer_integrity_failures") == 1
        assert run.counted("peer_transfers_failed") == 1
    pair.forget()


def test_what_decode_has_itself_is_not_moved(pair: Pair) -> None:
    tokens = pair.new_prompt()
    answer = pair.alone(tokens)
    whole = pair.take(tokens, pair.offer(tokens))
    # What it was given before is in its own cache now.
    part = pair.take(tokens, pair.offer(tokens))
    assert whole.tokens == part.tokens == [answer]
    # Of a state it has what stands at the end of the prompt, and nothing to begin from.
    own = 0 if pair.recurrent else 2 * pair.prompts.chunk
    assert part.external == len(tokens) - 1 - own
    moved = [run.counted("peer_bytes_received") for run in (whole, part)]
    assert 0 < moved[1] <= moved[0]
    assert (moved[1] < moved[0]) == (own > 0)
    pair.forget()


def test_samples_of_one_prompt_share_one_transfer(pair: Pair) -> None:
    tokens = pair.new_prompt(2, 0)
    answer = pair.alone(tokens)
    # Who does not find the state in decode's own cache computes.
    others = pair.computed(tokens) if pair.recurrent else answer
    run = pair.take(tokens, pair.offer(tokens), samples=3)
    assert run.tokens == [answer, others, others]
    assert run.counted("peer_takes") == 1
    assert run.external == len(tokens) - 1
    pair.forget()


def test_request_that_decode_gives_up_before_it_began_frees_prefill(pair: Pair) -> None:
    tokens = pair.new_prompt()
    handover = pair.offer(tokens)
    assert pair.is_held()
    pair.give_back(tokens, handover)
    pair.forget()


def test_request_that_decode_gives_up_while_it_waits_frees_both(pair: Pair) -> None:
    tokens = pair.new_prompt()
    names = pair.decode.add([tokens], TOKENS, handovers=[pair.offer(tokens)])
    pair.decode.step()
    pair.decode.abort(names)
    pair.forget()


@pytest.mark.parametrize("spoil", ["forged", "absent"])
def test_ticket_that_is_not_good_costs_a_computation(pair: Pair, spoil: str) -> None:
    tokens = pair.new_prompt()
    answer = pair.computed(tokens)
    handover = pair.offer(tokens)
    last = "0" if handover[NAME][-1] != "0" else "1"
    if spoil == "forged":
        run = pair.take(tokens, {**handover, NAME: handover[NAME][:-1] + last})
    else:
        run = pair.take(tokens, {key: handover[key] for key in handover if key != NAME})
    assert run.tokens == [answer]
    assert run.external == 0
    assert pair.is_held(), "a ticket that is not good releases nothing"
    pair.give_back(tokens, handover)
    pair.forget()


def test_ticket_of_another_prompt_costs_a_computation_and_goes_back(pair: Pair) -> None:
    tokens, other = pair.new_prompt(), pair.new_prompt()
    answer = pair.computed(other)
    run = pair.take(other, pair.offer(tokens))
    assert run.tokens == [answer]
    assert run.external == 0
    pair.forget()


def test_ticket_that_was_used_costs_a_computation(pair: Pair) -> None:
    tokens = pair.new_prompt()
    answer = pair.alone(tokens)
    handover = pair.offer(tokens)
    assert pair.take(tokens, handover).tokens == [answer]
    pair.forget()
    again = pair.take(tokens, handover)
    assert again.tokens == [pair.computed(tokens)]
    assert again.counted("peer_transfers_failed") == 1
    pair.forget()


def test_prefill_that_is_killed_costs_a_computation(pair: Pair) -> None:
    """The last test of a pair: its prefill engine is gone."""
    tokens, other = pair.new_prompt(), pair.new_prompt()
    answer = pair.computed(tokens)
    handover = pair.offer(tokens)
    pair.prefill.child.kill()
    pair.prefill.child.wait()
    run = pair.take(tokens, handover)
    assert run.tokens == [answer]
    assert run.counted("peer_transfers_failed") == 1
    # Nothing is left, and what comes after is served.
    wait_until(pair.decode.is_rested, "decode's blocks to come back")
    assert pair.decode.generate([other], TOKENS).results[0].finish_reason == "length"
