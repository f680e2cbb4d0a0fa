"""Checker of append histories: it accepts valid histories and reports each planted violation."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import permutations, product
from pathlib import Path
from random import Random

import pytest

from tests.system.many_writers.accounts import appends
from tests.system.many_writers.append_history import Append, Outcome, check

APPENDED, REFUSED, UNKNOWN = Outcome.APPENDED, Outcome.REFUSED, Outcome.UNKNOWN


def row(number: int, called: int, answered: int, **more: object) -> Append:
    """An append acknowledged at position ``number``, which it expected."""
    given = {"expect": number, "position": number} | more
    return Append(b"%d" % number, called, APPENDED, answered, **given)  # type: ignore[arg-type]


def refused(expect: int, called: int, answered: int, writer: str = "") -> Append:
    return Append(b"no", called, REFUSED, answered, expect=expect, writer=writer)


LANE = [b"0", b"1", b"2"]
ONE_BY_ONE = [row(0, 0, 10), row(1, 20, 30), row(2, 40, 50)]


def test_sequential_and_concurrent_appends_are_valid() -> None:
    assert check(LANE, ONE_BY_ONE).violations == []
    assert check(LANE, [row(0, 0, 50), row(1, 1, 50), row(2, 2, 50)]).violations == []
    assert check(LANE, [row(0, 30, 50), row(1, 20, 50), row(2, 10, 50)]).violations == []
    assert check([], []).violations == []


@pytest.mark.parametrize(
    ("lane", "history", "found"),
    [
        (LANE[:2], ONE_BY_ONE, "is not in the lane"),
        ([*LANE, b"3"], ONE_BY_ONE, "nobody appended"),
        ([*LANE, b"2"], ONE_BY_ONE, "2 times"),
        (LANE, [*ONE_BY_ONE[:2], row(2, 40, 50, position=3)], "another position"),
        (LANE, [*ONE_BY_ONE[:2], row(2, 40, 50, expect=1)], "another position"),
        (LANE, [*ONE_BY_ONE[:2], Append(b"2", 40, UNKNOWN, expect=1)], "another position"),
        ([*LANE, b"no"], [*ONE_BY_ONE, refused(3, 60, 70)], "was refused"),
        (LANE, [*ONE_BY_ONE, row(2, 60, 70)], "one value"),
        (LANE, [*ONE_BY_ONE[:2], row(2, 40, 39)], "before it was called"),
        # Row 1 was answered before row 0 was called.
        (LANE, [row(0, 40, 50), row(1, 20, 30), row(2, 40, 50)], "no order of moments"),
        (LANE, [Append(b"0", 40, UNKNOWN), row(1, 20, 30), row(2, 40, 50)], "no order of moments"),
        # The lane had 3 rows throughout.
        (LANE, [*ONE_BY_ONE, refused(3, 60, 70)], "no order of moments"),
        (LANE, [*ONE_BY_ONE, refused(2, 32, 38)], "no order of moments"),
    ],
)
def test_planted_violation_is_reported(lane: list[bytes], history: list[Append], found: str) -> None:
    (violation, *_) = check(lane, history).violations
    assert found in violation


def test_refusal_is_valid_if_the_row_count_differed_at_some_moment() -> None:
    for refusal in (refused(2, 55, 60), refused(2, 35, 45), refused(2, 25, 35), refused(1, 5, 15), refused(9, 60, 70)):
        assert check(LANE, [*ONE_BY_ONE, refusal]).violations == []


def test_two_refusals_need_compatible_moments() -> None:
    # The row took effect either before or after time 20; either way one of the two refusals is impossible.
    before, after = refused(0, 10, 20), Append(b"no 2", 30, REFUSED, 40, expect=1)
    slow = row(0, 0, 50)
    for one in (before, after):
        assert check([b"0"], [slow, one]).violations == []
    (violation,) = check([b"0"], [slow, before, after]).violations
    assert "no order of moments" in violation


def test_unacknowledged_append_may_be_present_absent_or_late() -> None:
    lost = Append(b"2", 40, UNKNOWN, 45, expect=2)
    assert check(LANE, [*ONE_BY_ONE[:2], lost]).violations == []
    assert check(LANE[:2], [*ONE_BY_ONE[:2], lost]).violations == []
    # It took effect after its error: a refusal before that is valid, and so is an append behind it.
    later = [row(3, 80, 90, expect=None), refused(4, 60, 70)]
    assert check([*LANE, b"3"], [*ONE_BY_ONE[:2], lost, *later]).violations == []
    # It can't take effect after the row behind it.
    (violation,) = check(
        [*LANE, b"3"], [*ONE_BY_ONE[:2], lost._replace(called=95, answered=99), row(3, 80, 90)]
    ).violations
    assert "no order of moments" in violation


def test_unfounded_refusal_is_excused_if_the_writer_could_not_know_better() -> None:
    mine = [one._replace(writer="life 1") for one in ONE_BY_ONE]
    refusal = refused(3, 60, 70, "life 1")
    vanished = Append(b"vanished", 55, UNKNOWN, writer="life 1")
    assert check(LANE, [*mine, refusal, vanished]).violations == []
    assert check(LANE, [*mine, refusal, vanished._replace(writer="life 0")]).violations != []
    assert check(LANE, [*mine, refusal, vanished._replace(called=71)]).violations != []
    assert check(LANE, [*mine, refusal], {"life 1": 0, "life 2": 65}).violations == []
    assert check(LANE, [*mine, refusal], {"life 1": 0, "life 2": 75}).violations != []
    found = check(LANE, [*mine, refusal], {"life 0": -5, "life 1": 0})
    assert found.violations != []


# -- beside a search through everything


@dataclass
class Lane:
    """A correct lane: calls, answers and effects at moments drawn by seed."""

    random: Random
    rows: list[bytes] = field(default_factory=list)
    history: list[Append] = field(default_factory=list)

    def play(self, count: int) -> None:
        for number in range(count):
            called = self.random.randrange(20)
            answered = called + 1 + self.random.randrange(8)
            self.history.append(Append(b"%d" % number, called, UNKNOWN, answered))
        moments = [(self.random.randint(one.called, one.answered or 0), n) for n, one in enumerate(self.history)]
        for _, number in sorted(moments):
            self._effect(number)

    def _effect(self, number: int) -> None:
        one, length = self.history[number], len(self.rows)
        expect = self.random.choice([None, length, length, length + 1, max(0, length - 1)])
        one = one._replace(expect=expect)
        if expect not in (None, length):
            self.history[number] = one._replace(outcome=REFUSED)
            return
        self.rows.append(one.value)
        heard = self.random.random() < 0.7
        self.history[number] = one._replace(outcome=APPENDED, position=length) if heard else one


def any_order(rows: list[bytes], history: list[Append]) -> bool:
    """The same question, answered by trying every order of all appends."""
    must = [one for one in history if one.outcome is not UNKNOWN]
    may = [one for one in history if one.outcome is UNKNOWN]
    for taken in product([False, True], repeat=len(may)):
        for order in permutations(must + [one for one, is_taken in zip(may, taken, strict=True) if is_taken]):
            if _fits(order, rows):
                return True
    return False


def _fits(order: tuple[Append, ...], rows: list[bytes]) -> bool:
    lane: list[bytes] = []
    for at, one in enumerate(order):
        for later in order[at + 1 :]:
            if later.outcome is not UNKNOWN and later.answered is not None and later.answered < one.called:
                return False
        if one.outcome is REFUSED:
            if one.expect == len(lane):
                return False
            continue
        if one.expect not in (None, len(lane)) or (one.outcome is APPENDED and one.position != len(lane)):
            return False
        lane.append(one.value)
    return lane == rows


def spoilt(random: Random, lane: Lane) -> tuple[list[bytes], list[Append]]:
    """The lane with a random change, which may or may not be a violation."""
    rows, history = list(lane.rows), list(lane.history)
    number = random.randrange(len(history))
    match random.choice(["time", "time", "time", "swap", "drop", "refuse"]):
        case "time":
            called = random.randrange(24)
            history[number] = history[number]._replace(called=called, answered=called + 1 + random.randrange(4))
        case "swap" if len(rows) > 1:
            at = random.randrange(len(rows) - 1)
            rows[at], rows[at + 1] = rows[at + 1], rows[at]
        case "drop" if rows:
            rows.pop()
        case "refuse" if history[number].expect is not None:
            history[number] = history[number]._replace(outcome=REFUSED, position=-1)
    return rows, history


@pytest.mark.parametrize("seed", range(60))
def test_checker_agrees_with_a_search_through_all_orders(seed: int) -> None:
    random = Random(seed)
    lane = Lane(random)
    lane.play(random.randint(1, 5))
    assert check(lane.rows, lane.history).violations == []
    for _ in range(10):
        rows, history = spoilt(random, lane)
        # A row lost with its writer excuses refusals; a writer per append leaves no excuse.
        history = [one._replace(writer=f"life {n}") for n, one in enumerate(history)]
        assert (check(rows, history).violations == []) == any_order(rows, history), (rows, history)


def test_append_by_two_lives_counts_from_its_earliest_call(tmp_path: Path) -> None:
    """A taken-over life called a row after the next life had its answer, so the row was answered before it was
    called."""
    (tmp_path / "numbers-0.0.journal").write_text("call 50 7 -\nfailed 60 7 LogTakenOverError\n")
    (tmp_path / "numbers-0.1.journal").write_text("call 30 7 -\nok 40 7 7\n")
    (one,) = appends(tmp_path, "numbers-0")
    assert (one.called, one.answered, one.outcome, one.writer) == (30, 40, Outcome.APPENDED, "numbers-0.1.journal")
