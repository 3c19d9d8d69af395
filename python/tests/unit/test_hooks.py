"""Translation of the hooks, registration with the engine, and metrics that never raise."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from importlib.metadata import entry_points
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import SupportsHMA

from tessera_kv import _native
from tessera_kv.command import BINARY
from tessera_kv.vllm import NAME, metrics, register
from tessera_kv.vllm import scheduler as scheduler_side
from tessera_kv.vllm.connector import TesseraConnector, plan_of
from tessera_kv.vllm.data import TesseraMetadata
from tessera_kv.vllm.worker import TesseraWorker


class FakeNative:
    """Writes down what it is asked."""

    namespace = "00"
    nodes = ("127.0.0.1:1",)

    def __init__(self, *_: object) -> None:
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.answers = {"step": b"plan", "lookup": (None, False), "finished": None}

    def __getattr__(self, name: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.calls.append((name, arguments))
            return self.answers.get(name)

        return call

    @property
    def names(self) -> list[str]:
        """What was asked since the last reading."""
        names = [name for name, _ in self.calls]
        self.calls.clear()
        return names


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(scheduler_side._native, "Scheduler", FakeNative)
    return scheduler_side.TesseraScheduler({"groups": [0, 1]}, "")


def request(name: str, hashes: int) -> Any:
    return SimpleNamespace(
        request_id=name,
        num_tokens=40,
        block_hashes=[bytes([index]) for index in range(hashes)],
        skip_reading_prefix_cache=False,
    )


def output(
    new: dict[str, tuple[int, Any]] | None = None,
    known: dict[str, tuple[int, Any]] | None = None,
    tokens: dict[str, int] | None = None,
    **more: Any,
) -> Any:
    """A scheduler's output: for each request the computed tokens and the blocks."""
    new, known = new or {}, known or {}
    fields = {
        "scheduled_new_reqs": [
            SimpleNamespace(req_id=name, num_computed_tokens=computed, block_ids=blocks)
            for name, (computed, blocks) in new.items()
        ],
        "scheduled_cached_reqs": SimpleNamespace(
            req_ids=list(known),
            new_block_ids=[blocks for _, blocks in known.values()],
            num_computed_tokens=[computed for computed, _ in known.values()],
            resumed_req_ids=more.pop("resumed", set()),
        ),
        "num_scheduled_tokens": tokens or {},
        "scheduled_spec_decode_tokens": {},
        "preempted_req_ids": None,
        "finished_req_ids": set(),
    }
    return SimpleNamespace(**{**fields, **more})


def last_step(side: Any) -> Any:
    name, arguments = side._native.calls[-1]
    assert name == "step"
    return arguments


NOBODY = ([], [], [], [], set())


def test_each_hash_is_passed_on_once(side: Any) -> None:
    prompt = request("a", 2)
    side.lookup(prompt, 0)
    side.step(output(new={"a": (0, ([1], [2]))}, tokens={"a": 32}))
    whole = [("a", 0, 32, ([1], [2]), [b"\0", b"\1"])]
    assert last_step(side) == (whole, NOBODY, {}, [], [])
    side.step(output(known={"a": (32, None)}, tokens={"a": 1}))
    assert last_step(side) == ([], (["a"], [None], [32], [1], set()), {}, [], [])
    prompt.block_hashes.append(b"\2")
    side.step(output(known={"a": (33, ([5], [6]))}, tokens={"a": 1}))
    known = (["a"], [([5], [6])], [33], [1], set())
    assert last_step(side) == ([], known, {"a": (2, [b"\2"])}, [], [])


def test_resumed_request_is_sent_whole(side: Any) -> None:
    side.allocated(request("a", 2), SimpleNamespace(get_block_ids=lambda: ([1], [2])), 0)
    side.step(output(new={"a": (0, ([1], [2]))}, tokens={"a": 32}))
    side.step(output(known={"a": (16, ([7], [8]))}, tokens={"a": 5}, resumed={"a"}))
    known = (["a"], [([7], [8])], [16], [5], {"a"})
    assert last_step(side) == ([], known, {"a": (0, [b"\0", b"\1"])}, [], [])
    side.step(output(new={"a": (0, ([3], [4]))}, tokens={"a": 32}))
    assert last_step(side)[0] == [("a", 0, 32, ([3], [4]), [b"\0", b"\1"])]


