"""`cargo xtask bench --only engine`: what the connector costs a real engine.

Its own time in a decode step, with nothing to load, for one request and for sixteen. Ends with one
JSON line of rows when asked to (`--json`), like every bench of the project.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from harness import FAILURES, Engine, Node, connector, prompt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))

from build import DEFAULT_CACHE, ensure

MODELS = ("llama", "gemma3")
REQUESTS = (1, 16)
STEPS = 400
ROUNDS = 3
MUST_US = 100.0
REACH_US = 50.0


def step_us(engine: Engine, requests: int) -> float:
    """The median over decode steps of all hooks together, in microseconds: that of the round that
    other work on the machine disturbed least."""
    return min(round_us(engine, requests, number) for number in range(ROUNDS))


def round_us(engine: Engine, requests: int, number: int) -> float:
    """The median of one round."""
    prompts = [prompt(40, f"step {requests} {number} {index}") for index in range(requests)]
    steps = engine.ask(op="hooks", prompts=prompts, max_tokens=STEPS)["steps_ns"]
    # The first steps prefill and the last ones finish: a decode step is one in the middle.
    middle = sorted(steps[len(steps) // 10 : -len(steps) // 10])
    return middle[len(middle) // 2] / 1000


def measure(binary: Path, models: Path) -> list[dict[str, object]]:
    logs = Path(tempfile.mkdtemp(prefix="tessera-bench-"))
    rows: list[dict[str, object]] = []
    with Node(binary, logs / "node.log") as node:
        for name in MODELS:
            log = logs / f"{name}.log"
            with Engine(ensure(name, models), log, connector(node.address)) as engine:
                rows += [
                    {
                        "name": f"engine.step.{name}.{requests}",
                        "value": round(step_us(engine, requests), 1),
                        "unit": "us",
                        "floor": None,
                        "must": MUST_US,
                        "reach": REACH_US,
                        "higher": False,
                    }
                    for requests in REQUESTS
                ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="What the connector costs an engine step.")
    parser.add_argument("--binary", type=Path, required=True, help="the tessera program")
    parser.add_argument("--models", type=Path, default=DEFAULT_CACHE, help="the model cache")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    arguments = parser.parse_args()
    try:
        rows = measure(arguments.binary, arguments.models)
    except FAILURES as failure:
        print(f"the engine could not be measured: {failure}", file=sys.stderr)
        if arguments.json:
            print(json.dumps({"rows": [], "error": str(failure)}))
        sys.exit(1)
    for row in rows:
        print(f"{row['name']:<28} {row['value']:>8} us   must be under {row['must']} us")
    if arguments.json:
        print(json.dumps({"rows": rows}))


if __name__ == "__main__":
    main()
