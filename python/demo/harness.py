"""What the demo and the engine tests run: real engines, nodes and a damaging proxy as processes.

Every process is a context manager that ends its own process, so that a failed test leaves none
behind. Answers are awaited with a bound; an engine that dies shows the end of its log.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

VOCABULARY = 512
START_S = 240.0
ANSWER_S = 240.0
NODE_S = 30.0
LOG_TAIL = 6000

ENVIRONMENT = {
    # One process: starts in half the time.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    # Several engines share the cores of a test machine; bound threads would share one.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # The models are too small for two threads, which wait for each other on a busy machine.
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class ProcessError(Exception):
    """A process ended or stayed silent; the message carries the end of its log."""


class EngineRefusedError(Exception):
    """The engine did not start; the message is its reason."""


FAILURES = (ProcessError, EngineRefusedError, TimeoutError, FileNotFoundError)
"""What may go wrong on a machine and is said in words; anything else is a defect of the program."""


Child = TypeVar("Child", bound="Process")


def spawn(
    command: Sequence[str | Path], log: Path, env: dict[str, str] | None = None
) -> subprocess.Popen[str]:
    with log.open("ab") as sink:
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sink,
            env={**os.environ, **(env or {})},
            text=True,
        )


class Forked:
    """A grandchild with the interface of `subprocess.Popen`: an engine that a nursery forked. Its
    exit code is its parent's to know; here it is 0."""

    def __init__(self, connection: socket.socket) -> None:
        self.stdin = connection.makefile("w")
        self.stdout = connection.makefile("r")
        connection.close()
        self.pid = 0
        self._handle: int | None = None

    def take_pid(self) -> None:
        """Reads the first line of output, which is the process id."""
        self.pid = int(self.stdout.readline())
        self._handle = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        return self._exited(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._exited(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("engine", timeout or 0)
        return code

    def _exited(self, timeout: float | None) -> int | None:
        assert self._handle is not None
        return 0 if select.select([self._handle], [], [], timeout)[0] else None

    def send_signal(self, number: int) -> None:
        assert self._handle is not None
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Process:
    """A child with lines in and lines out, its standard error in a log file."""

    def __init__(self, child: subprocess.Popen[str] | Forked, log: Path) -> None:
        self.child = child
        self.log = log
        self.name = log.stem
        self.lines: queue.Queue[str | None] = queue.Queue()
        # Both are this child's own: after a restart the old one's end is nobody's.
        reading = (child.stdout, self.lines)
        threading.Thread(target=read_lines, args=reading, daemon=True).start()

    @property
    def pid(self) -> int:
        return self.child.pid

    def line(self, timeout_s: float) -> str:
        """The next line of output.

        Raises ProcessError when the process ends, or says nothing for `timeout_s`.
        """
        try:
            line = self.lines.get(timeout=timeout_s)
        except queue.Empty:
            raise ProcessError(f"{self.name}: silent for {timeout_s} s\n{self.tail()}") from None
        if line is None:
            code = self.child.wait(NODE_S)
            raise ProcessError(f"{self.name}: ended with {code}\n{self.tail()}")
        return line

    def write(self, text: str) -> None:
        stdin: IO[str] | None = self.child.stdin
        assert stdin is not None
        try:
            stdin.write(text + "\n")
            stdin.flush()
        except BrokenPipeError:
            raise ProcessError(f"{self.name}: gone\n{self.tail()}") from None

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-LOG_TAIL:]

    def stop(self, sent: int = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        """Ends the process, by force if it does not listen. Returns its exit code."""
        if self.child.poll() is None:
            self.child.send_signal(sent)
            try:
                self.child.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.child.kill()
        return self.child.wait()

    def __enter__(self: Child) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def read_lines(stdout: IO[str], lines: queue.Queue[str | None]) -> None:
    """Passes on a child's lines, and None at its end."""
    for line in stdout:
        lines.put(line)
    lines.put(None)


@dataclass(frozen=True)
class Result:
    """What one prompt got."""

    tokens: list[int]
    finish_reason: str
    cached: int
    """Prompt tokens that were not computed, wherever they came from."""
    ttft_ms: float
    total_ms: float
    handover: dict[str, Any] | None = None
    """With what another engine goes on from the prompt."""


OURS = "vllm:tessera_"
EXTERNAL_TOKENS = "vllm:prompt_tokens_by_source{source=external_kv_transfer}"


@dataclass(frozen=True)
class Run:
    """What one job got: the results in the order of the prompts, and what was counted meanwhile."""

    results: list[Result]
    counters: dict[str, float]

    @staticmethod
    def of(answer: dict[str, Any]) -> Run:
        return Run([Result(**result) for result in answer["results"]], answer["counters"])

    @property
    def tokens(self) -> list[list[int]]:
        return [result.tokens for result in self.results]

    def counted(self, name: str) -> int:
        """By how much one of the connector's own counters grew."""
        return int(self.counters.get(OURS + name, 0))

    @property
    def external(self) -> int:
        """Prompt tokens that came from the connector."""
        return int(self.counters.get(EXTERNAL_TOKENS, 0))


class Nursery(Process):
    """A process that has imported vLLM and forks engines, which so start in a third of the time.

    Engines import from the folders of `paths` too.
    """

    def __init__(self, log: Path, paths: Sequence[Path] = ()) -> None:
        self.socket = log.with_suffix(".socket")
        self.socket.unlink(missing_ok=True)
        found = [str(path) for path in paths] + [os.environ.get("PYTHONPATH", "")]
        env = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join(filter(None, found))}
        super().__init__(spawn([sys.executable, ENGINE, "--fork", self.socket], log, env), log)
        assert self.line(START_S).strip() == "listening"

    def fork(self, settings: dict[str, Any], log: Path, env: dict[str, str]) -> Forked:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(str(self.socket))
        forked = Forked(connection)
        log.touch()
        print(json.dumps({"settings": settings, "log": str(log), "env": env}), file=forked.stdin)
        forked.stdin.flush()
        forked.take_pid()
        return forked


ENGINE = Path(__file__).with_name("engine.py")


class Engine(Process):
    """One engine. Use as a context manager, or call `close`."""

    def __init__(
        self,
        model: Path,
        log: Path,
        connector: dict[str, Any] | None = None,
        engine: dict[str, Any] | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        settings = {"model": str(model), "connector": connector, "engine": engine or {}}
        if nursery:
            super().__init__(nursery.fork(settings, log, ENVIRONMENT), log)
        else:
            command = [sys.executable, ENGINE, json.dumps(settings)]
            super().__init__(spawn(command, log, ENVIRONMENT), log)
        self.started = False
        self.block_tokens = 0
        self.loads = False

    def start(self) -> Engine:
        """Waits until the engine serves.

        Raises EngineRefusedError with the engine's own message when it does not start.
        """
        if not self.started:
            answer = json.loads(self.line(START_S))
            if answer["event"] == "refused":
                self.child.wait(NODE_S)
                raise EngineRefusedError(answer["error"] + "\n" + self.tail())
            self.block_tokens = answer["block_tokens"]
            self.loads = answer["loads"]
            self.started = True
        return self

    def ask(self, **job: Any) -> dict[str, Any]:
        self.start()
        self.write(json.dumps(job))
        return json.loads(self.line(ANSWER_S))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int = 16,
        salts: Sequence[str | None] | None = None,
        hold: tuple[int, Callable[[], object]] | None = None,
    ) -> Run:
        """Runs the prompts together. `hold` is a number of tokens and what to do at that point,
        while the engine stands still in the middle of the run."""
        names = self.add(prompts, max_tokens, salts)
        if hold is None:
            return self.finish(names)
        self.write(json.dumps({"op": "finish", "names": names, "hold_after": hold[0]}))
        answer = json.loads(self.line(ANSWER_S))
        assert answer["event"] == "held", answer
        hold[1]()
        self.write("")
        return Run.of(json.loads(self.line(ANSWER_S)))

    def add(
        self,
        prompts: Sequence[Sequence[int]],
        max_tokens: int = 16,
        salts: Sequence[str | None] | None = None,
        handovers: Sequence[dict[str, Any] | None] | None = None,
    ) -> list[str]:
        """Adds requests that wait for the next step; returns their names."""
        job = {"prompts": [list(tokens) for tokens in prompts], "max_tokens": max_tokens}
        more = {"salts": list(salts or ()), "handovers": list(handovers or ())}
        return self.ask(op="add", **job, **more)["names"]

    def step(self) -> list[str]:
        """One step; returns the names of the requests that are finished and not collected."""
        return self.ask(op="step")["finished"]

    def finish(self, names: Sequence[str], meanwhile: Callable[[], object] | None = None) -> Run:
        """Runs requests to their end, and `meanwhile` beside it."""
        self.write(json.dumps({"op": "finish", "names": list(names)}))
        if meanwhile is not None:
            meanwhile()
        return Run.of(json.loads(self.line(ANSWER_S)))

    def abort(self, names: Sequence[str]) -> None:
        """Ends requests before they are finished."""
        assert self.ask(op="abort", names=list(names))["event"] == "aborted"

    def each(self, prompts: Sequence[Sequence[int]], **options: Any) -> list[Run]:
        """Runs the prompts one after the other."""
        return [self.generate([prompt], **options) for prompt in prompts]

    def reset(self) -> None:
        """Forgets the engine's own cached blocks, so that only the connector can still hit."""
        assert self.try_reset()

    def try_reset(self) -> bool:
        """As `reset`; whether it was possible, which it is not while blocks are in use."""
        return bool(self.ask(op="reset")["ok"])

    def is_rested(self) -> bool:
        """Takes a step; whether all blocks are free then, as far as the engine knows."""
        self.step()
        return self.try_reset()

    def counters(self) -> dict[str, float]:
        return self.ask(op="counters")["counters"]

    def settle(self) -> dict[str, float]:
        """Waits until everything that was to be saved is saved or dropped; returns the counters.

        An engine reports only while it steps, so it is given a token to compute each time.
        """

        def settled() -> bool:
            self.generate([[0]], max_tokens=1)
            return self.counters()[OURS + "staging_bytes_used"] == 0

        wait_until(settled, f"{self.name}: saves to end")
        return self.counters()

    def close(self) -> None:
        """Lets the engine end by itself, as a server does."""
        if self.child.poll() is None and self.started:
            self.write(json.dumps({"op": "close"}))
            assert json.loads(self.line(ANSWER_S))["event"] == "closed"
            self.child.wait(NODE_S)
        self.stop()

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.stop()


class Node(Process):
    """One `tessera node` on loopback, in memory or with a data folder; `restart` keeps its
    address, and its folder."""

    def __init__(
        self,
        binary: Path,
        log: Path,
        ram: str = "512MiB",
        listen: str = "127.0.0.1:0",
        data: Path | None = None,
    ) -> None:
        self.binary = binary
        self.ram = ram
        self.data = data
        command: list[str | Path] = [binary, "node", "--listen", listen, "--ram", ram]
        if data is not None:
            command += ["--data", data, "--disk", "1GiB"]
        super().__init__(spawn(command, log), log)
        self.address = self.line(NODE_S).removeprefix("listening on ").strip()

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def restart(self) -> None:
        """Starts a node at the same address, after `kill`: with its data folder, else empty."""
        arguments = (self.binary, self.log, self.ram, self.address, self.data)
        self.__init__(*arguments)  # type: ignore[misc]

    def stat(self) -> dict[str, Any]:
        command = [str(self.binary), "stat", "--node", self.address, "--json"]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=NODE_S, check=True)
        return json.loads(answer.stdout)


