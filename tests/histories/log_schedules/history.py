"""A history: rows seen by readers and answers given to writers, with its laws.

* All readers see the same row at a place, at all times.
* A row is at one place at most. A row acknowledged to its writer is in the log.
* A batch is in the log as a whole, its rows in sequence, or not at all.
* A row of a query's source is in the log once.
* The batches of a query, and the rows of a producer, are in the order of their numbers, in one lane after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.histories.log_schedules.queries import source_row

Place = tuple[int, int]
"""A lane, and a row number in it."""


class History:
    """The history of a log."""

    def __init__(self) -> None:
        self.rows: dict[Place, str] = {}
        """Rows seen by readers."""
        self.batches: dict[str, Sequence[str]] = {}
        """The rows of each attempted batch, by the prefix of its first row."""
        self.acknowledged: set[str] = set()
        """Rows acknowledged to their writer."""
        self.replayed: set[str] = set()
        """Rows of batches that a query recognized as committed. The next reader may not see them yet."""
        self.places: dict[str, Place] = {}
        """The place of each row, as reported to its producer."""

    def seen(self, lane: int, row: int, value: str) -> None:
        known = self.rows.setdefault((lane, row), value)
        assert known == value, f"row {row} of lane {lane} was {known}, and is {value}"

    def tried(self, batch: str, values: Sequence[str]) -> None:
        self.batches[batch] = values

    def check(self, ends: dict[int, int]) -> None:
        """Check the laws once everything is read. ``ends``: the number of rows of each lane. Raises AssertionError."""
        missing = [(lane, row) for lane, end in ends.items() for row in range(end) if (lane, row) not in self.rows]
        assert not missing, f"nobody could read {missing}"
        behind = [(lane, row) for lane, row in self.rows if row >= ends.get(lane, 0)]
        assert not behind, f"rows are gone: {behind}"
        found: dict[str, Place] = {}
        for place, value in sorted(self.rows.items()):
            assert value not in found, f"{value} is at {found[value]} and at {place}"
            found[value] = place
        self.check_acknowledged()
        # The same row of the source may be there by another plan, where the offsets of plans are not known.
        rows = {source_row(value) or value for value in found}
        lost = [value for value in sorted(self.replayed) if (source_row(value) or value) not in rows]
        assert not lost, f"found there, and gone: {lost}"
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
        """Check that a reader has seen each acknowledged row. Raises AssertionError."""
        lost = self.acknowledged - set(self.rows.values())
        assert not lost, f"acknowledged, and not there: {sorted(lost)}"

    def _numbers(self) -> dict[str, list[int]]:
        """The numbers of each writer's batches, in log order. (A writer's later lane has a higher number.)"""
        numbers = defaultdict(list)
        for _, value in sorted(self.rows.items()):
            writer, number, _ = value.split("/")
            numbers[writer].append(int(number))
        return numbers


def values_of(writer: str, number: int, rows: int) -> list[str]:
    """The values of a batch's rows."""
    return [f"{writer}/{number}/{row}" for row in range(rows)]


def each(values: Sequence[str]) -> Iterator[bytes]:
    """The values as bytes."""
    return (value.encode() for value in values)
