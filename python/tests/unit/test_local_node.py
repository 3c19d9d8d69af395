"""Without configured nodes an engine starts and shares the local node of its user."""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import as_json, document, group

from tessera_kv import _native
from tessera_kv.command import BINARY

LIMIT_S = 60.0


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    run = tmp_path / "run"
    yield run
    for pid in listeners(run):
        os.kill(pid, signal.SIGKILL)


def scheduler(folder: Path) -> _native.Scheduler:
    options = {"local_dir": str(folder), "local_ram": "32MiB", "local_idle_exit_s": 600}
    return _native.Scheduler(as_json(document([group()], **options)), str(BINARY))


def listeners(folder: Path) -> list[int]:
    """Processes of nodes in this folder, by their command lines."""
    found = []
    for process in Path("/proc").iterdir():
        try:
            command = (process / "cmdline").read_bytes()
            zombie = (process / "stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
        except OSError:
            continue
        if command.startswith(bytes(BINARY)) and bytes(folder) in command and not zombie:
            found.append(int(process.name))
    return found


def wait_until_serving(folder: Path) -> None:
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        for path in folder.glob("*.sock"):
            with socket.socket(socket.AF_UNIX) as probe:
                if probe.connect_ex(str(path)) == 0:
                    return
        time.sleep(0.02)
    raise AssertionError("no node is serving")


def test_engines_share_one_node_that_outlives_them_and_is_replaced(folder: Path) -> None:
    first, second = scheduler(folder), scheduler(folder)
    wait_until_serving(folder)
    (pid,) = listeners(folder)
    first.shutdown()
    os.kill(pid, signal.SIGKILL)
    end = time.monotonic() + LIMIT_S
    while listeners(folder) in ([], [pid]):
        assert time.monotonic() < end, "the node was not replaced"
        time.sleep(0.02)
    wait_until_serving(folder)
    second.shutdown()
    assert len(listeners(folder)) == 1
    assert folder.stat().st_mode & 0o777 == 0o700


def test_missing_binary_is_refused_with_the_way_out(tmp_path: Path) -> None:
    text = as_json(document([group()], local_dir=str(tmp_path)))
    with pytest.raises(_native.ResourceError, match="reinstall tessera-kv"):
        _native.Scheduler(text, str(tmp_path / "tessera"))
