"""What the native part offers to the connector."""

from collections.abc import Sequence
from typing import Any

__version__: str

class TesseraError(Exception):
    """Anything the native part raises."""

class OptionError(TesseraError, ValueError):
    """An option is unknown, has the wrong type, or is out of range."""

class ConfigError(TesseraError, ValueError):
    """The engine's description cannot be read or is not supported."""

class LayoutError(TesseraError, ValueError):
    """Block memory cannot be addressed block by block."""

class ResourceError(TesseraError, RuntimeError):
    """Memory, threads, folders or programs are missing."""

class WeightsError(TesseraError, ValueError):
    """A model folder has no fingerprint."""

class ClosedError(TesseraError, RuntimeError):
    """A hook was called after shutdown."""

class StepError(TesseraError, RuntimeError):
    """A hook failed; the step must not go on."""

class Options:
    """The parsed options, as far as the connector itself needs them."""

    model_revision: str
    recompute: bool
    self_test: bool
    def __init__(self, extra_config: dict[str, Any]) -> None: ...

class Scheduler:
    """The native side in the scheduler's process."""

    def __init__(self, document: str, binary: str) -> None: ...
    @property
    def namespace(self) -> str: ...
    @property
    def nodes(self) -> list[str]: ...
    @property
    def left_to_decode(self) -> int: ...
    def meet(self, workers: Sequence[tuple[int, str, str]]) -> None: ...
    def admit(
        self,
        request: str,
        ticket: str,
        identity: tuple[Sequence[int], Sequence[bytes], Sequence[bytes]],
    ) -> str | None: ...
    def expect(
        self,
        request: str,
        pass_: str,
        identity: tuple[Sequence[int], Sequence[bytes], Sequence[bytes]],
    ) -> str | None: ...
    def promise(self, request: str, pass_: str) -> str | None: ...
    def computed(
        self,
        request: str,
        wanted: tuple[
            tuple[Sequence[int], Sequence[bytes], Sequence[bytes]], int, Sequence[Sequence[int]]
        ]
        | None = None,
    ) -> bool: ...
    def sent(self, requests: Sequence[str]) -> None: ...
    @property
    def is_sending(self) -> bool: ...
    @property
    def inbox(self) -> str | None: ...
    def lookup(
        self,
        request: str,
        num_tokens: int,
        computed_tokens: int,
        block_hashes: Sequence[bytes],
        can_load: bool,
    ) -> tuple[int | None, bool]: ...
    def allocated(
        self, request: str, tables: Sequence[Sequence[int]], external_tokens: int
    ) -> None: ...
    def step(
        self,
        new: Sequence[tuple[str, int, int, Sequence[Sequence[int]], Sequence[bytes]]],
        known: tuple[
            Sequence[str],
            Sequence[Sequence[Sequence[int]] | None],
            Sequence[int],
            Sequence[int],
            set[str],
        ],
        grown: dict[str, tuple[int, list[bytes]]],
        preempted: Sequence[str],
        finished: Sequence[str],
    ) -> bytes | None: ...
    def worker_output(
        self, received: Sequence[str], failed: Sequence[str], invalid_blocks: Sequence[int]
    ) -> None: ...
    def finished(
        self,
        request: str,
        wanted: tuple[
            tuple[Sequence[int], Sequence[bytes], Sequence[bytes]], int, Sequence[Sequence[int]]
        ]
        | None = None,
    ) -> str | None: ...
    def metrics(self) -> dict[str, int]: ...
    def changes(self) -> dict[str, int] | None: ...
    def shutdown(self) -> None: ...

class Worker:
    """The native side in a worker's process."""

    def __init__(
        self,
        document: str,
        layers: str,
        num_blocks: int,
        memory: list[Any],
        binary: str,
        device: SimDevice | None = None,
    ) -> None: ...
    @property
    def peer_place(self) -> tuple[int, str, str] | None: ...
    def preempt(self, plan: bytes) -> None: ...
    def begin_step(self, plan: bytes) -> None: ...
    def end_step(self) -> None: ...
    def poll(self) -> tuple[tuple[list[str], list[str], list[str]], bool]: ...
    def take_invalid_blocks(self) -> list[int]: ...
    def metrics(self) -> dict[str, int]: ...
    def changes(self) -> dict[str, int] | None: ...
    def shutdown(self) -> None: ...
    def uncollected(self) -> tuple[list[str], list[str], list[str]]: ...

class BlockCopier:
    """Block memory before it is used: copies blocks the way objects travel, without a node."""

    def __init__(
        self,
        document: str,
        layers: str,
        num_blocks: int,
        memory: list[Any],
        device: SimDevice | None = None,
    ) -> None: ...
    def copy(self, group: int, source: Sequence[int], target: Sequence[int]) -> bytes: ...

class SimDevice:
    """A device under block memory that tests give, with the faults that they order."""

    def __init__(self, seed: int) -> None: ...
    def fail_fences(self, side: str, count: int) -> None: ...
    def owe_fences(self, side: str, count: int) -> None: ...
    def skip_fences(self, side: str, count: int) -> None: ...
    def fail_copies(self, count: int) -> None: ...
    def release(self) -> None: ...
    def fences(self, side: str) -> tuple[int, int]: ...

def weights_fingerprint(folder: str) -> str: ...
def metric_names() -> list[str]: ...
