"""Real vLLM servers on loopback, and what stands before a prefill and a decode server.

Used by the engine tests of dispatch and by `pd.py`. As in `harness`, every process is a context
manager that ends its own processes, and every wait has a bound. Prompts go out as token ids and
answers come back as token ids, so that nothing depends on a tokenizer.
"""

from __future__ import annotations

import contextlib
import ctypes
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import (
    ANSWER_S,
    ENVIRONMENT,
    EXTERNAL_TOKENS,
    LOG_TAIL,
    OURS,
    ProcessError,
    connector,
)

LOOPBACK = "127.0.0.1"
SYSTEM = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1
START_S = 600.0
"""A server imports vLLM in two processes, which takes minutes on a machine that is busy."""
COMPUTED_TOKENS = "vllm:prompt_tokens_by_source_total{source=local_compute}"
HELD = ("peer_offered_bytes", "peer_claimed_bytes", "peer_quarantined_bytes", "staging_bytes_used")
"""Gauges that are 0 when nothing is open."""


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server((LOOPBACK, 0)) as taken:
        return int(taken.getsockname()[1])


def program(name: str) -> str:
    """A program of the environment that runs this, or else of the path."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which(name, path=os.pathsep.join((beside, os.environ.get("PATH", ""))))
    if found is None:
        raise FileNotFoundError(f"{name} is missing: cargo xtask setup installs it")
    return found


def end_with_parent() -> None:
    """Has the process that calls it end when whoever started it does, killed or not: in a session
    of its own no terminal ends it. Set before the program begins, and kept by it."""
    SYSTEM.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class HttpError(Exception):
    """A server answered with an error; the message is its own."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


@dataclass
class Answer:
    """What one request got: the tokens of each sample, and how long they took to come."""

    samples: list[list[int]] = field(default_factory=list)
    ttft_ms: float = 0.0
    total_ms: float = 0.0
    handover: dict[str, Any] | None = None


