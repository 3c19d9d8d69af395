"""`cargo xtask bench --only engine`: what the connector costs a real engine.

Its own time in a decode step, with nothing to load, for one request and for sixteen. Then a request
decodes beside others that wait for the answer to their lookup, and beside one whose load hangs;
each round is followed by one without them, and the figure is the median over the pairs. Ends with
one JSON line of rows when asked to (`--json`), like every bench of the project.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from harness import FAILURES, Engine, Faults, Node, connector, prompt, wait_until

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))

from build import DEFAULT_CACHE, ensure

MODELS = ("llama", "gemma3")
REQUESTS = (1, 16)
STEPS = 400
ROUNDS = 3
MUST_US = 100.0
REACH_US = 50.0
PAIRS = 5
WAITING = 8
"""Requests that wait for their lookup."""
WAITING_MUST_US = 3000.0 + WAITING * 50.0
"""What they may add to a step: the budget of all its lookups together, and 50 us each."""
HANGING_MUST = 1.1
"""A step beside a load that hangs, against one without: what a noisy machine can tell from 1."""
PATIENCE_MS = 300_000
"""Nobody who waits may give up during a round."""
PATIENCE = dict.fromkeys(("lookup_timeout_ms", "load_timeout_ms", "lease_ms"), PATIENCE_MS)

Row = dict[str, object]


def step_us(engine: Engine, requests: int) -> float:
    """The median over decode steps of all hooks together, in microseconds: that of the round that
    other work on the machine disturbed least."""
    rounds = (round_us(engine, requests, f"{number}", STEPS) for number in range(ROUNDS))
    return min(hooks for hooks, _ in rounds)


def round_us(engine: Engine, requests: int, name: str, steps: int) -> tuple[float, float]:
    """The medians of one round: all hooks of a step together, and the step."""
    prompts = [prompt(40, f"step {requests} {name} {index}") for index in range(requests)]
    taken = engine.ask(op="hooks", prompts=prompts, max_tokens=steps)
    return middle_us(taken["steps_ns"]), middle_us(taken["whole_ns"])


def middle_us(steps_ns: list[int]) -> float:
    """The median without the first steps, which prefill, and the last ones, which finish."""
    middle = sorted(steps_ns[len(steps_ns) // 10 : -len(steps_ns) // 10])
    return middle[len(middle) // 2] / 1000


def pairs(
    engine: Engine, name: str, beside: Callable[[], AbstractContextManager[None]]
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Rounds of one request with what is `beside` it, each followed by one without."""
    found = []
    for number in range(PAIRS):
        with beside():
            held = round_us(engine, 1, f"{name} {number}", STEPS // 4)
        found.append((held, round_us(engine, 1, f"{name} {number} alone", STEPS // 4)))
    return found


@contextmanager
def lookups_that_wait(engine: Engine, node: Node) -> Iterator[None]:
    """Requests whose lookups have no answer, because the node stands still."""
    node.child.send_signal(signal.SIGSTOP)
    try:
        prompts = [prompt(3 * engine.block_tokens, f"waits {index}") for index in range(WAITING)]
        names = engine.add(prompts)
        engine.step()
        yield
        waited = engine.counters()["vllm:num_requests_waiting"]
        if waited != WAITING:
            raise TimeoutError(f"{waited} of {WAITING} lookups waited to the end of the round")
        engine.abort(names)
    finally:
        node.child.send_signal(signal.SIGCONT)


@contextmanager
def load_that_hangs(engine: Engine, faults: Faults, tokens: list[int]) -> Iterator[None]:
    """A request whose load gets no answer, because the proxy keeps its GET."""
    faults.order("stall")
    names = engine.add([tokens])
    wait_until(lambda: bool(engine.step() or not faults.lines.empty()), "the load to hang")
    faults.expect("stall")
    yield
    faults.release()
    engine.finish(names)
    engine.reset()


def beside(engine: Engine, model: str, node: Node, faults: Faults) -> list[Row]:
    """One request's steps beside others that wait."""
    tokens = prompt(2 * engine.block_tokens + 9, f"{model} hangs")
    engine.generate([tokens], max_tokens=1)
    engine.settle()
    engine.reset()
    hanging = pairs(engine, "hangs", lambda: load_that_hangs(engine, faults, tokens))
    waiting = pairs(engine, "waits", lambda: lookups_that_wait(engine, node))
    added = statistics.median(held[0] - alone[0] for held, alone in waiting)
    ratio = statistics.median(held[1] / alone[1] for held, alone in hanging)
    alone_us = statistics.median(alone[1] for _, alone in hanging)
    hooks_us = statistics.median(alone[0] for _, alone in waiting)
    return [
        row(f"waiting.{model}", added, "us", WAITING_MUST_US, floor=hooks_us),
        row(f"hanging.{model}", ratio, "x", HANGING_MUST, floor=alone_us),
    ]


def row(
    name: str,
    value: float,
    unit: str,
    must: float,
    floor: float | None = None,
    reach: float | None = None,
) -> Row:
    """A figure; `floor` is the time of the same step with nothing beside it, in microseconds."""
    return {
        "name": f"engine.{name}",
        "value": round(value, 1 if unit == "us" else 3),
        "unit": unit,
        "floor": None if floor is None else round(floor, 1),
        "must": must,
        "reach": reach,
        "higher": False,
    }


def measure(binary: Path, models: Path) -> Iterator[Row]:
    """The rows of all models, as they come."""
    logs = Path(tempfile.mkdtemp(prefix="tessera-bench-"))
    for name in MODELS:
        with (
            Node(binary, logs / f"{name}-node.log") as node,
            Faults(binary, logs / f"{name}-faults.log", node) as faults,
            Engine(
                ensure(name, models), logs / f"{name}.log", connector(faults.address, **PATIENCE)
            ) as engine,
        ):
            for requests in REQUESTS:
                us = step_us(engine, requests)
                yield row(f"step.{name}.{requests}", us, "us", MUST_US, reach=REACH_US)
            yield from beside(engine, name, node, faults)


def main() -> None:
    parser = argparse.ArgumentParser(description="What the connector costs an engine step.")
    parser.add_argument("--binary", type=Path, required=True, help="the tessera program")
    parser.add_argument("--models", type=Path, default=DEFAULT_CACHE, help="the model cache")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    arguments = parser.parse_args()
    rows: list[Row] = []
    try:
        for it in measure(arguments.binary, arguments.models):
            alone = "" if it["floor"] is None else f"   alone {it['floor']} us"
            must = f"must be under {it['must']} {it['unit']}"
            print(f"{it['name']:<28} {it['value']:>8} {it['unit']}   {must}{alone}", flush=True)
            rows.append(it)
    except FAILURES as failure:
        print(f"the engine could not be measured: {failure}", file=sys.stderr)
        if arguments.json:
            print(json.dumps({"rows": [], "error": str(failure)}))
        sys.exit(1)
    if arguments.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
