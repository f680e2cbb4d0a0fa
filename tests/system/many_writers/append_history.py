"""A check of linearizability for concurrent appends to a lane, conditional or not.

Law: each append takes effect at one moment between its call and its response, or never. An append with a position in its
response put its row there when the lane had exactly that many rows, and ``expect`` was that number. A refused append put
nothing, and at some moment of its call the lane had another number of rows than expected. An append without a response (its
process was killed, or it got an error) may have taken effect or not, and its moment may come after the error. All this must
hold for one order of moments: the order of the rows in the lane at the end, which never changes again.

*An unfounded refusal* is allowed where the writer could not know better, because it changes nothing: a row that this writer had
numbered before was never in the lane, or a later writer of the lane had begun, so that this one no longer knew its end. Both are
counted.

The order of the rows is known, so there is no search: each moment is as late as the responses allow. A row has its moment at
its response, or at the response of a later row, and a refusal has its moment at its call, or when the next row comes. Any
history that another choice allows, this one allows too, because the moment of a called row can always be later. Source: Wing
and Gong, "Testing and Verifying Concurrent Objects"; Lowe, "Testing for Linearizability" (just-in-time linearization).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import NamedTuple


class Outcome(Enum):
    """The outcome of an append, as its caller knows it."""

    APPENDED = "appended"
    REFUSED = "refused"
    UNKNOWN = "unknown"


class Append(NamedTuple):
    """An append and its response. Times are of one clock that never goes back."""

    value: bytes
    """Unique in the history."""
    called: int
    outcome: Outcome = Outcome.UNKNOWN
    answered: int | None = None
    """None: never."""
    position: int = -1
    """Position of the row, if it was appended."""
    expect: int | None = None
    writer: str = ""
    """The life of a producer that made the append."""


class Verdict(NamedTuple):
    """Result of a check."""

    violations: list[str]
    counts: Counter[str]


def check(lane: Sequence[bytes], history: Iterable[Append], began: Mapping[str, int] | None = None) -> Verdict:
    """Judge the appends to one lane, which has the rows ``lane`` at the end. ``began``: the time at which each writer began
    to take the lane over."""
    appends = sorted(history, key=lambda one: one.called)
    counts = Counter(one.outcome.value for one in appends)
    counts["rows of unknown appends"] = 0
    by_value = {one.value: one for one in appends}
    violations = list(_contradictions(lane, appends, by_value))
    counts["rows of unknown appends"] = sum(
        by_value[value].outcome is Outcome.UNKNOWN for value in lane if value in by_value
    )
    if not violations:
        excused = refused_for_nothing(lane, appends, began or {})
        violations = list(_without_an_order([by_value[value] for value in lane], appends, excused))
        counts["refusals without a check"] = len(excused)
    return Verdict(violations, counts)


def _contradictions(lane: Sequence[bytes], appends: list[Append], by_value: Mapping[bytes, Append]) -> Iterator[str]:
    """Contradictions that do not depend on times."""
    if len(by_value) < len(appends):
        yield "two appends of the history have one value"
    for value, times in Counter(lane).items():
        if times > 1:
            yield f"{value!r} is in the lane {times} times"
    for position, value in enumerate(lane):
        one = by_value.get(value)
        if one is None:
            yield f"row {position} is {value!r}, which nobody appended"
        elif one.outcome is Outcome.REFUSED:
            yield f"row {position} is of {one}, which was refused"
        elif one.expect not in (None, position):
            yield f"row {position} is of {one}, which expected another position"
        elif one.outcome is Outcome.APPENDED and one.position != position:
            yield f"row {position} is of {one}, which was told another position"
    there = set(lane)
    for one in appends:
        if one.outcome is Outcome.APPENDED and one.value not in there:
            yield f"{one} was told to be appended, and is not in the lane"
        if one.answered is not None and one.answered < one.called:
            yield f"{one} was answered before it was called"


def refused_for_nothing(lane: Sequence[bytes], appends: list[Append], began: Mapping[str, int]) -> set[bytes]:
    """Values of unfounded refusals, which say nothing about the lane."""
    there, vanished = set(lane), dict[str, int]()
    for one in appends:
        if one.outcome is Outcome.UNKNOWN and one.value not in there:
            vanished.setdefault(one.writer, one.called)
    excused = set()
    for one in appends:
        if one.outcome is Outcome.REFUSED and one.answered is not None:
            mine = began.get(one.writer)
            replaced = mine is not None and any(mine < other < one.answered for other in began.values())
            if replaced or vanished.get(one.writer, one.answered) < one.answered:
                excused.add(one.value)
    return excused


def _without_an_order(rows: Sequence[Append], appends: list[Append], excused: set[bytes]) -> Iterator[str]:
    """The first response that no order of moments allows."""
    places = {one.value: place for place, one in enumerate(rows)}
    judged = [
        one for one in appends if one.value in places or (one.outcome is Outcome.REFUSED and one.value not in excused)
    ]
    events = sorted(
        [(one.called, 0, number) for number, one in enumerate(judged)]
        + [(one.answered, 1, number) for number, one in enumerate(judged) if one.answered is not None and _binds(one)]
    )
    called, length = set[int](), 0
    waiting = set[int]()
    """Running refusals without a moment yet: they expected the present number of rows."""
    for _, is_answer, number in events:
        one = judged[number]
        place = places.get(one.value)
        if place is not None and not is_answer:
            called.add(place)
            continue
        if place is None and not is_answer:
            assert one.expect is not None, f"only an append that expects a position is refused: {one}"
            if one.expect == length:
                waiting.add(number)
            continue
        while (place is not None and length <= place) or number in waiting:
            if length not in called:
                yield f"no order of moments allows {one}: when it was answered, the lane had {length} rows"
                return
            length += 1
            waiting.clear()


def _binds(one: Append) -> bool:
    """True if the response bounds the moment of the append."""
    return one.outcome is not Outcome.UNKNOWN
