"""One connection to a bookie over a transport that only notes: its bounds, its deadlines, and what each answer becomes."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.network import bookie_connection, io_loop
from bookspark.client.network.bookie_connection import ACKNOWLEDGED, Answer, BookieConnection, Question, Request
from bookspark.client.network.io_loop import DeadlineTimer
from bookspark.client.network.traffic import ClientTraffic
from bookspark.protocol.ledger.responses import Negative, Positive, Unknown, UnknownReason
from bookspark.wire.chunks import ChunkPool
from bookspark.wire.entry_batch import Entry, encode_entries
from bookspark.wire.frames import control_frame
from bookspark.wire.header import Flag, Header, Kind, Status, WireError
from bookspark.wire.messages import Acks

MAX = 1 << 20
CONFIG = ClientConfig(
    bookie_bytes_queued_max=MAX, frame_bytes=1024, bookie_stall_seconds=2.0, answer_timeout_seconds=5.0
)


class Timer:
    """A deadline in the test's hands."""

    def __init__(self, seconds, function):
        self.seconds, self.function, self.cancelled = seconds, function, False

    def cancel(self):
        self.cancelled = True


class Bench:
    """A connection at a time that only the test moves. ``queued``: what the transport says that it has not sent."""

    def __init__(self, monkeypatch):
        self.now, self.queued, self.notes, self.timers, self.soon = 100.0, 0, [], [], []
        self.answers, self.limits = [], []
        monkeypatch.setattr(bookie_connection, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(bookie_connection, "DeadlineTimer", self.timer)
        monkeypatch.setattr(
            asyncio, "get_running_loop", lambda: SimpleNamespace(call_soon=lambda call: self.soon.append(call))
        )
        self.traffic = ClientTraffic()
        self.connection = BookieConnection(
            "b1",
            CONFIG,
            lambda *failure: self.notes.append(("failed", *failure)),
            lambda one: self.notes.append(("lost", one.lost, one.is_behind, self.traffic.behind)),
            lambda one: self.notes.append(("ended", one.ended.is_set())),
            ChunkPool(),
            self.traffic,
        )
        self.connection.connection_made(
            SimpleNamespace(
                set_write_buffer_limits=lambda high: self.limits.append(high),
                get_write_buffer_size=lambda: self.queued,
                write=self.write,
                writelines=lambda parts: self.notes.append(("writelines", *map(bytes, parts))),
                abort=lambda: self.notes.append(("abort", self.connection.lost)),
            )
        )

    def write(self, content):
        self.written = content
        self.notes.append(("write", bytes(content)))

    def timer(self, seconds, function):
        self.timers.append(Timer(seconds, function))
        return self.timers[-1]

    def ask(self, request_id, frame=b"frame", timeout=None, on_batch=None, body=b""):
        request = Question(lambda bookie, answer: self.answers.append((request_id, bookie, answer)), timeout, on_batch)
        self.connection.send(request_id, frame, request, body)

    def turn(self):
        """The end of this turn of the loop."""
        due, self.soon = self.soon, []
        for call in due:
            call()

    def receive(self, *frames):
        for frame in map(bytes, frames):
            self.connection.get_buffer(0)[: len(frame)] = frame
            self.connection.buffer_updated(len(frame))

    def noted(self, name):
        return [note for note in self.notes if note[0] == name]


@pytest.fixture
def bench(monkeypatch):
    return Bench(monkeypatch)


def answer(request_id, status=Status.OK, body=b"", kind=Kind.STATUS, flags=Flag.RESPONSE):
    return control_frame(Header(kind, request_id, 5, status=status, flags=int(flags)), body)


def unreachable(why):
    return Unknown(UnknownReason.UNREACHABLE, why)


# -- requests


@pytest.mark.parametrize(("timeout", "deadline"), [(None, float("inf")), (0.0, 100.0), (7.0, 107.0)])
def test_a_request_has_its_deadline_from_now_on(bench, timeout, deadline):
    assert Request(timeout).deadline == Question(None, timeout).deadline == deadline
    assert Question(None, timeout).timeout_seconds == timeout


def test_what_comes_in_parts_is_kept_as_it_is_or_as_what_is_made_of_it(caplog):
    def broken(frame):
        raise ZeroDivisionError("a defect")

    assert Request(None).batch_came("frame") == "frame"
    assert Question(None, None, lambda frame: frame + " read").batch_came("frame") == "frame read"
    made = Question(None, None, broken).batch_came("frame")
    assert isinstance(made, WireError) and "a defect" in str(made)


def test_a_new_connection_has_said_and_heard_nothing(bench):
    connection = bench.connection
    assert (connection.bookie_id, connection.heard_at, connection.incarnation) == ("b1", 0.0, 0)
    assert not connection.is_behind and connection.lost is None and not connection.ended.is_set()
    assert (connection.in_flight, connection.queued_bytes) == (0, 0)
    assert bench.limits == [MAX // 2]


# -- sending


def test_frames_of_one_turn_are_written_together_at_its_end_and_a_single_one_is_not_copied(bench):
    for request_id, (frame, body) in enumerate(((b"a", b""), (b"b", b"B"), (b"c", b""))):
        bench.ask(request_id, frame, body=body)
    assert bench.notes == [] and len(bench.soon) == 1 and bench.connection.queued_bytes == 4
    bench.turn()
    assert bench.notes == [("write", b"abBc")] and bench.connection.queued_bytes == 0
    frame = b"next"
    bench.ask(4, frame)
    bench.turn()
    assert bench.written is frame
    assert bench.notes[1:] == [("write", b"next")]
    assert bench.traffic.sent_bytes == 8 and bench.connection.in_flight == 4


@pytest.mark.parametrize(("size", "together"), [(65535, True), (65536, False)])
def test_what_is_more_than_is_joined_goes_at_once_behind_what_waits(bench, size, together):
    bench.ask(1, b"a")
    bench.ask(2, bytes(size))
    assert len(bench.notes) == (0 if together else 2)
    bench.turn()
    assert b"".join(note[1] for note in bench.notes) == b"a" + bytes(size)
    bench.ask(3, b"head", body=bytes(size))
    assert bench.noted("writelines") == [("writelines", b"head", bytes(size))]


def test_nothing_is_written_to_a_connection_that_is_lost(bench):
    bench.ask(1, b"a")
    bench.connection.abort("cut")
    bench.turn()
    bench.ask(2, bytes(100_000))
    assert bench.noted("write") == []
    assert bench.answers == [(i, "b1", Answer(unreachable("cut"))) for i in (1, 2)]
    bench.queued = 5
    assert bench.connection.queued_bytes == 0


@pytest.mark.parametrize(
    ("behind", "queued", "cut"), [(True, MAX, False), (True, MAX + 1, True), (False, 2 * MAX, False)]
)
def test_a_bookie_that_is_behind_is_cut_off_when_more_waits_than_may(bench, behind, queued, cut):
    if behind:
        bench.connection.pause_writing()
    bench.queued = queued
    bench.ask(1, bytes(70_000))
    assert (bench.connection.lost is not None) is cut
    if cut:
        assert "bytes behind" in bench.connection.lost.detail


# -- the end


def test_a_cut_answers_all_once_after_the_connection_is_known_to_be_lost(bench):
    """Who sends again when he hears of it is answered at once, and not left waiting."""
    bench.connection.pause_writing()
    bench.ask(1, timeout=60.0)
    bench.receive(encode_entries(*batch(1, 0)))
    seen = []
    bench.connection._pending[1]._on_answer = lambda *told: seen.append(bench.connection.lost)
    bench.ask(2)
    bench.connection.abort("the test")
    bench.connection.abort("again")
    why = unreachable("the test")
    assert seen == [why] and bench.answers == [(2, "b1", Answer(why))]
    assert bench.noted("abort") == [("abort", why)]
    # Whoever is told of the loss finds a connection that holds nobody up.
    assert bench.noted("lost") == [("lost", why, False, 0)]
    assert bench.timers[0].cancelled and bench.connection._batches == {} and bench.connection.in_flight == 0
    assert bench.traffic.failed == {"unreachable": 2}


@pytest.mark.parametrize(("error", "why"), [(None, "closed by the bookie"), (OSError("reset"), "reset")])
def test_the_end_of_the_socket_is_told_once_all_else_was(bench, error, why):
    bench.ask(1)
    bench.connection.connection_lost(error)
    assert bench.answers == [(1, "b1", Answer(unreachable(why)))]
    assert [note[0] for note in bench.notes] == ["abort", "lost", "ended"] and bench.notes[-1][1] is True


# -- answers


def batch(request_id, *ids):
    header = Header(Kind.READ, request_id, 5, ids[0], ids[-1], flags=Flag.RESPONSE | Flag.MORE)
    return header, [Entry(5, i, -1, i + 1, b"x", b"") for i in ids]


@pytest.mark.parametrize(
    ("status", "kind", "failed"),
    [
        (Status.OK, Positive, 0),
        (Status.NO_SUCH_ENTRY, Negative, 0),
        (Status.IO_ERROR, Unknown, 1),
        (Status.LIMBO, Unknown, 0),
    ],
)
def test_an_answer_is_told_once_with_all_its_parts_and_only_an_io_error_is_a_failure(bench, status, kind, failed):
    bench.ask(1)
    bench.ask(2)
    for first in (0, 3):
        bench.receive(encode_entries(*batch(1, first)))
    bench.receive(answer(1, status, b"body"), answer(1, status), answer(9, status))
    ((request_id, bookie, told),) = bench.answers
    assert (request_id, bookie, type(told.response), bytes(told.body)) == (1, "b1", kind, b"body")
    assert [frame.header.first_entry_id for frame in told.batches] == [0, 3] and told.header.request_id == 1
    assert bench.noted("failed") == [("failed", "b1", told.response)] * failed
    assert sum(bench.traffic.failed.values()) == (kind is Unknown)
    assert bench.connection.lost is None and bench.connection.in_flight == 1


def test_acks_answer_those_that_wait_and_count_how_long_it_took(bench):
    bench.ask(1, timeout=60.0)
    bench.ask(2)
    bench.now += 3.0
    bench.receive(control_frame(Header(Kind.ACKS, 0), Acks.encode((2, 9, 1))))
    assert bench.answers == [(2, "b1", ACKNOWLEDGED), (1, "b1", ACKNOWLEDGED)]
    assert bench.connection.heard_at == 103.0
    found = bench.traffic.seconds[int(Kind.ADD)].copy()
    assert (sum(found.counts), found.total) == (1, 3.0)


@pytest.mark.parametrize(
    ("kind", "timeout", "count"), [(Kind.READ, 60.0, 1), (Kind.READ, None, 0), (Kind.STATUS, 60.0, 0)]
)
def test_only_what_has_a_deadline_and_is_counted_is_measured(bench, kind, timeout, count):
    bench.ask(1, timeout=timeout)
    bench.now += 2.0
    bench.receive(answer(1, kind=kind))
    found = bench.traffic.seconds[int(Kind.READ)].copy()
    assert (sum(found.counts), found.total) == (count, 2.0 * count)


@pytest.mark.parametrize(("request_id", "kind", "cut"), [(9, Kind.REFUSAL, True), (9, Kind.STATUS, False)])
def test_a_refusal_cuts_the_connection_and_says_why_and_a_late_answer_does_not(bench, request_id, kind, cut):
    bench.ask(1)
    bench.receive(answer(request_id, body=b"too long", kind=kind))
    assert (bench.connection.lost is not None) is cut
    if cut:
        assert bench.connection.lost.detail == "refused what it was sent: too long"


def test_what_is_no_frame_cuts_the_connection(bench):
    bench.receive(b"\xff" * 200)
    assert "sent what is no answer" in bench.connection.lost.detail
    assert bench.traffic.received_bytes == 200


# -- deadlines


def test_a_late_request_is_answered_unknown_and_the_others_are_looked_at_again(bench):
    bench.ask(1, timeout=1.0)
    bench.ask(2, timeout=60.0)
    bench.ask(3)
    (timer,) = bench.timers
    assert timer.seconds == 0.05
    bench.receive(encode_entries(*batch(1, 0)), answer(9))
    timer.function()
    assert bench.answers == [] and len(bench.timers) == 2
    bench.now += 1.0
    bench.timers[1].function()
    late = Unknown(UnknownReason.TIMEOUT, "1 s")
    assert bench.answers == [(1, "b1", Answer(late))]
    assert bench.noted("failed") == [("failed", "b1", late)] and bench.traffic.failed == {"timeout": 1}
    assert bench.connection._batches == {} and bench.connection.lost is None and len(bench.timers) == 3
    bench.receive(answer(2), answer(3))
    bench.timers[2].function()
    assert len(bench.timers) == 3
    bench.ask(4)
    assert len(bench.timers) == 4, "it is looked at again when something is asked"


def test_a_request_that_an_earlier_late_one_ended_is_not_answered_twice(bench):
    bench.ask(1, timeout=5.0)
    bench.ask(2, timeout=5.0)
    bench.now += 5.0
    bench.timers[0].function()
    assert [request_id for request_id, _, _ in bench.answers] == [1, 2]
    assert [told.response.reason for _, _, told in bench.answers] == [UnknownReason.TIMEOUT, UnknownReason.UNREACHABLE]
    assert len(bench.timers) == 1


@pytest.mark.parametrize(
    ("timeout", "heard", "behind", "why"),
    [
        (5.0, False, False, "said nothing for 5 s"),
        (5.0, True, False, None),
        (4.9, False, False, None),
        (4.9, True, True, "is behind, and did not answer in 4.9 s"),
        (5.0, False, True, "is behind, and did not answer in 5 s"),
    ],
)
def test_who_is_late_is_cut_off_if_he_is_behind_or_said_nothing_at_all(bench, timeout, heard, behind, why):
    bench.receive(answer(9))
    bench.now += 1.0
    bench.ask(1, timeout=timeout)
    if behind:
        bench.connection.pause_writing()
    bench.now += 1.0
    if heard:
        bench.receive(answer(9))
    bench.now += 4.0
    bench.timers[0].function()
    assert (bench.connection.lost and bench.connection.lost.detail) == why


# -- stalls


def test_who_takes_nothing_in_is_cut_off_and_who_takes_a_little_is_watched_on(bench):
    bench.ask(1, bytes(70_000))
    bench.queued = 70_000
    bench.connection.pause_writing()
    assert bench.connection.is_behind and bench.traffic.behind == 1
    (timer,) = (timer for timer in bench.timers if timer.seconds == 2.0)
    bench.connection.pause_writing()
    assert bench.traffic.behind == 1
    bench.queued = 69_999
    timer.function()
    assert bench.connection.lost is None
    bench.timers[-1].function()
    assert bench.connection.lost.detail == "took in nothing for 2 s while 69999 bytes waited"
    assert not bench.connection.is_behind and bench.traffic.behind == 0
    count = len(bench.timers)
    bench.connection.pause_writing()
    assert len(bench.timers) == count and not bench.connection.is_behind, "of a lost one nothing is watched"


def test_who_catches_up_is_watched_no_more(bench):
    bench.connection.pause_writing()
    bench.connection.resume_writing()
    assert bench.timers[0].cancelled and not bench.connection.is_behind and bench.traffic.behind == 0
    bench.connection.resume_writing()
    assert bench.traffic.behind == 0


# -- timers


@pytest.mark.parametrize("late", [0.0, 0.04, 0.06])
def test_a_timer_of_a_loop_that_was_held_up_is_put_off_once(monkeypatch, late):
    now, later, called = [100.0], [], []
    loop = SimpleNamespace(
        call_later=lambda seconds, call: later.append((seconds, call)) or SimpleNamespace(cancel=lambda: later.pop())
    )
    monkeypatch.setattr(asyncio, "get_running_loop", lambda: loop)
    monkeypatch.setattr(io_loop, "time", SimpleNamespace(monotonic=lambda: now[0]))
    timer = DeadlineTimer(7.0, lambda: called.append(1))
    assert later[0][0] == 7.0
    now[0] += 7.0 + late
    later.pop()[1]()
    assert (len(called), [seconds for seconds, _ in later]) == ((1, []) if late < 0.05 else (0, [0.05]))
    if late > 0.05:
        now[0] += 1.0
        timer.cancel()
        assert later == []
