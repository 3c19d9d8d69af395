"""What becomes of a load whose device fails or hangs, on the real engine.

The engine's block memory belongs to a simulated device (`sim_connector`), on which what a load has
written shows only behind the fence after it. Faults are ordered from the device of one rank; the
others are healthy. One engine serves all tests of a combination.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from conftest import Prompts
from harness import OURS, Engine, Faults, Node, ProcessError, connector, prompt, wait_until
from loads import LOAD_MS, Loads

FOREVER = 2**32 - 1

COMBINATIONS = [
    ("llama", 1, "async", "recompute"),
    ("llama", 1, "serial", "recompute"),
    ("gemma3", 2, "async", "recompute"),
    ("gemma3", 2, "serial", "engine"),
    ("qwen3_next", 2, "async", "engine"),
    ("qwen3_next", 2, "serial", "recompute"),
]


class Device:
    """The simulated device of one rank, from outside of its engine."""

    def __init__(self, path: str) -> None:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        self._orders = connection.makefile("rw")
        connection.close()

    def order(self, name: str, *arguments: Any) -> Any:
        """Calls a method of the device."""
        print(json.dumps([name, *arguments]), file=self._orders, flush=True)
        return json.loads(self._orders.readline())

    def asked(self) -> int:
        """Fences behind loads that it was asked for."""
        return self.order("fences", "after")[0]

    def succeeded(self) -> int:
        """Those of them that succeeded."""
        return self.order("fences", "after")[1]


@dataclass
class DeviceLoads(Loads):
    """An engine with a simulated device for each rank; faults meet the first."""

    devices: list[Device]
    names_blocks: bool

    @property
    def device(self) -> Device:
        return self.devices[0]

    def begin(self, tokens: list[int]) -> list[str]:
        """Adds a request and steps until its load stands at the fence behind it."""
        asked = self.device.asked()
        names = self.engine.add([tokens])
        wait_until(lambda: self.engine.step() is None or self.device.asked() > asked, "the fence")
        return names


def start(
    launch: Callable[..., Engine], name: str, log: str, ranks: int, path: str, **use: Any
) -> Engine:
    """An engine whose devices take orders at `path`."""
    options = connector(**use)
    options["kv_connector"] = "SimDeviceConnector"
    options["kv_connector_module_path"] = "sim_connector"
    settings = {"tensor_parallel_size": ranks, "additional_config": {"sim_device": path}}
    return launch(name, log, options, settings)


@pytest.fixture(scope="module", params=COMBINATIONS, ids=lambda it: "-".join(map(str, it)))
def loads(
    request: pytest.FixtureRequest,
    launch: Callable[..., Engine],
    binary: Path,
    logs: Path,
    node: Node,
) -> Iterator[DeviceLoads]:
    model, ranks, io, on_failure = request.param
    name = "-".join(("device", model, io, on_failure))
    path = str(logs / name)
    options = {"io": io, "on_load_failure": on_failure, "load_timeout_ms": LOAD_MS}
    with Faults(binary, logs / f"{name}-faults.log", node) as faults:
        use = {"nodes": [faults.address], **options}
        with start(launch, model, name, ranks, path, **use) as engine:
            prompts = Prompts(engine.start().block_tokens)
            devices = [Device(f"{path}.{rank}") for rank in range(ranks)]
            recomputes, blocks = on_failure == "recompute", model == "llama"
            yield DeviceLoads(engine, faults, prompts, io, recomputes, count(), devices, blocks)


def test_load_over_a_device_gives_the_tokens_that_were_computed(loads: DeviceLoads) -> None:
    before = [device.succeeded() for device in loads.devices]
    loads.check_hit(*loads.saved())
    after = [device.succeeded() for device in loads.devices]
    assert all(late > early for early, late in zip(before, after, strict=True))


def test_load_whose_fence_was_skipped_gives_other_tokens(loads: DeviceLoads) -> None:
    """The control: without its fence a load is wrong, so equal tokens mean that it was there."""
    tokens, answer = loads.saved()
    loads.device.order("skip_fences", "after", 1)
    run = loads.engine.generate([tokens])
    assert run.external == loads.prompts.hit(tokens)
    assert run.tokens != [answer]
    # The next fence covers what the skipped one did not, and nothing of it may stay cached.
    loads.forget()
    loads.engine.generate([loads.saved()[0]])
    loads.forget()
    loads.check_hit(tokens, answer)


@pytest.mark.parametrize("fault", ["fence", "write"])
def test_device_that_fails_fails_its_load_once(loads: DeviceLoads, fault: str) -> None:
    (tokens, answer), other = loads.saved(), loads.saved()
    if fault == "fence":
        loads.device.order("fail_fences", "after", 2)
    else:
        loads.device.order("fail_copies", 1)
    run = loads.engine.generate([tokens])
    loads.check_failed(run.results[0], answer)
    assert run.counted("loads_failed_on_any_rank") == 1
    loads.forget()
    loads.check_hit(*other)
    loads.check_hit(tokens, answer)


def test_fence_that_hangs_delays_its_own_request_past_every_deadline(loads: DeviceLoads) -> None:
    (tokens, answer), device = loads.saved(), loads.device
    asked = device.asked()
    device.order("owe_fences", "after", 1)
    end = time.monotonic() + 2 * LOAD_MS / 1000
    if loads.io == "async":
        late = loads.begin(tokens)
        # A cold prefill beside it runs to its end, also past the deadline of the load.
        cold = loads.engine.generate([loads.new_prompt()]).results[0]
        assert cold.finish_reason == "length"
        wait_until(lambda: late[0] in loads.engine.step() or time.monotonic() > end, "the deadline")
        assert late[0] not in loads.engine.step(), "no clock ends what may still write"
        device.order("release")
        run = loads.engine.finish(late)
    else:
        # The model's own thread waits for the fence.

        def release() -> None:
            wait_until(lambda: device.asked() > asked, "the fence")
            wait_until(lambda: time.monotonic() > end, "the deadline")
            device.order("release")

        run = loads.engine.finish(loads.engine.add([tokens]), release)
    # All that was to be fetched was: of blocks that are named, none is bad.
    if loads.names_blocks:
        assert run.tokens == [answer]
    else:
        loads.check_failed(run.results[0], answer)
    assert run.counted("loads_failed_on_any_rank") == (0 if loads.names_blocks else 1)
    loads.forget()
    loads.check_hit(tokens, answer)


def test_fence_that_fails_on_and_on_publishes_nothing(loads: DeviceLoads) -> None:
    (tokens, answer), device, engine = loads.saved(), loads.device, loads.engine
    asked, succeeded = device.asked(), device.succeeded()
    device.order("fail_fences", "after", FOREVER)

    def often() -> bool:
        return device.asked() >= asked + 20

    if loads.io == "async":
        late = loads.begin(tokens)
        wait_until(lambda: late[0] in engine.step() or often(), "the fence to fail often")
        assert late[0] not in engine.step()
        assert not engine.try_reset(), "the blocks are still the load's"
        device.order("fail_fences", "after", 0)
        run = engine.finish(late)
    else:
        late = engine.add([tokens])

        def heal() -> None:
            wait_until(often, "the fence to fail often")
            device.order("fail_fences", "after", 0)

        run = engine.finish(late, heal)
    assert device.succeeded() > succeeded
    loads.check_failed(run.results[0], answer)
    assert run.counted("loads_failed_on_any_rank") == 1
    loads.forget()
    loads.check_hit(tokens, answer)


def test_request_given_up_at_its_fence_keeps_its_blocks_until_then(loads: DeviceLoads) -> None:
    (tokens, answer), other, device = loads.saved(), loads.saved(), loads.device
    if loads.io != "async":
        pytest.skip("the model's thread is in the load: nobody can give it up")
    device.order("owe_fences", "after", 1)
    loads.engine.abort(loads.begin(tokens))
    assert loads.engine.generate([loads.new_prompt()]).results[0].finish_reason == "length"
    assert not loads.engine.try_reset(), "the device may still write"
    device.order("release")
    wait_until(lambda: loads.engine.settle() is not None and loads.engine.try_reset(), "the blocks")
    loads.check_hit(*other)
    loads.check_hit(tokens, answer)
    assert loads.engine.counters()[OURS + "staging_bytes_used"] == 0


def test_device_that_never_proves_ends_the_engine(
    launch: Callable[..., Engine], logs: Path, node: Node
) -> None:
    path = str(logs / "device-dead")
    use = {"nodes": [node.address], "proof_timeout_ms": 1000}
    engine = start(launch, "llama", "device-dead", 1, path, **use)
    try:
        tokens = prompt(2 * engine.start().block_tokens + 9, "never proves")
        engine.generate([tokens])
        engine.settle()
        engine.reset()
        Device(f"{path}.0").order("owe_fences", "after", 1)
        with pytest.raises(ProcessError, match="the worker stops"):
            engine.generate([tokens])
    finally:
        engine.stop()
