"""Fixtures of the engine tests: programs, models, one node, and the engines of each model class.

Starting an engine takes most of the time, so the tests of one model share three of them: one
without a connector, one that fills the node and exits (`cold`), one that answers from it (`warm`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from build import DEFAULT_CACHE, ensure
from harness import Engine, Faults, Node, Nursery, Run, connector, prompt

pytest.register_assert_rewrite("loads")

ROOT = Path(__file__).parents[3]
CLASSES = ("llama", "gemma3", "gpt_oss", "qwen3_next")
CONTROLS = 4
TOKENS = 16
ENGINES = ("served", "pair", "both", "storm", "shapes", "loads", "reference", "family")
"""Fixtures whose engines many tests share."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Function]) -> None:
    """Tests that share engines run in one worker, whatever the number of workers."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        shared = [name for name in ENGINES if name in item.fixturenames]
        place = "" if "served" in shared else item.path.stem
        which = [str(parameters.indices.get(name)) for name in shared] if parameters else []
        item.add_marker(pytest.mark.xdist_group("-".join([place, *shared, *which])))


@pytest.fixture(scope="session")
def binary() -> Path:
    """The `tessera` program, with `tessera-faults` beside it."""
    return Path(os.environ.get("TESSERA_BINARY", ROOT / "target" / "release" / "tessera"))


@pytest.fixture(scope="session")
def model() -> Callable[[str], Path]:
    """The folder of a model by its name."""
    cache = Path(os.environ.get("TESSERA_TEST_MODELS", DEFAULT_CACHE))
    return lambda name: ensure(name, cache)


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where every process of the session writes its log."""
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="session")
def launch(model: Callable[[str], Path], logs: Path) -> Iterator[Callable[..., Engine]]:
    """Starts an engine: `launch(model, name of the log, connector, arguments of the engine)`."""
    with Nursery(logs / "nursery.log", [Path(__file__).parent]) as nursery:

        def start(
            name: str,
            log: str,
            connector: dict[str, Any] | None = None,
            engine: dict[str, Any] | None = None,
        ) -> Engine:
            return Engine(model(name), logs / f"{log}.log", connector, engine, nursery)

        yield start


@pytest.fixture(scope="session")
def node(binary: Path, logs: Path) -> Iterator[Node]:
    """The node that all model classes share, so that any mix-up between them would show."""
    with Node(binary, logs / "node.log", ram="512MiB") as started:
        yield started


@dataclass
class Prompts:
    """The prompts of a model, whose lengths follow from its chunk."""

    chunk: int

    @property
    def alone(self) -> dict[str, list[int]]:
        """Prompts that are served one by one, by what they are for."""
        shared = prompt(2 * self.chunk, "shared")
        return {
            "chunk-1": prompt(self.chunk - 1, "chunk-1"),
            "chunk": prompt(self.chunk, "chunk"),
            "chunk+1": prompt(self.chunk + 1, "chunk+1"),
            "several": prompt(3 * self.chunk + 17, "several"),
            "several exactly": prompt(3 * self.chunk, "several exactly"),
            "first of a prefix": shared + prompt(self.chunk // 2, "tail 1"),
            "second of a prefix": shared + prompt(self.chunk // 3, "tail 2"),
        }

    @property
    def together(self) -> list[list[int]]:
        """Sixteen prompts of half a chunk to four chunks, served at once."""
        lengths = [self.chunk * (2 + 7 * index % 15) // 4 + index for index in range(16)]
        return [prompt(length, f"together {index}") for index, length in enumerate(lengths)]

    @property
    def controls(self) -> list[list[int]]:
        """One chunk and a half: every object of the chunk is needed by the load."""
        length = self.chunk * 3 // 2
        return [prompt(length, f"control {index}") for index in range(CONTROLS)]

    def hit(self, tokens: list[int]) -> int:
        """The external hit of a prompt that is cached as far as it can be."""
        return (len(tokens) - 1) // self.chunk * self.chunk


@dataclass
class Served:
    """What one engine answered."""

    alone: dict[str, Run] = field(default_factory=dict)
    together: Run | None = None
    controls: list[Run] = field(default_factory=list)

    def tokens(self) -> dict[str, Any]:
        assert self.together is not None
        return {
            **{name: run.tokens for name, run in self.alone.items()},
            "together": self.together.tokens,
        }


@dataclass
class ModelClass:
    """A model class served without the connector, cold and warm; the warm engine still runs."""

    name: str
    prompts: Prompts
    off: Served
    cold: Served
    warm: Served
    engine: Engine
    node: Node

    @property
    def recurrent(self) -> bool:
        return self.name == "qwen3_next"


def serve(engine: Engine, prompts: Prompts, settle: bool = False) -> Served:
    """Serves all prompts; the engine's own cache is emptied between them, so that every hit is the
    connector's."""
    served = Served()
    for name, tokens in prompts.alone.items():
        served.alone[name] = engine.generate([tokens], max_tokens=TOKENS)
        engine.reset()
        if settle:
            engine.settle()
    served.together = engine.generate(prompts.together, max_tokens=TOKENS)
    engine.reset()
    return served


@pytest.fixture(scope="session", params=CLASSES)
def served(
    request: pytest.FixtureRequest,
    launch: Callable[..., Engine],
    binary: Path,
    logs: Path,
    node: Node,
) -> Iterator[ModelClass]:
    """One model class after the other."""
    name: str = request.param
    with launch(name, f"{name}-off") as engine:
        prompts = Prompts(engine.start().block_tokens)
        off = serve(engine, prompts)
        off.controls = engine.each(prompts.controls, max_tokens=TOKENS)
    with (
        Faults(binary, logs / f"{name}-faults.log", node) as faults,
        launch(name, f"{name}-cold", connector(faults.address)) as engine,
    ):
        cold = serve(engine, prompts, settle=True)
        for tokens in prompts.controls:
            engine.settle()
            faults.order("damage")
            cold.controls.append(engine.generate([tokens], max_tokens=TOKENS))
            faults.expect("damage")
        engine.settle()
    with launch(name, f"{name}-warm", connector(node.address)) as engine:
        warm = serve(engine, prompts)
        warm.controls = engine.each(prompts.controls, max_tokens=TOKENS)
        engine.reset()
        yield ModelClass(name, prompts, off, cold, warm, engine, node)
