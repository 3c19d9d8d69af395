"""256 requests at once between two engines, with everything that may go wrong drawn by lot.

Tickets are forged, swapped, used twice or left out, requests are given up before and while they
wait, and connections between the engines are slowed, cut, damaged and held. Whoever is not given up
answers what one engine alone answers; afterwards every block is back on both sides and nothing is
open. `TESSERA_STORM_SECONDS` says how long each model is stormed; a run of minutes is one by hand.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from conftest import TOKENS
from harness import Engine, Node, connector, prompt, wait_until
from tickets import NAME, Ticket
from weather import Fate, Weather

REQUESTS = 256
SECONDS = float(os.environ.get("TESSERA_STORM_SECONDS", "30"))
STORM = (Fate.CALM, Fate.SLOW, Fate.CUT, Fate.DAMAGED, Fate.HELD)


class Lot(Enum):
    """What befalls one request."""

    GOOD = "good"
    FORGED = "forged"
    ABSENT = "absent"
    SWAPPED = "swapped"
    DOUBLED = "doubled"
    GIVEN_UP_AT_ONCE = "given up at once"
    GIVEN_UP_WAITING = "given up waiting"


WEIGHTS = {lot: 10 if lot is Lot.GOOD else 1 for lot in Lot}
GIVEN_UP = {Lot.GIVEN_UP_AT_ONCE, Lot.GIVEN_UP_WAITING}
REFUSED = {Lot.FORGED, Lot.ABSENT, Lot.SWAPPED}


@dataclass(frozen=True)
class Round:
    """What became of all prompts once."""

    lots: list[Lot]
    external: int
    """Tokens that decode did not compute."""
    failed: int
    """Transfers that failed on its side."""


FAILED = "vllm:tessera_peer_transfers_failed"


@dataclass
class Storm:
    """Two engines, the prompts that go between them, and what one engine answers to each."""

    prefill: Engine
    decode: Engine
    weather: Weather
    key: Path
    prompts: list[list[int]]
    answers: list[list[int]]
    random: random.Random

    def offers(self) -> list[dict[str, Any]]:
        """Prefill computes all prompts; the way to it leads through the weather."""
        ask = [{"do_remote_decode": True}] * len(self.prompts)
        results = self.prefill.finish(self.prefill.add(self.prompts, 1, handovers=ask)).results
        self.prefill.step()
        return [self.through(result.handover) for result in results]

    def through(self, handover: dict[str, Any] | None) -> dict[str, Any]:
        """The handover with the weather's address in the place of prefill's."""
        assert handover is not None
        ticket = Ticket.of(handover)
        ticket.workers = [(start, self.weather.address) for start, _ in ticket.workers]
        return ticket.seal(self.key, handover)

    def lots(self) -> list[Lot]:
        return self.random.choices(list(WEIGHTS), list(WEIGHTS.values()), k=len(self.prompts))

    def given(self, index: int, lot: Lot, offers: list[dict[str, Any]]) -> dict[str, Any]:
        """With what decode is sent the request."""
        offer = offers[index]
        match lot:
            case Lot.FORGED:
                last = "0" if offer[NAME][-1] != "0" else "1"
                return {**offer, NAME: offer[NAME][:-1] + last}
            case Lot.ABSENT:
                return {name: value for name, value in offer.items() if name != NAME}
            case Lot.SWAPPED:
                return offers[index - 1]
            case _:
                return offer

    def round(self, fates: tuple[Fate, ...]) -> Round:
        """All prompts once, and what became of them."""
        self.weather.turn(Fate.CALM)
        offers, lots = self.offers(), self.lots()
        self.weather.turn(*fates)
        before = self.decode.counters()
        handovers = [self.given(index, lot, offers) for index, lot in enumerate(lots)]
        names = self.decode.add(self.prompts, TOKENS, handovers=handovers)
        again = self.add([index for index, lot in enumerate(lots) if lot is Lot.DOUBLED], offers)

        def give_up(those: Lot) -> None:
            pairs = zip(names, lots, strict=True)
            self.decode.abort([name for name, lot in pairs if lot is those])

        give_up(Lot.GIVEN_UP_AT_ONCE)
        self.decode.step()
        give_up(Lot.GIVEN_UP_WAITING)
        served = [index for index, lot in enumerate(lots) if lot not in GIVEN_UP]
        run = self.decode.finish([*(names[index] for index in served), *again.values()])
        for index, tokens in zip([*served, *again], run.tokens, strict=True):
            assert tokens == self.answers[index], (index, lots[index])
        self.weather.turn(Fate.CALM)
        after = self.decode.counters()
        failed = after[FAILED] - before[FAILED]
        # What was refused is given back with the ticket that it came without.
        refused = [index for index, lot in enumerate(lots) if lot in REFUSED]
        self.decode.abort(list(self.add(refused, offers).values()))
        self.settle()
        return Round(lots, run.external, int(failed))

    def add(self, those: list[int], offers: list[dict[str, Any]]) -> dict[int, str]:
        """Decode is sent these prompts with their own tickets: its names of them."""
        prompts, handovers = [self.prompts[at] for at in those], [offers[at] for at in those]
        return dict(zip(those, self.decode.add(prompts, TOKENS, handovers=handovers), strict=True))

    def settle(self) -> None:
        """Everything is back on both sides, and nothing is open between them."""
        for engine in (self.decode, self.prefill):
            wait_until(engine.is_rested, f"{engine.name} to rest", 60)
        for engine in (self.decode, self.prefill):
            found = engine.counters()
            for gauge in ("offered", "claimed", "quarantined"):
                assert found[f"vllm:tessera_peer_{gauge}_bytes"] == 0, (engine.name, gauge)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def storm(
    request: pytest.FixtureRequest,
    launch: Callable[..., Engine],
    node: Node,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Storm]:
    folder = tmp_path_factory.mktemp("key")
    folder.chmod(0o700)
    options = {
        "save": False,
        "load": False,
        "peer_listen": "127.0.0.1:0",
        # Longer than the test: blocks that come back before have been released.
        "peer_lease_ms": 600_000,
        "peer_timeout_ms": 2_000,
        "local_dir": str(folder),
    }

    def use(role: str) -> dict[str, Any]:
        return {**connector(node.address, **options), "kv_role": role}

    model = request.param
    many = {"max_num_seqs": REQUESTS}
    with (
        launch(model, f"{model}-storm-prefill", use("kv_producer"), many) as prefill,
        launch(model, f"{model}-storm-decode", use("kv_consumer"), many) as decode,
    ):
        block = prefill.start().block_tokens
        decode.start()
        lot = random.Random(f"storm {model}")
        lengths = [lot.randrange(block // 2, 4 * block) for _ in range(REQUESTS)]
        prompts = [prompt(length, f"storm {n}") for n, length in enumerate(lengths)]
        answers = prefill.generate(prompts, TOKENS).tokens
        prefill.reset()
        # Decode meets prefill in the weather only.
        names = prefill.add(prompts[:1], 1, handovers=[{"do_remote_decode": True}])
        handover = prefill.finish(names).results[0].handover
        assert handover is not None
        ((_, address),) = Ticket.of(handover).workers
        weather = Weather(address, f"weather {model}")
        started = Storm(prefill, decode, weather, folder / "peer.key", prompts, answers, lot)
        decode.abort(list(started.add([0], [started.through(handover)]).values()))
        started.settle()
        yield started
        weather.close()


def test_in_calm_weather_only_what_was_not_given_is_computed(storm: Storm) -> None:
    calm = storm.round((Fate.CALM,))
    given = [
        len(tokens) - 1
        for tokens, lot in zip(storm.prompts, calm.lots, strict=True)
        if lot in (Lot.GOOD, Lot.DOUBLED)
    ]
    assert len(given) > REQUESTS // 2
    assert (calm.external, calm.failed) == (sum(given), 0)


def test_no_token_is_wrong_and_nothing_is_left_in_a_storm(storm: Storm) -> None:
    end = time.monotonic() + SECONDS
    rounds = []
    while time.monotonic() < end:
        rounds.append(storm.round(STORM))
    print(dict(storm.weather.met), [(it.external, it.failed) for it in rounds])
    assert all(storm.weather.met[fate] > 0 for fate in STORM)
    assert any(it.failed for it in rounds)
    assert any(it.external for it in rounds)
