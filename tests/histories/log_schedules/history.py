"""What actors were told, and the laws that it must keep.

* All readers see the same row at a place, at all times.
* A row is at one place at most. What a writer was told is in the log is there.
* A batch is there as a whole, its rows one behind the other, or not at all.
* A row of a query's source is in the log once.
* The batches of a query, and the rows of a producer, are in the order of their numbers, in one lane after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.histories.log_schedules.queries import source_row

Place = tuple[int, int]
"""A lane, and a row of it."""


class History:
    """Of one log."""

    def __init__(self) -> None:
        self.rows: dict[Place, str] = {}
        """What readers saw."""
        self.batches: dict[str, Sequence[str]] = {}
        """The rows of each batch that was tried, by what its first row begins with."""
        self.acknowledged: set[str] = set()
        """The rows of which a writer was told that they are in the log."""
        self.replayed: set[str] = set()
        """The rows of batches that a query found in the log. Whoever reads it next may not see them yet."""
        self.places: dict[str, Place] = {}
        """Where a producer was told that a row is."""

    def seen(self, lane: int, row: int, value: str) -> None:
        known = self.rows.setdefault((lane, row), value)
        assert known == value, f"row {row} of lane {lane} was {known}, and is {value}"

    def tried(self, batch: str, values: Sequence[str]) -> None:
        self.batches[batch] = values

    def check(self, ends: dict[int, int]) -> None:
        """All is read. ``ends``: how many rows each lane has. Raises AssertionError."""
        missing = [(lane, row) for lane, end in ends.items() for row in range(end) if (lane, row) not in self.rows]
        assert not missing, f"nobody could read {missing}"
        behind = [(lane, row) for lane, row in self.rows if row >= ends.get(lane, 0)]
        assert not behind, f"rows are gone: {behind}"
        found: dict[str, Place] = {}
        for place, value in sorted(self.rows.items()):
            assert value not in found, f"{value} is at {found[value]} and at {place}"
            found[value] = place
        self.check_acknowledged()
        lost = self.replayed - found.keys()
        assert not lost, f"found there, and gone: {sorted(lost)}"
        sources: dict[tuple[str, str], str] = {}
        for value in found:
            if (row := source_row(value)) is not None:
                assert sources.setdefault(row, value) == value, (
                    f"row {row} of a source is there twice: {value}, {sources[row]}"
                )
        for value, place in self.places.items():
            assert found[value] == place, f"{value} was to be at {place}, and is at {found[value]}"
        for batch, values in self.batches.items():
            there = [found[value] for value in values if value in found]
            if there:
                lane, first = there[0]
                whole = [(lane, first + number) for number in range(len(values))]
                assert there == whole, f"batch {batch} is at {there}"
        for writer, numbers in self._numbers().items():
            assert numbers == sorted(numbers), f"{writer} is not in order: {numbers}"
        strange = found.keys() - {value for values in self.batches.values() for value in values}
        assert not strange, f"nobody wrote {strange}"

    def check_acknowledged(self) -> None:
        """Some reader has seen whatever was acknowledged. Raises AssertionError."""
        lost = self.acknowledged - set(self.rows.values())
        assert not lost, f"acknowledged, and not there: {sorted(lost)}"

    def _numbers(self) -> dict[str, list[int]]:
        """The numbers of each writer's batches, in the order of the log. (A writer's later lane has a higher number.)"""
        numbers = defaultdict(list)
        for _, value in sorted(self.rows.items()):
            writer, number, _ = value.split("/")
            numbers[writer].append(int(number))
        return numbers


def values_of(writer: str, number: int, rows: int) -> list[str]:
    """The rows of a batch."""
    return [f"{writer}/{number}/{row}" for row in range(rows)]


def each(values: Sequence[str]) -> Iterator[bytes]:
    """Their bytes."""
    return (value.encode() for value in values)
