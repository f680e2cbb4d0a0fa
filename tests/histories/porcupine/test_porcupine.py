"""Porcupine accepts possible histories, rejects planted errors, and agrees with our own checker of appends."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from bookspark.testing.history import Event, EventKind, History
from tests.histories.porcupine.judge import Operation, Verdict, built, judge, of_lane, of_ledgers
from tests.system.many_writers.append_history import Append, Outcome, check

SECONDS = 60.0


@pytest.fixture(scope="module")
def program() -> Path:
    found = built()
    if found is None:
        pytest.skip("needs Go, and the module github.com/anishathalye/porcupine")
    return found


def ledger(random_: random.Random, entries: int, name: str = "ledger 1") -> list[Operation]:
    """A possible history: pipelined appends, tailing readers, a close."""
    made, clock, length = list[Operation](), 10, 0
    while length < entries:
        window = min(random_.randint(1, 50), entries - length)
        calls = [clock + i for i in range(window)]
        clock += window
        for i, call in enumerate(calls):
            made.append(Operation(name, "append", length + i, f"{length + i:x}", call, clock + i))
        length, clock = length + window, clock + window
        for _ in range(window):
            at = random_.randrange(length)
            made.append(Operation(name, "read", at, f"{at:x}", clock, clock + 2))
            clock += 1
        made.append(Operation(name, "absent", length, "", clock, clock + 1))
        made.append(Operation(name, "confirmed", random_.randrange(length), "", clock, clock))
        clock += 2
    made.append(Operation(name, "closed", length - 1, "", clock, clock))
    return made


def test_hundred_thousand_possible_operations_are_accepted(program: Path) -> None:
    draw = random.Random(7)
    history = [one for number in range(50) for one in ledger(draw, 1_000, f"ledger {number}")]
    assert len(history) >= 100_000
    assert judge(program, history, SECONDS) == Verdict(len(history), 50, [], [])


def planted_stale_read(history: list[Operation]) -> None:
    """A reader is told that an entry is absent that was acknowledged before its request."""
    acked = history[10]
    assert acked.kind == "append"
    history.append(Operation(acked.object, "absent", acked.at, "", acked.answered + 1, acked.answered + 3))


def planted_lost_append(history: list[Operation]) -> None:
    """The ledger is closed below an acknowledged entry."""
    history[-1] = history[-1]._replace(at=history[-1].at - 1)


def planted_other_value(history: list[Operation]) -> None:
    """A reader gets a value that was never appended under that id."""
    number = next(i for i, one in enumerate(history) if one.kind == "read")
    history[number] = history[number]._replace(value="ff00")


def planted_append_behind_the_end(history: list[Operation]) -> None:
    """An append called after the close is acknowledged."""
    end = history[-1]
    history.append(Operation(end.object, "append", end.at + 1, "aa", end.answered + 1, end.answered + 2))


def planted_lac_from_nowhere(history: list[Operation]) -> None:
    """A client sees a LAC before the entry was appended."""
    history.append(Operation(history[0].object, "confirmed", 0, "", 1, 1))


PLANTED = (
    planted_stale_read,
    planted_lost_append,
    planted_other_value,
    planted_append_behind_the_end,
    planted_lac_from_nowhere,
)


@pytest.mark.parametrize("plant", PLANTED)
def test_planted_error_is_rejected(program: Path, plant: object) -> None:
    good, bad = (ledger(random.Random(3), 300, name) for name in ("good", "bad"))
    assert callable(plant)
    plant(bad)
    assert judge(program, good + bad, SECONDS).illegal == ["bad"]


@pytest.mark.parametrize("closed_at", [-1, 3, 9])
def test_unanswered_appends_may_be_in_the_ledger_or_not(program: Path, closed_at: int) -> None:
    history = [Operation("one", "append", entry, f"{entry:x}", entry + 1) for entry in range(10)]
    history.append(Operation("one", "closed", closed_at, "", 100, 100))
    assert judge(program, history, SECONDS).illegal == []
    history.append(Operation("one", "read", closed_at + 1, f"{closed_at + 1:x}", 101, 101))
    assert judge(program, history, SECONDS).illegal == ["one"]


def test_recorded_history_is_judged_event_by_event(program: Path) -> None:
    events: list[Event] = []
    history = History(events.append)
    for entry in range(5):
        history.record(Event(EventKind.APPENDED, "w", 7, entry, bytes([entry])))
    for entry in range(4):
        history.record(Event(EventKind.ACKED, "w", 7, entry))
    since = history.now()
    history.record(Event(EventKind.READ, "r", 7, 2, b"\x02"))
    history.record(Event(EventKind.LAC, "r", 7, 3))
    history.record(Event(EventKind.CLOSED, "x", 7, 3, length=4))
    history.record(Event(EventKind.ABSENT, "r", 7, 4, since=since))
    assert not history.violations
    assert judge(program, of_ledgers(events), SECONDS) == Verdict(9, 1, [], [])
    history.record(Event(EventKind.ABSENT, "r", 7, 3, since=since))
    assert history.violations and judge(program, of_ledgers(events), SECONDS).illegal == ["ledger 7"]


def random_lane(draw: random.Random) -> tuple[list[bytes], list[Append]]:
    """A few concurrent appends, with answers that may contradict each other."""
    lane = [b"%d" % i for i in range(draw.randint(0, 5))]
    appends, clock = [], list(range(1, 100))
    for place, value in enumerate(lane):
        call, answer = sorted(draw.sample(clock, 2))
        if draw.random() < 0.7:
            expect = place if draw.random() < 0.5 else None
            appends.append(Append(value, call, Outcome.APPENDED, answer, place, expect))
        else:
            appends.append(Append(value, call))
    for number in range(draw.randint(0, 3)):
        call, answer = sorted(draw.sample(clock, 2))
        appends.append(Append(b"refused %d" % number, call, Outcome.REFUSED, answer, expect=draw.randint(0, 5)))
    return lane, appends


def test_porcupine_agrees_with_our_own_checker_of_appends(program: Path) -> None:
    draw, operations, ours = random.Random(11), list[Operation](), {}
    for number in range(3_000):
        lane, appends = random_lane(draw)
        found = of_lane(f"lane {number}", lane, appends, ())
        if found:
            ours[f"lane {number}"] = not check(lane, appends).violations
            operations += found
    verdict = judge(program, operations, SECONDS)
    assert not verdict.unknown
    assert sum(ours.values()) > 500 < len(ours) - sum(ours.values()), "both kinds are many"
    assert {name for name, good in ours.items() if not good} == set(verdict.illegal)
