"""Sets of entry ids as ranges (first, last): sorted, with gaps between them, never empty.

Law: every function takes and returns such ranges, and changes none.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from operator import itemgetter

EntryRanges = tuple[tuple[int, int], ...]

NO_RANGES: EntryRanges = ()

_FEW, _MANY = 4, 256


def with_ranges(ranges: EntryRanges, others: Iterable[tuple[int, int]]) -> EntryRanges:
    """The union; ``others`` may come in any order and overlap. Takes the time of one sort; a few added to many, that of a
    copy."""
    others = list(others)
    if len(others) <= _FEW and len(ranges) > _MANY:
        for first, last in others:
            ranges = _with_one(ranges, first, last)
        return ranges
    joined: list[tuple[int, int]] = []
    for first, last in sorted((*ranges, *others)):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def _with_one(ranges: EntryRanges, first: int, last: int) -> EntryRanges:
    start = bisect_left(ranges, first - 1, key=itemgetter(1))
    end = bisect_right(ranges, last + 1, key=itemgetter(0))
    if start < end:
        first, last = min(first, ranges[start][0]), max(last, ranges[end - 1][1])
    return (*ranges[:start], (first, last), *ranges[end:])


def without_ranges(ranges: EntryRanges, others: Iterable[tuple[int, int]]) -> EntryRanges:
    """``ranges`` without the ids of ``others``, which ascend and may overlap."""
    left: list[tuple[int, int]] = []
    others = list(others)
    at = 0
    for first, last in ranges:
        while at < len(others) and others[at][1] < first:
            at += 1
        after = at
        while first <= last and after < len(others) and others[after][0] <= last:
            if first < others[after][0]:
                left.append((first, others[after][0] - 1))
            first = max(first, others[after][1] + 1)
            after += 1
        if first <= last:
            left.append((first, last))
    return tuple(left)


def first_within(ranges: EntryRanges, first: int, last: int) -> int | None:
    """The lowest id of ``first..last`` in ``ranges``; None if there is none."""
    at = bisect_left(ranges, first, key=itemgetter(1))
    if at == len(ranges) or ranges[at][0] > last:
        return None
    return max(first, ranges[at][0])


def covers(ranges: EntryRanges, first: int, last: int) -> bool:
    """Are all of ``first..last`` in ``ranges``?"""
    at = bisect_left(ranges, first, key=itemgetter(1))
    return at < len(ranges) and ranges[at][0] <= first and last <= ranges[at][1]