def test_drafts_are_not_counted_and_endings_are_passed_on(side: Any) -> None:
    side.lookup(request("a", 1), 0)
    drafts = {"a": [9, 9, 9]}
    step = output(
        new={"a": (0, ([1], [2]))},
        tokens={"a": 20},
        scheduled_spec_decode_tokens=drafts,
        preempted_req_ids={"p"},
        finished_req_ids={"a"},
    )
    assert side.step(step).plan == b"plan"
    new, *_, preempted, finished = last_step(side)
    assert new[0][2] == 17
    assert (preempted, finished) == (["p"], ["a"])


def test_name_that_comes_again_is_another_request(side: Any) -> None:
    first, second = request("a", 1), request("a", 2)
    side.lookup(first, 0)
    side.step(output(new={"a": (0, ([1], [2]))}, tokens={"a": 20}))
    side.finished(first, ())
    assert not side._requests
    assert not side._hashes_sent
    # The second is scheduled in the very step that tells of the first one's end.
    side.allocated(second, SimpleNamespace(get_block_ids=lambda: ([3], [4])), 0)
    side.step(output(new={"a": (0, ([3], [4]))}, tokens={"a": 32}, finished_req_ids={"a"}))
    assert last_step(side)[0] == [("a", 0, 32, ([3], [4]), [b"\0", b"\1"])]
    side.step(output(known={"a": (32, None)}, tokens={"a": 1}))
    # And an end that comes late is the first one's.
    side.finished(first, ())
    side.step(output(known={"a": (33, None)}, tokens={"a": 1}))
    side.finished(second, ())
    assert not side._requests


def test_request_that_must_not_read_the_cache_is_looked_up_without(side: Any) -> None:
    prompt = request("a", 1)
    prompt.skip_reading_prefix_cache = True
    assert side.lookup(prompt, 16) == (None, False)
    assert side._native.calls[-1] == ("lookup", ("a", 40, 16, [b"\0"], False))


def receives(**more: Any) -> Any:
    """What workers report that have sent nothing."""
    return SimpleNamespace(finished_sending=None, **more)


def test_worker_output_of_any_shape_is_passed_on(side: Any) -> None:
    nothing = receives(finished_recving=None, failed_recving=set(), invalid_block_ids=set())
    side.worker_output(nothing)
    assert not side._native.calls, "nothing is not passed on"
    some = receives(finished_recving={"a"}, failed_recving={"a"}, invalid_block_ids={3})
    side.worker_output(some)
    assert side._native.calls[-1] == ("worker_output", (["a"], ["a"], [3]))
    assert some.finished_recving == {"a"}, "the engine's sets are not touched"


def test_counters_are_read_after_whatever_may_change_them(side: Any) -> None:
    prompt = request("a", 1)
    nothing = receives(finished_recving=None, failed_recving=set(), invalid_block_ids=set())
    some = receives(finished_recving={"a"}, failed_recving=set(), invalid_block_ids=set())
    blocks = SimpleNamespace(get_block_ids=lambda: ([1], [2]))

    def is_read(act: Callable[[], Any]) -> bool:
        act()
        side._native.calls.clear()
        side.changes()
        return side._native.names == ["changes"]

    assert is_read(lambda: None), "what the start has counted"
    assert is_read(lambda: side.lookup(prompt, 0))
    assert is_read(lambda: side.allocated(prompt, blocks, 0))
    assert is_read(lambda: side.step(output())), "a plan"
    assert is_read(lambda: side.worker_output(some))
    side._native.answers["step"] = None
    assert not is_read(lambda: side.step(output()))
    assert not is_read(lambda: side.worker_output(nothing))
    assert is_read(lambda: side.finished(prompt, ()))


@pytest.fixture
def worker() -> Any:
    worker = TesseraWorker({}, None, "", self_test=False)
    worker._native = FakeNative()
    return worker