class Faults(Process):
    """A proxy before a node that does to single frames what a test orders.

    `damage` changes one PUT under a right checksum, the control of every test of equality; `gone`
    removes the object of a GET before the GET arrives, `cut` ends its connection, `stall` keeps it
    until `release`; `keep` does that to a PUT.
    """

    def __init__(self, binary: Path, log: Path, node: Node) -> None:
        program = binary.with_name("tessera-faults")
        if not program.is_file():
            raise FileNotFoundError(
                f"{program} is missing: cargo build --release -p tessera-sim --bin tessera-faults"
            )
        super().__init__(spawn([program, "--upstream", node.address], log), log)
        self.address = self.line(NODE_S).removeprefix("listening ").strip()

    def order(self, fault: str) -> None:
        """The next frame that passes, a PUT or a GET as the fault wants, meets it."""
        self.write(fault)
        self.expect("armed")

    def expect(self, word: str) -> None:
        """Waits for the word that says what has happened."""
        line = self.line(NODE_S).strip()
        assert line == word, f"{self.name}: expected {word}, got {line}"

    def release(self, count: int = 1) -> None:
        """Lets `count` stalled or kept frames go on."""
        self.write("release")
        self.expect(f"released {count}")


PATIENCE = {"lookup_timeout_ms": 2000, "load_timeout_ms": 20000}
"""A machine that builds and tests at once may stall for longer than a server is allowed to."""


def connector(*nodes: str, **options: Any) -> dict[str, Any]:
    """The kv_transfer_config of an engine that uses these nodes; none means the local one."""
    extra = {**({"nodes": list(nodes)} if nodes else {}), **PATIENCE, **options}
    return {
        "kv_connector": "TesseraConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": extra,
    }


def prompt(length: int, seed: int | str) -> list[int]:
    """A prompt of its own for every seed."""
    generator = random.Random(f"prompt {seed}")
    return [generator.randrange(VOCABULARY) for _ in range(length)]


def wait_until(true: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
    """Waits for a condition, with a bound."""
    end = time.monotonic() + timeout_s
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {timeout_s} s")
        time.sleep(0.02)
