"""The list of the entries that a bookie holds of a ledger, as BookKeeper's clients and its auditor read it.

Law: the list names exactly the ids of the ranges it is made of. Runs of ids that are equally long and equally far apart, as a
striped ledger's are, take one group together; what is too long or too far apart for a group's numbers takes several::

    64 bytes   i32 version 0 │ i32 count of groups │ zeros
    24 bytes   of each group: i64 first id of its first run │ i64 first id of its last run │ i32 ids in a run │ i32 distance
               from run to run, 0 if there is one

Source: BookKeeper's ``AvailabilityOfEntriesOfLedger``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_INT_MAX = (1 << 31) - 1


def list_of_entries(ranges: Iterable[tuple[int, int]]) -> bytes:
    """The list for ``ranges`` (first, last) of entry ids, which ascend and do not touch."""
    groups: list[tuple[int, int, int, int]] = []
    for start, count in _runs(ranges):
        if groups:
            first, last, length, period = groups[-1]
            distance = start - last
            if length == count < distance <= _INT_MAX and period in (0, distance):
                groups[-1] = first, start, length, distance
                continue
        groups.append((start, start, count, 0))
    return b"".join((_HEADER.pack(0, len(groups)), *(_GROUP.pack(*group) for group in groups)))


def _runs(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """First id and count of ids, none longer than a group can tell."""
    for first, last in ranges:
        for start in range(first, last + 1, _INT_MAX):
            yield start, min(_INT_MAX, last + 1 - start)
