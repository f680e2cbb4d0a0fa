"""What a writer asks of bookies, over connections that only note it, and what becomes of each answer."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from itertools import product
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.network.bookie_connection import ACKNOWLEDGED, Answer
from bookspark.client.network.ledger_requests import sync_report
from bookspark.client.writing.kept_frames import KeptFrame
from bookspark.client.writing.retries import Retries
from bookspark.client.writing.writer_requests import WriterRequests, _SentAdd
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Negative, Positive, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.ledger.transitions import IllegalEventError
from bookspark.protocol.writing.writer_events import BookieBack, ExplicitLacAnswered, PassedOver
from bookspark.protocol.writing.writer_state import State
from bookspark.wire.entry_batch import Entry, encode_entries
from bookspark.wire.frames import parse_frame
from bookspark.wire.header import Flag, Header, Kind
from tests.client.by_hand.noted import Noted
from tests.metadata.kit import ledger

POSITIVE, REFUSED, NONE = Positive(), Unknown(UnknownReason.IO_ERROR), Negative()
ASSIGNED = Assignment(3, 3, 2, 1)
KEY = b"k" * 16


class Kept(dict):
    """Frames that are kept, by their first entry."""


class Bench:
    """The requests of one ledger. Entries 1 and 5 begin frames that are kept."""

    def __init__(self):
        self.calls, self.behind, self.away = [], set(), []
        header = Header(Kind.ADD, 11, 1, 5, 6, 0)
        frame = encode_entries(header, [Entry(1, i, 0, 1, b"x", b"") for i in (5, 6)])
        self.kept = {1: KeptFrame(9, b"one", 3), 5: KeptFrame(11, frame, 2, header)}
        connections = Noted(
            self.calls,
            any_is_behind=lambda bookies: not self.behind.isdisjoint(bookies),
            away=lambda bookies: [b for b in bookies if b in self.away],
            next_request_id=lambda: 77,
        )
        kept = Kept(self.kept)
        kept.heard = lambda first: self.calls.append(("heard", first, self.steps()))
        self.requests = WriterRequests(
            ledger(1, master_key=KEY),
            ClientConfig(answer_timeout_seconds=7.0),
            connections,
            kept,
            lambda event: self.calls.append(("step", event)),
            SimpleNamespace(released=4),
        )
        self.requests._retries = Noted(self.calls, "retries", pauses={})
        self.kept = kept

    def steps(self):
        return sum(call[0] == "step" for call in self.calls)

    def sent(self):
        return [call for call in self.calls if call[0] == "send_to_all"]


@pytest.fixture
def bench():
    return Bench()


def add(*bookies, first=5, assignment=None):
    return act.SendAdd(bookies or ("b1", "b2"), first, first + 1, 0, assignment=assignment)


# -- adds on their way


@pytest.mark.parametrize(("held", "behind"), list(product([True, False], repeat=2)))
def test_an_add_goes_out_at_once_only_if_nothing_is_held_back_and_nobody_behind(bench, held, behind):
    """Adds come to a bookie in their order."""
    if held:
        bench.requests.held_back["b1"] = deque([add("b1", first=1)])
    if held or behind:
        bench.behind = {"b1"}
    bench.requests.send_add(add())
    expected = [["b2"]] if held or behind else [["b1", "b2"]]
    assert [list(call[1]) for call in bench.sent()] == expected
    assert [a.first for a in bench.requests.held_back.get("b1", ())] == [1] * held + [5] * (held or behind)
    assert "b2" not in bench.requests.held_back


def test_what_waits_for_one_bookie_does_not_overtake_although_it_has_caught_up(bench):
    bench.requests.held_back["b1"] = deque([add("b1", first=1)])
    bench.requests.send_add(add("b1"))
    assert [call[3] for call in bench.sent()] == [b"one", bench.kept[5].frame]
    assert bench.requests.held_back == {}


@pytest.mark.parametrize("behind", [True, False])
def test_what_is_held_back_is_sent_to_who_caught_up_and_dropped_if_it_is_released(bench, behind):
    bench.behind = {"b1"} if behind else set()
    bench.requests.held_back = {
        "b1": deque([add("b1", first=0), add("b1", first=5), add("b1", first=0)]),
        "b2": deque([add("b2", first=5)]),
    }
    bench.requests.send_held_back()
    assert [list(call[1]) for call in bench.sent()] == [["b2"]] if behind else [["b1"], ["b2"]]
    # That a bookie was not sent something is told once, and only of that one.
    assert [call for call in bench.calls if call[0] == "step"] == [("step", PassedOver("b1"))]
    left = bench.requests.held_back
    assert ({b: [a.first for a in adds] for b, adds in left.items()}) == ({"b1": [5, 0]} if behind else {})


def test_an_add_goes_to_all_as_it_is_kept_with_its_deadline(bench):
    before = time.monotonic()
    bench.requests.send_add(add(first=1))
    ((_, bookies, request_id, frame, request),) = bench.calls
    assert (list(bookies), request_id, frame) == (["b1", "b2"], 9, b"one")
    assert (request.first, request.last, request.assignment) == (1, 2, None)
    assert before + 7.0 <= request.deadline <= time.monotonic() + 7.0


def test_a_vd_ledgers_add_has_a_request_id_of_its_own_and_its_assignment(bench):
    bench.requests.send_add(add(assignment=ASSIGNED))
    ((_, _, request_id, frame, request),) = bench.calls
    header = parse_frame(memoryview(frame)).header
    assert (request_id, header.request_id, header.assignment()) == (77, 77, ASSIGNED)
    assert request.assignment == ASSIGNED


def test_a_bookie_that_is_away_is_sent_nothing_and_its_answer_is_why(bench):
    bench.away = ["b1"]
    bench.requests.send_add(add())
    tried, sent = bench.calls
    assert tried[:2] == ("try_again", "b1") and list(sent[1]) == ["b2"]
    bench.calls.clear()
    tried[2](REFUSED)
    assert bench.calls == [
        ("retries.refused", "b1", REFUSED),
        ("step", act.AddAnswered("b1", 5, 6, REFUSED)),
    ]


# -- answers to adds


@pytest.mark.parametrize("assignment", [None, ASSIGNED])
@pytest.mark.parametrize("answer", [ACKNOWLEDGED, Answer(Positive())])
def test_only_a_bare_ack_of_a_pd_ledger_goes_the_short_way(bench, assignment, answer):
    ways, sent = Noted(ways_ := []), None
    sent = _SentAdd(ways, add(assignment=assignment), 7.0)
    sent.tell("b1", answer)
    short = answer is ACKNOWLEDGED and assignment is None
    assert ways_ == [("add_acknowledged", "b1", 5, 6) if short else ("add_answered", "b1", sent, answer)]


def test_a_defect_in_the_handling_of_an_ack_is_logged_and_robs_nobody(caplog):
    _SentAdd(None, add(), 7.0).tell("b1", ACKNOWLEDGED)
    assert "handling a bookie's answer to an add failed" in caplog.text


@pytest.mark.parametrize("first", [4, 5])
@pytest.mark.parametrize("well", [True, False])
@pytest.mark.parametrize("paused", [True, False])
def test_an_ack_is_heard_unless_it_is_of_what_was_released_and_all_is_well(bench, first, well, paused):
    bench.requests.all_well = well
    bench.requests._retries.pauses = {"b1": 1.0} if paused else {}
    bench.requests.add_acknowledged("b1", first, 6)
    heard = first > 4 or not well
    # It is noted before the machine may release the frame.
    assert (
        bench.calls
        == [("retries.took", "b1")] * paused
        + [
            ("heard", first, 0),
            ("step", act.AddAnswered("b1", first, 6, POSITIVE)),
        ]
        * heard
    )


def answered(response, synced=None, **header):
    return Answer(response, None if synced is None else Header(Kind.ADD, 1, 1, last_add_synced=synced, **header))


REPORT = act.SyncReport(4, 8, ASSIGNED)


@pytest.mark.parametrize("assignment", [None, ASSIGNED])
@pytest.mark.parametrize("response", [POSITIVE, REFUSED, NONE])
@pytest.mark.parametrize("synced", [None, 4])
def test_an_answer_to_an_add_is_told_and_a_refusal_asked_again(bench, assignment, response, synced):
    sent = _SentAdd(bench.requests, add(assignment=assignment), 7.0)
    bench.requests.add_answered("b1", sent, answered(response, synced, incarnation=8))
    *before, (_, event) = bench.calls
    report = REPORT if assignment and response is POSITIVE and synced is not None else None
    told = response
    if assignment and response is POSITIVE and synced is None:
        told = event.response
        assert told.reason is UnknownReason.BAD_REQUEST and "does not tell what is synced" in told.detail
    assert event == act.AddAnswered("b1", 5, 6, told, report)
    if isinstance(told, Unknown):
        assert before == [("retries.refused", "b1", told)]
    else:
        assert sorted(before) == [("heard", 5, 0), ("retries.took", "b1")]
    assert bench.requests.all_well is isinstance(told, Positive)


def test_a_sync_report_is_of_the_assignment_that_was_sent():
    assert sync_report(answered(POSITIVE, 4, incarnation=8), ASSIGNED) == REPORT
    for answer, assignment in (
        (answered(POSITIVE, 4), None),
        (answered(POSITIVE), ASSIGNED),
        (answered(REFUSED, 4), ASSIGNED),
        (answered(NONE, 4), ASSIGNED),
    ):
        assert sync_report(answer, assignment) is None


# -- what is not believed


SYNCED = act.AddAnswered("b1", 5, 6, POSITIVE, REPORT)


@pytest.mark.parametrize("event", [SYNCED, act.SyncAnswered("b1", POSITIVE, REPORT)])
def test_a_report_that_the_machine_refuses_is_no_answer_and_the_bookie_is_asked_again(bench, event):
    told = bench.requests.not_believed(event, IllegalEventError(State.OPEN, event))
    assert told.response.reason is UnknownReason.BAD_REQUEST and told.synced is None and told.bookie == "b1"
    assert bench.calls == [("retries.refused", "b1", told.response)]


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (SYNCED, ZeroDivisionError()),
        (act.AddAnswered("b1", 5, 6, POSITIVE), IllegalEventError(State.OPEN, None)),
        (act.MetadataWritten(1), IllegalEventError(State.OPEN, None)),
        (act.MetadataWritten(1), ZeroDivisionError()),
    ],
)
def test_what_is_no_bookies_word_is_a_defect(bench, event, error):
    with pytest.raises(type(error)):
        bench.requests.not_believed(event, error)
    assert bench.calls == []


# -- bookies that are back, left or gone


def test_a_bookie_that_is_back_is_sent_all_by_the_machine_and_nothing_that_was_held_back(bench):
    bench.requests.held_back = {"b1": deque([1]), "b2": deque([1])}
    seen = []
    bench.requests._step = lambda event: seen.append((event, "b1" in bench.requests.held_back, list(bench.calls)))
    bench.requests.bookie_back("b1", 8)
    # A refusal that comes within the step is one after the bookie came back.
    assert seen == [(BookieBack("b1", 8), False, [("retries.took", "b1")])] and len(bench.calls) == 1
    assert list(bench.requests.held_back) == ["b2"]
    bench.requests.keep_only(("b1", "b3"))
    assert bench.requests.held_back == {}
    bench.requests.held_back = {"b1": deque([1]), "b2": deque([1])}
    bench.requests.keep_only(("b1", "b3"))
    assert list(bench.requests.held_back) == ["b1"]
    bench.requests.clear()
    assert bench.requests.held_back == {}


def test_a_bookie_that_refused_is_asked_again_as_one_that_is_not_new():
    steps = []
    requests = WriterRequests(ledger(1), ClientConfig(), None, {}, steps.append, None)
    requests._retries._again("b1")
    assert steps == [BookieBack("b1", 0)] and requests.all_well


def test_what_is_refused_is_noted_before_it_is_asked_again():
    """A refusal that comes within the call would be taken for the first one."""
    loop = SimpleNamespace()
    retries = Retries(lambda bookie: seen.append(bookie in retries._waiting))
    seen = []

    async def refuse():
        asyncio.get_running_loop().call_later = None

    def call_later(pause, function, bookie):
        seen.append((pause, dict(retries.pauses)))
        function(bookie)

    loop.call_later = call_later
    original, asyncio.get_running_loop = asyncio.get_running_loop, lambda: loop
    try:
        retries.refused("b1", Unknown(UnknownReason.IO_ERROR))
    finally:
        asyncio.get_running_loop = original
    assert seen == [(0.1, {"b1": 0.2}), False]


# -- syncs and explicit LACs


@pytest.mark.parametrize("response", [POSITIVE, REFUSED])
def test_a_sync_is_asked_of_each_bookie_and_its_report_told(bench, response):
    bench.requests.send_sync(act.SendSync(("b1", "b2"), ASSIGNED))
    ((_, bookies, request_id, frame, request),) = bench.calls
    header = parse_frame(memoryview(frame)).header
    assert (bookies, request_id) == (("b1", "b2"), 77)
    assert (header.kind, header.ledger_id, header.master_key, header.assignment()) == (Kind.SYNC, 1, KEY, ASSIGNED)
    assert request.timeout_seconds == 7.0
    bench.calls.clear()
    request.answered("b1", answered(response, 4, incarnation=8))
    event = act.SyncAnswered("b1", response, REPORT if response is POSITIVE else None)
    assert sorted(bench.calls, key=str) == [("retries.refused", "b1", response), ("step", event)]


@pytest.mark.parametrize("told", [True, False])
def test_an_explicit_lac_goes_to_each_bookie_and_who_waits_is_told_after_the_machine(bench, told):
    answered = (lambda bookie, answer: bench.calls.append(("told", bookie, answer))) if told else None
    bench.requests.send_lac(act.SendLac(("b1",), 4, 3), answered)
    ((_, bookies, _, frame, request),) = bench.calls
    header = parse_frame(memoryview(frame)).header
    assert (header.kind, header.last_add_confirmed, header.last_add_fully_replicated) == (Kind.WRITE_LAC, 4, 3)
    assert (bookies, header.ledger_id, header.master_key, header.flags) == (("b1",), 1, KEY, int(Flag.NONE))
    bench.calls.clear()
    before = time.monotonic()
    request.answered("b1", Answer(REFUSED))
    (_, event), *rest = bench.calls
    assert event == ExplicitLacAnswered("b1", REFUSED, event.now) and before <= event.now <= time.monotonic()
    assert rest == [("told", "b1", Answer(REFUSED))] * told