class Service:
    """A process that answers HTTP on loopback; it and its children are one process group."""

    def __init__(
        self, command: Sequence[str | Path], log: Path, port: int, env: dict[str, str] | None = None
    ) -> None:
        self.command = [str(part) for part in command]
        self.env = {**os.environ, **(env or {})}
        self.log = log
        self.port = port
        self.url = f"http://{LOOPBACK}:{port}"
        self.launch()

    def launch(self) -> None:
        """Starts the process, also again after it has ended, at the same address."""
        with self.log.open("ab") as sink:
            self.child = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=self.env,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )

    def ready(self, path: str = "/health") -> None:
        """Waits until it serves. Raises ProcessError if it ends, or takes too long."""
        end = time.monotonic() + START_S
        while not self.is_healthy(path):
            code = self.child.poll()
            if code is not None:
                raise ProcessError(f"{self.log.stem}: ended with {code}\n{self.tail()}")
            if time.monotonic() > end:
                raise ProcessError(f"{self.log.stem}: no answer in {START_S} s\n{self.tail()}")
            time.sleep(0.1)

    def is_healthy(self, path: str = "/health") -> bool:
        try:
            self.get(path)
        except (OSError, http.client.HTTPException, HttpError):
            return False
        return True

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL:]

    def get(self, path: str) -> str:
        with self.exchange("GET", path) as response:
            return response.read().decode()

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self.exchange("POST", path, body) as response:
            return json.loads(response.read())

    @contextlib.contextmanager
    def exchange(
        self,
        method: str,
        path: str,
        body: dict[str, Any] | None = None,
        timeout_s: float = ANSWER_S,
    ) -> Iterator[http.client.HTTPResponse]:
        """One request, and its answer while it comes; leaving early closes the connection.

        Raises HttpError for a status that is not 200.
        """
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=timeout_s)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != http.client.OK:
                raise HttpError(response.status, response.read().decode(errors="replace"))
            yield response
        finally:
            connection.close()

    def complete(
        self,
        tokens: list[int],
        count: int,
        stream: bool = False,
        timeout_s: float = ANSWER_S,
        **more: Any,
    ) -> Answer:
        """Greedy completion of a prompt by exactly `count` tokens, whole or streamed.

        Raises TimeoutError, and goes, when the server is silent for `timeout_s`.
        """
        begun = time.monotonic()
        answer = Answer()
        body = ask(tokens, count, stream, **more)
        with self.exchange("POST", "/v1/completions", body, timeout_s) as raw:
            if stream:
                for event in events(raw):
                    answer.ttft_ms = answer.ttft_ms or since_ms(begun)
                    for choice in event.get("choices", ()):
                        grow(answer.samples, choice)
            else:
                whole = json.loads(raw.read())
                for choice in whole["choices"]:
                    grow(answer.samples, choice)
                answer.handover = whole.get("kv_transfer_params")
        answer.total_ms = since_ms(begun)
        return answer

    def stop(self, sent: int = signal.SIGTERM) -> None:
        """Ends the process and whatever it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, sent)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(30)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def __enter__(self: Any) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Server(Service):
    """`vllm serve` with one test model."""

    def __init__(self, model: Path, log: Path, connector: dict[str, Any] | None = None) -> None:
        port = free_port()
        dtype = json.loads((model / "config.json").read_text())["dtype"]
        command = [program("vllm"), "serve", str(model), "--served-model-name", MODEL]
        command += ["--host", LOOPBACK, "--port", str(port), "--dtype", dtype, *SIZES]
        if connector is not None:
            command += ["--kv-transfer-config", json.dumps(connector)]
        self.steps = 0
        # With the development mode it lets a caller empty its own cache.
        super().__init__(command, log, port, {**ENVIRONMENT, "VLLM_SERVER_DEV_MODE": "1"})

    def counters(self) -> dict[str, float]:
        """Counters and gauges by name and labels, as in `harness`, with `_total` on counters."""
        found: dict[str, float] = {}
        for line in self.get("/metrics").splitlines():
            if line.startswith("vllm:"):
                name, value = line.rsplit(" ", 1)
                found[without_shared_labels(name)] = float(value)
        return found

    def counted(self, name: str) -> int:
        """One of the connector's own counters or gauges."""
        found = self.counters()
        return int(found.get(f"{OURS}{name}_total", found.get(OURS + name, 0)))

    def step(self) -> None:
        """Gives the engine a token to compute: an idle engine collects nothing, and counts
        nothing."""
        self.steps += 1
        self.complete([0], 1)

    def is_rested(self) -> bool:
        """Whether nothing is open and all blocks are free; its own cache is empty then."""
        self.step()
        open_bytes = any(self.counted(name) for name in HELD)
        return not open_bytes and self.post("/reset_prefix_cache", {})["success"]


@dataclass
class Count:
    """What a server counted while something ran."""

    before: dict[str, float]
    after: dict[str, float] = field(default_factory=dict)
    steps: int = 0

    def grown(self, name: str) -> float:
        """By how much a sum of the engine grew."""
        return self.after.get(name, 0) - self.before.get(name, 0)

    def of(self, name: str) -> int:
        """By how much a counter of the engine grew."""
        return int(self.grown(name))

    def ours(self, name: str) -> int:
        """By how much one of the connector's own counters grew."""
        return self.of(f"{OURS}{name}_total")

    @property
    def external(self) -> int:
        """Prompt tokens that came from another engine."""
        return self.of(EXTERNAL_TOKENS.replace("{", "_total{"))

    @property
    def computed(self) -> int:
        """Prompt tokens that were computed, without those of `Server.step`."""
        return self.of(COMPUTED_TOKENS) - self.steps


@contextlib.contextmanager
def counting(server: Server) -> Iterator[Count]:
    """Counts what a server does inside the block."""
    count = Count(server.counters(), steps=-server.steps)
    yield count
    count.after = server.counters()
    count.steps += server.steps


class Proxy(Service):
    """`tessera proxy` before one prefill and one decode server; `more` are options of it."""

    def __init__(
        self, binary: Path, log: Path, prefill: str, decode: str, *more: str | Path
    ) -> None:
        port = free_port()
        command = [binary, "proxy", "--listen", f"{LOOPBACK}:{port}"]
        super().__init__([*command, "--prefill", prefill, "--decode", decode, *more], log, port)


