"""`cargo xtask demo --pd`: a prefill and a decode engine of each model behind three dispatchers.

Prompts go through `vllm-router`, as a client's would, and others through `tessera proxy` in both of
its modes: prefill computes a prompt, and decode goes on from its blocks, which it reads, or which
prefill writes to it. The tokens must be those of one engine
alone, and decode must compute only the last token of each prompt. Status goes to standard error,
the table to standard output; with `--json` one JSON line goes there instead.

With recurrent state an engine alone has two answers to a prompt (docs/peer.md). So the last token
of such a prompt is the one that the engine alone goes on with, which it then has computed as decode
does.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from harness import FAILURES, Node, prompt, wait_until
from servers import WRITER, HttpError, Pair, Server, Service, counting, pair

from demo import TOKENS, status

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))

from build import DEFAULT_CACHE, ensure
from recipes import RECIPES

SHOWN = ("llama", "qwen3_next")
"""Full attention, and recurrent state beside it."""
RECURRENT = ("qwen3_next",)
MODELS = tuple(name for name in RECIPES if name != "deepseek_v3")
"""The CPU engine cannot go on from a prefix of latent attention."""
PROMPTS = 3
PROMPT_TOKENS = 3500
REST_S = 60.0
LATENCY_S = "vllm:e2e_request_latency_seconds_sum"


@dataclass(frozen=True)
class Row:
    """One model in the table; the field names are those of the JSON line."""

    name: str
    mode: str
    tokens_equal: bool
    handover_ms: float
    """From the end of prefill to decode's first token, all that lies between them included."""
    decode_computed_tokens: int
    """Of a prompt; the most of all of them."""

    @property
    def ok(self) -> bool:
        return self.tokens_equal and self.decode_computed_tokens == 1


def alone(server: Server, tokens: list[int], name: str) -> list[int]:
    """What one engine answers by itself. Sets the last token of a prompt of a recurrent model."""
    if name not in RECURRENT:
        return server.complete(tokens, TOKENS).samples[0]
    last, *answer = server.complete(tokens[:-1], 1 + TOKENS).samples[0]
    tokens[-1] = last
    return answer


def rest(*servers: Server) -> None:
    """Waits until all blocks of the servers are free, and empties their own caches."""
    for server in servers:
        wait_until(server.is_rested, f"{server.log.stem} to rest", REST_S)


def handed_over(
    prefill: Server, decode: Server, dispatcher: Service, tokens: list[int]
) -> tuple[list[int], float, int]:
    """Sends a prompt through the dispatcher. Returns the tokens of the answer, the milliseconds
    between both engines, and the tokens of the prompt that decode computed."""
    with counting(decode) as last:
        with counting(prefill) as first:
            answer = dispatcher.complete(tokens, TOKENS, stream=True)
        rest(prefill, decode)
    prefill_ms = first.grown(LATENCY_S) * 1000
    return answer.samples[0], answer.ttft_ms - prefill_ms, last.computed


def demonstrate(name: str, binary: Path, models: Path, logs: Path, node: Node) -> Iterator[Row]:
    """Serves prompts of one model by one engine, and then by two."""
    recipe = RECIPES[name]()
    status(f"{name}: model ({recipe.layout} attention)")
    model = ensure(name, models)
    status(f"{name}: prefill and decode engine start")
    folder = logs / f"{name}-key"
    folder.mkdir(mode=0o700)
    with pair(model, name, binary, node.address, logs, folder) as both:
        for dispatcher in both.dispatchers:
            yield row(both, name, dispatcher)


def row(both: Pair, name: str, dispatcher: str) -> Row:
    """Hands prompts of its own over behind one dispatcher."""
    prefill, decode = both.prefill, both.decode
    status(f"{name}: prompts by one engine alone")
    seeds = [f"{name} {dispatcher} {index}" for index in range(PROMPTS)]
    prompts = [prompt(PROMPT_TOKENS, seed) for seed in seeds]
    single = [alone(prefill, tokens, name) for tokens in prompts]
    rest(prefill, decode)
    status(f"{name}: the same prompts by two, behind {dispatcher}")
    service = both.dispatchers[dispatcher]
    # Connections are made with the first one, whose time says nothing.
    handed_over(prefill, decode, service, prompt(PROMPT_TOKENS, "warm up"))
    found = [handed_over(prefill, decode, service, tokens) for tokens in prompts]
    return Row(
        name=f"{name} behind {dispatcher.partition(' --')[0]}",
        mode="WRITE" if dispatcher == WRITER else "READ",
        tokens_equal=[tokens for tokens, _, _ in found] == single,
        handover_ms=round(statistics.median(ms for _, ms, _ in found), 1),
        decode_computed_tokens=max(computed for _, _, computed in found),
    )


def table(rows: list[Row]) -> str:
    head = ("model", "mode", "prompt", "hand-over", "decode computed", "tokens equal")
    lines = [head, *(cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    pairs = [zip(line, widths, strict=True) for line in lines]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in pair) for pair in pairs)


def cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.mode,
        f"{PROMPT_TOKENS:,} tokens",
        f"{row.handover_ms:.1f} ms",
        f"{row.decode_computed_tokens} tokens",
        "yes" if row.tokens_equal else "NO",
    )


def report(rows: list[Row], failure: Exception | None = None) -> str:
    """The JSON line: what there is, and what went wrong if something did."""
    ok = failure is None and bool(rows) and all(row.ok for row in rows)
    error = {} if failure is None else {"error": str(failure)}
    return json.dumps({"ok": ok, "runs": [asdict(row) for row in rows], **error})


def main() -> None:
    parser = argparse.ArgumentParser(description="Hands prompts over from prefill to decode.")
    parser.add_argument("--binary", type=Path, required=True, help="the tessera program")
    parser.add_argument("--models", type=Path, default=DEFAULT_CACHE, help="the model cache")
    parser.add_argument("--model", choices=MODELS, help="only this one")
    parser.add_argument("--json", action="store_true", help="end with one JSON line")
    arguments = parser.parse_args()
    logs = Path(tempfile.mkdtemp(prefix="tessera-demo-"))
    status(f"logs in {logs}")
    rows: list[Row] = []
    try:
        with Node(arguments.binary, logs / "node.log") as node:
            for name in [arguments.model] if arguments.model else SHOWN:
                rows.extend(demonstrate(name, arguments.binary, arguments.models, logs, node))
    except (*FAILURES, HttpError, OSError) as failure:
        status(f"the demo did not run to its end: {failure}")
        status(f"all logs are in {logs}")
        if arguments.json:
            print(report(rows, failure))
        sys.exit(1)
    # With `--json` standard output is for machines.
    print(table(rows), file=sys.stderr if arguments.json else sys.stdout)
    if arguments.json:
        print(report(rows))
    sys.exit(0 if all(row.ok for row in rows) else 1)


if __name__ == "__main__":
    main()
