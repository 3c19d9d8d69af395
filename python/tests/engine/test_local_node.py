"""Zero configuration: with no nodes given, engines start one local node and share it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import TOKENS
from harness import Engine, connector, prompt


def nodes_in(folder: Path) -> list[int]:
    """The processes whose command line names the folder: its nodes."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = entry.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/" in command and "\0node\0" in command:
            found.append(int(entry.parent.name))
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder for the local node, which is ended afterwards."""
    folder = tmp_path / "local"
    yield folder
    for pid in nodes_in(folder):
        os.kill(pid, signal.SIGTERM)


def test_local_node_is_started_on_demand_and_outlives_the_engine(
    launch: Callable[..., Engine], folder: Path
) -> None:
    use = connector(local_dir=str(folder), local_ram="64MiB")
    assert not nodes_in(folder)
    with launch("llama", "local-first", use) as engine:
        engine.start()
        started = nodes_in(folder)
        assert len(started) == 1
        # At once: an engine that serves has a node that takes what it saves.
        tokens = prompt(3 * engine.block_tokens + 1, "local")
        first = engine.generate([tokens], max_tokens=TOKENS)
        saves = engine.settle()
        assert saves["vllm:tessera_saves_refused"] == 0
    log = engine.log.read_text()
    assert f"nodes unix:{folder}" in log, "the engine says where its node is"
    with launch("llama", "local-second", use) as engine:
        second = engine.generate([tokens], max_tokens=TOKENS)
        assert nodes_in(folder) == started
    assert second.external == 3 * engine.block_tokens
    assert second.tokens == first.tokens