class Router(Service):
    """`vllm-router` before one prefill and one decode server, with its serial dispatch."""

    def __init__(self, log: Path, prefill: str, decode: str) -> None:
        port = free_port()
        command = [program("vllm-router"), "--host", LOOPBACK, "--port", str(port)]
        command += ["--vllm-pd-disaggregation", "--kv-connector", "nixl"]
        command += ["--prefill", prefill, "--decode", decode, "--policy", "round_robin"]
        command += ["--worker-startup-check-interval", "1", "--health-check-interval-secs", "1"]
        command += ["--prometheus-port", str(free_port())]
        super().__init__(command, log, port)


READERS = ("vllm-router", "tessera proxy")
"""Ask prefill, and then decode, which reads from it."""
WRITER = "tessera proxy --mode write"
"""Asks both at once, and prefill writes to decode."""


@dataclass
class Pair:
    """A prefill and a decode server of one model, and dispatchers before them by their names."""

    prefill: Server
    decode: Server
    dispatchers: dict[str, Service]


@contextlib.contextmanager
def pair(
    model: Path, name: str, binary: Path, node: str, logs: Path, folder: Path, **options: Any
) -> Iterator[Pair]:
    """Starts all of them; `folder`, a private one, gets the key of both servers. They neither save
    nor load, so that what decode did not compute came from prefill."""
    inbox = f"{LOOPBACK}:{free_port()}"
    shared = {
        "save": False,
        "load": False,
        "peer_listen": f"{LOOPBACK}:0",
        "local_dir": str(folder),
        **options,
    }

    def server(role: str, **more: Any) -> Server:
        use = {**connector(node, **shared, **more), "kv_role": role}
        return Server(model, logs / f"{name}-{role}.log", use)

    with server("kv_producer", peer_inbox=inbox) as prefill, server("kv_consumer") as decode:
        prefill.ready()
        decode.ready()

        def proxy(mode: str, *more: str | Path) -> Proxy:
            log = logs / f"{name}-proxy-{mode}.log"
            return Proxy(binary, log, prefill.url, decode.url, "--mode", mode, *more)

        with (
            Router(logs / f"{name}-router.log", prefill.url, decode.url) as router,
            proxy("read") as reads,
            proxy("write", "--inbox", inbox, "--key-file", folder / "peer.key") as writes,
        ):
            dispatchers = dict(zip((*READERS, WRITER), (router, reads, writes), strict=True))
            for dispatcher in dispatchers.values():
                dispatcher.ready()
            yield Pair(prefill, decode, dispatchers)


MODEL = "tested"
SIZES = (
    *("--max-model-len", "4096"),
    *("--max-num-batched-tokens", "4096"),
    *("--max-num-seqs", "16"),
    *("--kv-cache-memory-bytes", str(256 << 20)),
    *("--seed", "0"),
    "--enforce-eager",
)


def ask(tokens: list[int], count: int, stream: bool, **more: Any) -> dict[str, Any]:
    """The body of a request for exactly `count` greedy tokens."""
    body = {"model": MODEL, "prompt": tokens, "max_tokens": count, "temperature": 0}
    return {**body, "ignore_eos": True, "stream": stream, "return_token_ids": True, **more}


def events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The events of a streamed answer, as they come.

    Raises EOFError when the stream ends before it says so.
    """
    while line := response.readline():
        data = line.decode().removeprefix("data:").strip()
        if data == "[DONE]":
            return
        if data:
            yield json.loads(data)
    raise EOFError("the stream was cut off")


def grow(samples: list[list[int]], choice: dict[str, Any]) -> None:
    """Adds a choice's tokens to those of its sample."""
    while len(samples) <= choice["index"]:
        samples.append([])
    samples[choice["index"]] += choice.get("token_ids") or ()


def since_ms(begun: float) -> float:
    return round((time.monotonic() - begun) * 1000, 1)


def without_shared_labels(name: str) -> str:
    """`name{engine="0",model_name="m",x="y"}` as `name{x=y}`."""
    plain, _, labels = name.partition("{")
    pairs = sorted(pair.replace('"', "") for pair in labels.rstrip("}").split(",") if pair)
    kept = [pair for pair in pairs if pair.split("=")[0] not in ("engine", "model_name")]
    return plain + "".join(f"{{{pair}}}" for pair in kept)
