"""Sorted ids: adding, removing and seeking take microseconds each, at any count.

Law: each id is there once. The ids lie in parts of bounded length, so a change moves at most one part.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator

_PART_MAX = 2048


class SortedIds:
    """A set of ids in ascending order."""

    def __init__(self) -> None:
        self._parts: list[list[int]] = []
        self._firsts: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, one: int) -> None:
        """Add an id; no error if present."""
        if not self._parts:
            self._parts.append([one])
            self._firsts.append(one)
            self._count = 1
            return
        part = self._parts[-1]
        if one > part[-1]:
            # Ids mostly come in ascending order.
            if len(part) < _PART_MAX:
                part.append(one)
            else:
                self._parts.append([one])
                self._firsts.append(one)
            self._count += 1
            return
        number = self._part_of(one)
        part = self._parts[number]
        at = bisect_left(part, one)
        if at < len(part) and part[at] == one:
            return
        part.insert(at, one)
        self._firsts[number] = part[0]
        self._count += 1
        if len(part) > _PART_MAX:
            cut = _PART_MAX // 2
            self._parts[number : number + 1] = [part[:cut], part[cut:]]
            self._firsts.insert(number + 1, part[cut])

    def discard(self, one: int) -> None:
        """Remove an id; no error if absent."""
        if not self._parts:
            return
        number = self._part_of(one)
        part = self._parts[number]
        at = bisect_left(part, one)
        if at == len(part) or part[at] != one:
            return
        del part[at]
        self._count -= 1
        if part:
            self._firsts[number] = part[0]
        else:
            del self._parts[number], self._firsts[number]

    def since(self, start: int, count: int | None = None) -> list[int]:
        """The ids from ``start`` on, ascending, at most ``count`` (None: all)."""
        found: list[int] = []
        for number in range(self._part_of(start), len(self._parts)):
            part = self._parts[number]
            found += part if found else part[bisect_left(part, start) :]
            if count is not None and len(found) >= count:
                return found[:count]
        return found

    def ascending(self) -> Iterator[int]:
        """All ids, read part by part. Ids may be added and removed meanwhile; an id added meanwhile may be left out."""
        start = self._firsts[0] if self._firsts else 0
        while part := self.since(start, _PART_MAX):
            yield from part
            start = part[-1] + 1

    def _part_of(self, one: int) -> int:
        return max(0, bisect_right(self._firsts, one) - 1)
