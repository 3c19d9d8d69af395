"""`cargo xtask demo`: real engines fill a node, exit, and others answer from it.

For each model class: one process serves the prompts cold and exits, another serves them warm, and
must give the same tokens. The control shows that this could have failed: the first process also
saves prompts of which one block is damaged on its way to the node, under a right checksum; there
the second process must give other tokens. Status goes to standard error, the table to standard
output; with `--json` one JSON line goes there instead.

At the end the node, which keeps its objects in a folder, is killed and started again, and a third
process must answer the prompts of one model from what it finds there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import FAILURES, OURS, Engine, Faults, Node, Run, connector, prompt

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))

from build import DEFAULT_CACHE, ensure
from recipes import RECIPES

PROMPT_TOKENS = 3500
PROMPTS = 3
CONTROLS = 4
TOKENS = 16


@dataclass(frozen=True)
class Row:
    """One model in the table; the field names are those of the JSON line."""

    name: str
    layout: str
    prompt_tokens: int
    external_hit_tokens: int
    bytes_saved: int
    bytes_loaded: int
    cold_ttft_ms: float
    warm_ttft_ms: float
    tokens_equal: bool
    control_differs: bool | None
    """None where the engine cannot continue a loaded prefix, so that no hit is claimed."""
    expected_hit_tokens: int
    cold_tokens: list[list[list[int]]]

    @property
    def ok(self) -> bool:
        hit = self.external_hit_tokens == self.expected_hit_tokens
        return hit and self.tokens_equal and self.control_differs is not False


def status(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", file=sys.stderr, flush=True)


def ttft_ms(runs: list[Run]) -> float:
    return round(statistics.median(run.results[0].ttft_ms for run in runs), 1)


def demonstrate(name: str, binary: Path, models: Path, logs: Path, node: Node) -> Row:
    """Serves one model cold, exits, serves it warm."""
    recipe = RECIPES[name]()
    status(f"{name}: model ({recipe.layout} attention)")
    model = ensure(name, models)
    prompts = prompts_of(name)

    status(f"{name}: first engine starts")
    with (
        Faults(binary, logs / f"{name}-faults.log", node) as faults,
        Engine(model, logs / f"{name}-cold.log", connector(faults.address)) as engine,
    ):
        engine.start()
        # One chunk and a half: every object of it is needed, so any may be the damaged one.
        controls = [
            prompt(engine.block_tokens * 3 // 2, f"{name} control {index}")
            for index in range(CONTROLS)
        ]
        status(f"{name}: cold prompts")
        engine.generate([prompt(engine.block_tokens // 2, "warm up")])
        cold = engine.each(prompts, max_tokens=TOKENS)
        status(f"{name}: control prompts, one block of each damaged on the way to the node")
        clean = []
        for control in controls if engine.loads else []:
            engine.settle()
            faults.order("damage")
            clean.append(engine.generate([control], max_tokens=TOKENS))
            faults.expect("damage")
        saved = engine.settle()[OURS + "bytes_saved"]
        chunk, loads = engine.block_tokens, engine.loads

    status(f"{name}: second engine starts")
    with Engine(model, logs / f"{name}-warm.log", connector(node.address)) as engine:
        engine.start()
        status(f"{name}: the same prompts, warm")
        engine.generate([prompt(chunk // 2, "warm up")])
        warm = engine.each(prompts, max_tokens=TOKENS)
        damaged = engine.each(controls, max_tokens=TOKENS) if loads else []
    differs = any(a.tokens != b.tokens for a, b in zip(clean, damaged, strict=True))
    return Row(
        name=name,
        layout=recipe.layout,
        prompt_tokens=PROMPTS * PROMPT_TOKENS,
        external_hit_tokens=sum(run.external for run in warm),
        bytes_saved=int(saved),
        bytes_loaded=sum(run.counted("bytes_loaded") for run in warm),
        cold_ttft_ms=ttft_ms(cold),
        warm_ttft_ms=ttft_ms(warm),
        tokens_equal=[run.tokens for run in cold] == [run.tokens for run in warm],
        control_differs=differs if loads else None,
        cold_tokens=[run.tokens for run in cold],
        expected_hit_tokens=PROMPTS * ((PROMPT_TOKENS - 1) // chunk * chunk) if loads else 0,
    )


def prompts_of(name: str) -> list[list[int]]:
    """The prompts of a model, the same in every process."""
    return [prompt(PROMPT_TOKENS, f"{name} {index}") for index in range(PROMPTS)]


@dataclass(frozen=True)
class Restart:
    """What a node found again after it was killed, and what an engine made of it."""

    name: str
    external_hit_tokens: int
    ttft_ms: float
    tokens_equal: bool
    expected_hit_tokens: int

    @property
    def ok(self) -> bool:
        return self.external_hit_tokens == self.expected_hit_tokens and self.tokens_equal

    @property
    def line(self) -> str:
        """For people."""
        hit, equal = f"{self.external_hit_tokens:,}", "yes" if self.tokens_equal else "NO"
        return (
            f"{self.name} after kill -9 of the node and its restart: external hit {hit}, "
            f"TTFT {self.ttft_ms:.1f} ms, tokens equal: {equal}"
        )


def restart(row: Row, models: Path, logs: Path, node: Node) -> Restart:
    """Kills the node, starts it again on its folder, and serves the prompts of `row` once more."""
    status(f"{row.name}: the node is killed with SIGKILL, and started again on its folder")
    node.kill()
    node.restart()
    status(f"{row.name}: third engine starts")
    model = ensure(row.name, models)
    with Engine(model, logs / f"{row.name}-restart.log", connector(node.address)) as engine:
        engine.start()
        engine.generate([prompt(engine.block_tokens // 2, "warm up")])
        found = engine.each(prompts_of(row.name), max_tokens=TOKENS)
    return Restart(
        name=row.name,
        external_hit_tokens=sum(run.external for run in found),
        ttft_ms=ttft_ms(found),
        tokens_equal=[run.tokens for run in found] == row.cold_tokens,
        expected_hit_tokens=row.expected_hit_tokens,
    )


COLUMNS = (
    "model",
    "layout",
    "prompt tokens",
    "external hit",
    "saved",
    "loaded",
    "cold TTFT",
    "warm TTFT",
    "tokens equal",
    "control differs",
)


def cells(row: Row) -> list[str]:
    return [
        row.name,
        row.layout,
        f"{row.prompt_tokens:,}",
        f"{row.external_hit_tokens:,}",
        f"{row.bytes_saved / 2**20:.1f} MiB",
        f"{row.bytes_loaded / 2**20:.1f} MiB",
        f"{row.cold_ttft_ms:.1f} ms",
        f"{row.warm_ttft_ms:.1f} ms",
        "yes" if row.tokens_equal else "NO",
        {None: "-", True: "yes", False: "NO"}[row.control_differs],
    ]


def table(rows: list[Row]) -> str:
    lines = [list(COLUMNS), *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS))]
    text = []
    for line in lines:
        left = [line[index].ljust(widths[index]) for index in (0, 1)]
        right = [line[index].rjust(widths[index]) for index in range(2, len(COLUMNS))]
        text.append("  ".join(left + right))
    return "\n".join(text)


INTERNAL = ("expected_hit_tokens", "cold_tokens")


def report(
    rows: list[Row], restarted: Restart | None = None, failure: Exception | None = None
) -> str:
    """The JSON line: what there is, and what went wrong if something did."""

    def shown(row: Row | Restart) -> dict[str, object]:
        return {key: value for key, value in asdict(row).items() if key not in INTERNAL}

    ok = failure is None and all(row.ok for row in [*rows, restarted] if row is not None)
    more = {} if restarted is None else {"restart": shown(restarted)}
    error = {} if failure is None else {"error": str(failure)}
    return json.dumps({"ok": ok, "models": [shown(row) for row in rows], **more, **error})


def main() -> None:
    parser = argparse.ArgumentParser(description="Serves each model class cold, then warm.")
    parser.add_argument("--binary", type=Path, required=True, help="the tessera program")
    parser.add_argument("--models", type=Path, default=DEFAULT_CACHE, help="the model cache")
    parser.add_argument("--model", choices=list(RECIPES), help="only this one")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    arguments = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="tessera-demo-"))
    status(f"logs in {logs}")
    rows: list[Row] = []
    restarted = None
    try:
        with Node(arguments.binary, logs / "node.log", ram="1GiB", data=logs / "data") as node:
            status(f"one node for all: {node.address}")
            for name in [arguments.model] if arguments.model else RECIPES:
                rows.append(demonstrate(name, arguments.binary, arguments.models, logs, node))
            # The last one that can: recurrent state beside full attention, if all have run.
            able = [row for row in rows if row.control_differs is not None]
            if able:
                restarted = restart(able[-1], arguments.models, logs, node)
    except FAILURES as failure:
        status(f"the demo did not run to its end: {failure}")
        status(f"all logs are in {logs}")
        if arguments.json:
            print(report(rows, failure=failure))
        sys.exit(1)
    # With `--json` standard output is for machines.
    people = sys.stderr if arguments.json else sys.stdout
    print(table(rows), file=people)
    if any(row.control_differs is None for row in rows):
        note = "the CPU engine cannot continue a loaded prefix with this layout: no hit claimed"
        print(f"- : {note}", file=people)
    if restarted is not None:
        print(restarted.line, file=people)
    if arguments.json:
        print(report(rows, restarted))
    ok = all(row.ok for row in [*rows, restarted] if row is not None)
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
