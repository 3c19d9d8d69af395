"""One real vLLM engine in one process, driven by JSON lines; started by `harness.Engine` only.

The first argument is a JSON object: `model` (folder), `connector` (kv_transfer_config or null) and
`engine` (more arguments of `vllm.LLM`); or it is `--fork SOCKET`, see `fork_engines`. Every line on
standard input is a job, every line on standard output an answer; what libraries print goes to
standard error. The engine is stepped here by hand, so that a caller can act at an exact point of a
run (`hold_after`) and so that the time to the first token is measured where the request is added.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn, TextIO


def answers_only() -> TextIO:
    """Libraries and worker processes may print; only this copy of standard output is ours."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return answers


# An engine may print while it is imported.
ANSWERS = answers_only()

from hooks import HookClock  # noqa: E402
from vllm import LLM, SamplingParams  # noqa: E402
from vllm.v1.metrics.reader import Counter, Gauge  # noqa: E402


class Served:
    """The engine and the requests that it has now."""

    def __init__(self, settings: dict[str, Any], answers: TextIO) -> None:
        self.answers = answers
        self.numbered = 0
        # Of requests that are under way, by name.
        self.begun: dict[str, float] = {}
        self.ttft: dict[str, float] = {}
        self.tokens: dict[str, list[int]] = {}
        self.results: dict[str, dict[str, Any]] = {}
        self.clock: HookClock | None = None
        folder = Path(settings["model"])
        # vLLM turns a float32 checkpoint into bfloat16 unless told otherwise.
        dtype = json.loads((folder / "config.json").read_text())["dtype"]
        arguments: dict[str, Any] = {
            "dtype": dtype,
            "enforce_eager": True,
            "seed": 0,
            "max_model_len": 4096,
            "max_num_batched_tokens": 4096,
            "max_num_seqs": 16,
            "kv_cache_memory_bytes": 256 << 20,
            "disable_log_stats": False,
            **settings.get("engine", {}),
        }
        if settings.get("connector"):
            arguments["kv_transfer_config"] = settings["connector"]
        self.llm = LLM(str(folder), **arguments)

    def say(self, **answer: Any) -> None:
        print(json.dumps(answer), file=self.answers, flush=True)

    def counters(self) -> dict[str, float]:
        """The engine's counters and gauges, ours among them, by name and labels."""
        found: dict[str, float] = {}
        for metric in self.llm.get_metrics():
            if isinstance(metric, Counter | Gauge):
                labels = {k: v for k, v in metric.labels.items() if k not in SHARED_LABELS}
                name = metric.name + "".join(f"{{{k}={v}}}" for k, v in sorted(labels.items()))
                found[name] = found.get(name, 0) + metric.value
        return found

    def add(self, job: dict[str, Any]) -> list[str]:
        """Adds requests, which wait for the next steps. Returns their names."""
        salts = job.get("salts") or [None] * len(job["prompts"])
        handovers = job.get("handovers") or [None] * len(job["prompts"])
        names = []
        for tokens, salt, handover in zip(job["prompts"], salts, handovers, strict=True):
            parameters = SamplingParams(
                temperature=0,
                max_tokens=job["max_tokens"],
                ignore_eos=True,
                extra_args={"kv_transfer_params": handover} if handover else None,
            )
            prompt = {"prompt_token_ids": tokens, **({"cache_salt": salt} if salt else {})}
            name = f"r{self.numbered}"
            self.numbered += 1
            self.begun[name] = time.monotonic()
            self.llm.llm_engine.add_request(name, prompt, parameters)  # type: ignore[arg-type]
            names.append(name)
        return names

    def finish(self, names: list[str], hold_after: int | None = None) -> dict[str, Any]:
        """Steps until these requests are finished; others may stay. Answers in their order.

        With `hold_after`, stands still once when that many tokens are there, says so, and goes on
        with the next line of input.
        """
        before = self.counters()
        while not all(name in self.results for name in names):
            self.step()
            if hold_after is not None and sum(map(len, self.tokens.values())) >= hold_after:
                hold_after = None
                self.say(event="held", tokens=sum(map(len, self.tokens.values())))
                sys.stdin.readline()
        after = self.counters()
        changes = {name: value - before.get(name, 0) for name, value in after.items()}
        results = [self.results.pop(name) for name in names]
        for name in names:
            del self.begun[name], self.ttft[name], self.tokens[name]
        return {"results": results, "counters": changes}

    def step(self) -> None:
        """One step of the engine, and what came out of it."""
        for output in self.llm.llm_engine.step():
            name = output.request_id
            now = time.monotonic()
            self.ttft.setdefault(name, now - self.begun[name])
            self.tokens[name] = list(output.outputs[0].token_ids)
            if output.finished:
                self.results[name] = {
                    "tokens": self.tokens[name],
                    "cached": output.num_cached_tokens or 0,
                    "finish_reason": output.outputs[0].finish_reason,
                    "ttft_ms": round(self.ttft[name] * 1000, 3),
                    "total_ms": round((now - self.begun[name]) * 1000, 3),
                    "handover": output.kv_transfer_params,
                }

    def abort(self, names: list[str]) -> None:
        """Ends requests, as a server does whose client is gone."""
        self.llm.llm_engine.abort_request(names)
        for name in names:
            for known in (self.begun, self.ttft, self.tokens, self.results):
                known.pop(name, None)

    def time_hooks(self, job: dict[str, Any]) -> dict[str, list[int]]:
        """Runs the prompts together, whatever waits beside them; returns the nanoseconds of each
        step, the connector's and all."""
        engine = self.llm.llm_engine
        self.clock = self.clock or HookClock(engine)
        begun = len(self.clock.steps_ns)
        running = set()
        parameters = SamplingParams(temperature=0, max_tokens=job["max_tokens"], ignore_eos=True)
        for index, tokens in enumerate(job["prompts"]):
            name = f"t{self.numbered}-{index}"
            engine.add_request(name, {"prompt_token_ids": tokens}, parameters)
            running.add(name)
        self.numbered += 1
        while running:
            outputs = self.clock.step()
            running -= {output.request_id for output in outputs if output.finished}
        return {"steps_ns": self.clock.steps_ns[begun:], "whole_ns": self.clock.whole_ns[begun:]}

    def serve(self) -> None:
        for line in sys.stdin:
            job = json.loads(line)
            match job["op"]:
                case "add":
                    self.say(event="added", names=self.add(job))
                case "step":
                    self.step()
                    self.say(event="stepped", finished=list(self.results))
                case "finish":
                    names, hold = job["names"], job.get("hold_after")
                    self.say(event="finished", **self.finish(names, hold))
                case "abort":
                    self.abort(job["names"])
                    self.say(event="aborted")
                case "reset":
                    # Only the engine's own cache: the connector keeps what it has.
                    self.say(event="reset", ok=self.llm.reset_prefix_cache())
                case "hooks":
                    self.say(event="hooks", **self.time_hooks(job))
                case "counters":
                    self.say(event="counters", counters=self.counters())
                case "close":
                    break
                case unknown:
                    raise ValueError(f"unknown op {unknown!r}")