def run_step(worker: Any, plan: bytes | None, idle: bool) -> list[str]:
    """What one step asks of the native part, which is `idle` or not when it is polled."""
    worker._native.answers["poll"] = (([], [], []), idle)
    metadata = TesseraMetadata(plan)
    worker.before_step(metadata)
    worker.begin_step(metadata)
    worker.end_step(metadata)
    worker.results()
    worker.invalid_blocks()
    worker.changes()
    return worker._native.names


def test_worker_is_asked_from_a_plan_until_it_is_idle(worker: Any) -> None:
    step, collect = (
        ["preempt", "begin_step", "end_step"],
        ["poll", "take_invalid_blocks", "changes"],
    )
    assert run_step(worker, None, idle=True) == collect, "what the start has counted"
    assert run_step(worker, None, idle=True) == []
    assert run_step(worker, b"plan", idle=False) == step + collect
    assert run_step(worker, None, idle=False) == collect
    assert run_step(worker, None, idle=True) == collect
    assert run_step(worker, None, idle=True) == []


def test_news_are_collected_whatever_the_order_of_the_hooks(worker: Any) -> None:
    run_step(worker, b"plan", idle=False)
    worker._native.answers["poll"] = (([], [], []), True)
    for _ in range(2):
        worker.changes()
        worker.invalid_blocks()
        worker.results()
    last = "the pass after the poll that found it idle"
    collected = ["changes", "take_invalid_blocks"]
    assert worker._native.names == [*collected, "poll", *collected], last


def test_connector_is_found_by_its_name_alone() -> None:
    (plugin,) = [it for it in entry_points(group="vllm.general_plugins") if it.name == "tessera"]
    plugin.load()()
    register()
    assert KVConnectorFactory.get_connector_class_by_name(NAME) is TesseraConnector
    assert issubclass(TesseraConnector, SupportsHMA)
    assert not TesseraConnector.__abstractmethods__


def test_metadata_of_another_connector_is_refused() -> None:
    with pytest.raises(TypeError, match="another connector"):
        plan_of(object())  # type: ignore[arg-type]


def test_command_is_the_packed_binary() -> None:
    answer = subprocess.run([str(BINARY), "--version"], capture_output=True, text=True, check=True)
    assert answer.stdout == f"tessera {_native.__version__}\n"


def test_changes_are_reported_and_reading_them_never_raises() -> None:
    changes = iter([{"a": 1}, None])
    source = SimpleNamespace(changes=lambda: next(changes))
    first = metrics.read(source)
    assert first is not None
    assert first.data == {"a": 1}
    assert metrics.read(source) is None
    assert metrics.read(source) is None, "it raised StopIteration"
    assert metrics.read(None) is None


def test_stats_of_ranks_and_intervals_add_up() -> None:
    stats = TesseraConnector.build_kv_connector_stats({"lookups": 2})
    stats.aggregate(metrics.TesseraStats(data={"lookups": 1, "bytes_saved": 5}))
    assert stats.reduce() == {"lookups": 3, "bytes_saved": 5}
    stats.reset()
    assert stats.is_empty()


def test_prometheus_shows_every_value_and_never_raises() -> None:
    registry = CollectorRegistry()

    def of(kind: Any) -> Any:
        return lambda **arguments: kind(registry=registry, **arguments)

    kinds = {kind: of(kind) for kind in (Counter, Gauge, Histogram)}
    config = SimpleNamespace(kv_transfer_config=None)
    shown = TesseraConnector.build_prom_metrics(config, kinds, ["engine"], {0: ["0"]})
    shown.observe({"bytes_saved": 7, "staging_bytes_used": 9})
    shown.observe({"staging_bytes_used": -4, "a name of a later version": 1}, 0)
    shown.observe({"bytes_saved": 1}, 5)

    def value(name: str) -> float | None:
        return registry.get_sample_value(name, {"engine": "0"})

    assert value("vllm:tessera_bytes_saved_total") == 7
    assert value("vllm:tessera_staging_bytes_used") == 5
    for name in _native.metric_names():
        suffix = "" if name in metrics.GAUGES else "_total"
        assert value(f"vllm:tessera_{name}{suffix}") is not None
