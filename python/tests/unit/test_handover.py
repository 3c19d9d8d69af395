"""What a request says of prefill and decode, and what it is answered."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from vllm.v1.request import RequestStatus

from tessera_kv.vllm import handover
from tessera_kv.vllm import scheduler as scheduler_side
from tessera_kv.vllm.connector import TesseraConnector
from tessera_kv.vllm.data import PeerPlace

PLACES = [PeerPlace(1, "0b", "10.0.0.1:4001"), PeerPlace(0, "0a", "10.0.0.1:4000")]


def request(tokens: list[int] | None, params: dict[str, Any] | None = None, **more: Any) -> Any:
    fields: dict[str, Any] = {
        "request_id": "r",
        "prompt_token_ids": tokens,
        "_all_token_ids": list(tokens or ()),
        "num_prompt_tokens": len(tokens or ()),
        "num_computed_tokens": len(tokens or ()),
        "num_output_tokens": 0,
        "max_tokens": 16,
        "block_hashes": [b"one"],
        "cache_salt": None,
        "lora_request": None,
        "mm_features": None,
        "skip_reading_prefix_cache": False,
        "kv_transfer_params": params,
        "status": RequestStatus.FINISHED_LENGTH_CAPPED,
    }
    return SimpleNamespace(**{**fields, **more})


DECODE = {"do_remote_decode": True}


class FakeNative:
    """A scheduler that offers everything and refuses what it is told to."""

    namespace = "00"
    nodes = ()
    left_to_decode = 1
    is_sending = False

    def __init__(self, *_: object) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.refusal: str | None = None

    def meet(self, *arguments: Any) -> None:
        self.calls.append(("meet", *arguments))

    def admit(self, *arguments: Any) -> str | None:
        self.calls.append(("admit", *arguments))
        return self.refusal

    def finished(self, *arguments: Any) -> str | None:
        self.calls.append(("finished", *arguments))
        return None if arguments[1] is None else "sealed"

    def promise(self, *arguments: Any) -> str | None:
        self.calls.append(("promise", *arguments))
        return self.refusal

    def expect(self, *arguments: Any) -> str | None:
        self.calls.append(("expect", *arguments))
        return self.refusal

    def computed(self, *arguments: Any) -> bool:
        self.calls.append(("computed", *arguments))
        return arguments[1] is not None

    def sent(self, *arguments: Any) -> None:
        self.calls.append(("sent", *arguments))


@pytest.fixture
def side(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(scheduler_side._native, "Scheduler", FakeNative)
    side = scheduler_side.TesseraScheduler({"groups": [0]}, "", "engine-1")
    side.meet(PLACES)
    assert side._native.calls == [
        ("meet", [(0, "0a", "10.0.0.1:4000"), (1, "0b", "10.0.0.1:4001")])
    ]
    side._native.calls.clear()
    return side


def test_everything_that_blocks_depend_on_identifies_a_prompt() -> None:
    plain = handover.identity(request([1, 2]))
    assert plain is not None
    assert plain[:2] == ([1, 2], [b"one"])
    image = SimpleNamespace(identifier="image", mm_position="0+2")
    others = [
        request([1, 2], cache_salt="a"),
        request([1, 2], lora_request=SimpleNamespace(lora_name="l")),
        request([1, 2], mm_features=[image]),
    ]
    assert all(handover.identity(other) != plain for other in others)
    assert handover.identity(request(None)) is None


def test_last_token_of_a_prompt_is_left_to_decode_once(side: Any) -> None:
    prompt = [1, 2, 3]
    wanted = request(prompt, DECODE)
    side.arrived(wanted)
    assert (wanted.prompt_token_ids, wanted._all_token_ids) == ([1, 2], [1, 2])
    assert (wanted.num_prompt_tokens, wanted.max_tokens) == (2, 1)
    assert prompt == [1, 2, 3], "the caller's own list stays"
    for untouched in (
        request([1], DECODE),
        request([1, 2], None),
        request([1, 2], DECODE, skip_reading_prefix_cache=True),
        request([1, 2], DECODE, num_output_tokens=1),
        request(None, DECODE),
    ):
        before = untouched.prompt_token_ids
        side.arrived(untouched)
        assert untouched.prompt_token_ids == before
    assert side._native.calls == []


def test_ticket_is_passed_on_with_its_prompt_and_a_refusal_is_said(
    side: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[Any] = []
    monkeypatch.setattr(scheduler_side.logger, "warning", lambda *text: said.append(text))
    params = {"do_remote_prefill": True, handover.TICKET: "sealed"}
    side.arrived(request([1, 2], params))
    assert side._native.calls == [("admit", "r", "sealed", handover.identity(request([1, 2])))]
    assert said == []
    side._native.refusal = "it is old"
    side.arrived(request([1, 2], params))
    assert said[0][1:] == ("r", "it is old")
    side._native.calls.clear()
    for none in (
        None,
        {},
        {**params, "do_remote_prefill": False},
        {**params, handover.TICKET: 7},
    ):
        side.arrived(request([1, 2], none))
    side.arrived(request(None, params))
    assert side._native.calls == []


def test_finished_prompt_is_answered_in_the_routers_words(side: Any) -> None:
    done = request([1, 2, 3], DECODE)
    keep, answer = side.finished(done, ([4, 5], [0, 6]))
    assert keep
    assert answer == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_engine_id": "engine-1",
        "remote_request_id": "r",
        "remote_block_ids": [[4, 5], [0, 6]],
        "remote_host": "10.0.0.1",
        "remote_port": 4000,
        "tp_size": 2,
        "tessera_ticket": "sealed",
    }
    assert side._native.calls == [("finished", "r", (handover.identity(done), 3, ([4, 5], [0, 6])))]


def test_samples_of_one_prompt_offer_once_and_are_answered_alike(side: Any) -> None:
    keep, first = side.finished(request([1, 2], DECODE, request_id="1_cmpl-a"), ([4],))
    assert keep
    side._native.calls.clear()
    second = request([1, 2], DECODE, request_id="0_cmpl-a")
    assert side.finished(second, ([4],)) == (False, first)
    assert side._native.calls == [("finished", "0_cmpl-a", None)], "its blocks are not lent"
    for other in ("0_cmpl-b", "cmpl-a", "cmpl_a", "x_cmpl-a", "0_"):
        keep, answer = side.finished(request([1, 2], DECODE, request_id=other), ([4],))
        assert keep
        assert answer["remote_request_id"] == other
    aborted = request([1, 2], DECODE, request_id="2_cmpl-a", status=RequestStatus.FINISHED_ABORTED)
    assert side.finished(aborted, ([4],)) == (False, None)


def test_name_that_comes_again_is_another_prompts(side: Any) -> None:
    side.finished(request([1, 2], DECODE, request_id="0_again"), ([4],))
    side.finished(request([1, 2], DECODE, request_id="1_again"), ([4],))
    for index in "10":
        other = request([5, 6, 7], DECODE, request_id=f"{index}_again")
        keep, answer = side.finished(other, ([4],))
        assert keep == (index == "1"), "the first of the second time"
        assert answer["remote_request_id"] == "1_again"


def test_answers_of_samples_are_remembered_within_a_limit(side: Any) -> None:
    for number in range(handover.SAMPLES_KEPT + 1):
        side.finished(request([1], DECODE, request_id=f"0_{number}"), ([4],))
    assert side.finished(request([1], DECODE, request_id="1_1"), ([4],))[0] is False
    assert side.finished(request([1], DECODE, request_id="1_0"), ([4],))[0] is True, "forgotten"


def test_request_that_nobody_goes_on_with_keeps_nothing(side: Any) -> None:
    for done in (
        request([1], None),
        request([1], {"do_remote_prefill": True}),
        request([1], DECODE, status=RequestStatus.FINISHED_ABORTED),
        request(None, DECODE),
    ):
        assert side.finished(done, ([4],)) == (False, None)
    side.meet([])
    assert side.finished(request([1], DECODE), ([4],)) == (False, None), "nobody listens"


WRITTEN = {"do_remote_decode": True, "tessera_pass": "pass"}


def test_request_with_a_pass_is_promised_by_prefill_and_kept_without_an_answer(side: Any) -> None:
    it = request([1, 2, 3], WRITTEN)
    side.arrived(it)
    assert it.prompt_token_ids == [1, 2], "its last token is left to decode"
    assert side.finished(it, ([7],)) == (True, None)
    identity = handover.identity(it)
    assert side._native.calls == [
        ("promise", "r", "pass"),
        ("computed", "r", (identity, 3, ([7],))),
    ]


def test_request_with_a_pass_that_did_not_end_well_is_kept_for_nobody(side: Any) -> None:
    it = request([1, 2, 3], WRITTEN)
    side.arrived(it)
    it.status = RequestStatus.FINISHED_ABORTED
    assert side.finished(it, ([7],)) == (False, None)
    assert side._native.calls[-1] == ("computed", "r", None)


def test_request_whose_pass_is_refused_is_offered_to_nobody(side: Any) -> None:
    it = request([1, 2, 3], WRITTEN)
    side._native.refusal = "expired"
    side.arrived(it)
    assert side.finished(it, ([7],)) == (False, None)
    assert side._native.calls[-1] == ("finished", "r", None)


def test_request_with_a_pass_is_expected_by_decode(side: Any) -> None:
    it = request([1, 2, 3], {"do_remote_prefill": True, "tessera_pass": "pass"})
    side.arrived(it)
    assert it.prompt_token_ids == [1, 2, 3]
    assert side._native.calls == [("expect", "r", "pass", handover.identity(it))]


def test_what_was_sent_is_passed_on(side: Any) -> None:
    nothing = {"finished_recving": None, "failed_recving": None, "invalid_block_ids": set()}
    side.worker_output(SimpleNamespace(finished_sending={"r"}, **nothing))
    side.worker_output(SimpleNamespace(finished_sending=None, **nothing))
    assert side._native.calls == [("sent", ["r"])]


def test_engine_goes_on_while_a_prompt_is_kept_to_be_written(side: Any) -> None:
    connector = object.__new__(TesseraConnector)
    connector._scheduler = side
    assert not connector.has_pending_push_work()
    side._native.is_sending = True
    assert connector.has_pending_push_work()