SHARED_LABELS = {"model_name", "engine"}


def run(settings: dict[str, Any], answers: TextIO) -> None:
    """One engine from start to end."""
    begun = time.monotonic()
    try:
        served = Served(settings, answers)
    except Exception as error:
        print(json.dumps({"event": "refused", "error": str(error)}), file=answers, flush=True)
        raise
    config = served.llm.llm_engine.vllm_config
    served.say(
        event="ready",
        seconds=round(time.monotonic() - begun, 1),
        block_tokens=config.cache_config.block_size,
        # Where this is off, the engine cannot compute a tail over a loaded prefix.
        loads=bool(config.scheduler_config.enable_chunked_prefill),
    )
    served.serve()
    served.llm.llm_engine.engine_core.shutdown()
    served.say(event="closed")


def fork_engines(path: str) -> None:
    """Forks an engine for every connection to the unix socket `path`, until standard input ends.

    Importing vLLM takes longer than starting a tiny model, so tests import it once. A fork shares
    nothing else: no engine, no thread and no connection exists before it.
    """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen()
    print("listening", file=ANSWERS, flush=True)
    watched = select.poll()
    watched.register(listener, select.POLLIN)
    watched.register(sys.stdin, select.POLLIN | select.POLLHUP)
    while all(ready != sys.stdin.fileno() for ready, _ in watched.poll()):
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            become_engine(connection)
        connection.close()


def become_engine(connection: socket.socket) -> NoReturn:
    """Turns a fork into an engine process: the first line says which, and where it logs."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    order = json.loads(connection.makefile().readline())
    os.environ.update(order["env"])
    log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(log, 2)
    os.dup2(connection.fileno(), 0)
    os.dup2(connection.fileno(), 1)
    sys.stdin = os.fdopen(0)
    status = 1
    try:
        print(os.getpid(), flush=True)
        run(order["settings"], answers_only())
        status = 0
    except BaseException:
        traceback.print_exc()
    sys.stderr.flush()
    # The interpreter that was forked belongs to the parent: its exit handlers are not ours.
    os._exit(status)


def main() -> None:
    if sys.argv[1] == "--fork":
        fork_engines(sys.argv[2])
    else:
        run(json.loads(sys.argv[1]), ANSWERS)


if __name__ == "__main__":
    main()
