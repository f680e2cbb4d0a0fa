"""A dict by id that packs idle values: a bookie knows ten million ledgers, and works with some thousand of them.

Law: a value is an object while in use, and bytes at rest. ``get`` returns the kept object, so a change of it stays. ``look`` may
return a temporary copy, so callers must not change it. A caller must not hold an object of ``get`` over two calls of ``turn``: it
may be packed then, and a change would be lost. A value that can't be packed stays an object.

``packed`` has an entry for each id: bytes, an object that can't be packed, or None while the object is in use. So occasional use
of a ledger moves no other entry. The ids are also kept in order, 8 bytes each: listing ten million keys of a dict takes a third
of a second, and a changing dict can't be iterated in steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Generic, TypeVar

from sortedcontainers import SortedList

T = TypeVar("T")

_A_STEP = 4096


def since(ids: Any, start: int | None, count: int | None = None) -> list[int]:
    """The ids of a SortedList or SortedSet from ``start`` (None: the lowest) on, at most ``count`` (None: all)."""
    return list(islice(ids.irange(start), count))


def ascending(ids: Any) -> Iterator[int]:
    """All ids of a SortedList or SortedSet. Ids may be added and removed meanwhile; an id added meanwhile may be left out."""
    start = None
    while part := since(ids, start, _A_STEP):
        yield from part
        start = part[-1] + 1


class PackedDict(Generic[T]):
    def __init__(
        self,
        pack: Callable[[T], bytes | None],
        unpack: Callable[[int, bytes], T],
        begin_use: Callable[[T], T] = lambda value: value,
    ) -> None:
        """``pack`` returns None for a value that can't be packed. ``begin_use`` turns a value at rest into the object to keep."""
        self._begin_use = begin_use
        self._pack = pack
        self._unpack = unpack
        self.packed: dict[int, bytes | T | None] = {}
        """All ids. Callers may replace the bytes of an id at rest directly."""
        self.ids: Any = SortedList()
        self.used: dict[int, T] = {}
        """Values used since the last ``turn``. A hot path may look here first; each ``turn`` makes another dict."""
        self._resting: dict[int, T] = {}
        """Values used since the ``turn`` before, and not since the last."""

    def get(self, key: int) -> T | None:
        """The value, which callers may change; None if absent."""
        found = self.used.get(key)
        if found is None and key in self.packed:
            found = self._resting.get(key)
            self[key] = found = self._begin_use(self._at_rest(key)) if found is None else found
        return found

    def look(self, key: int) -> T | None:
        """The value, read-only; None if absent."""
        found = self.used.get(key)
        if found is None and key in self.packed:
            found = self._resting.get(key)
            return self._at_rest(key) if found is None else found
        return found

    def in_use(self, key: int) -> T | None:
        """The value if use made it an object, else None. This call does not count as use."""
        found = self.used.get(key)
        return self._resting.get(key) if found is None else found

    def _at_rest(self, key: int) -> T:
        kept = self.packed[key]
        assert kept is not None
        return self._unpack(key, kept) if isinstance(kept, bytes) else kept

    def pop(self, key: int) -> bool:
        if key not in self.packed:
            return False
        del self.packed[key]
        self.ids.discard(key)
        self.used.pop(key, None)
        self._resting.pop(key, None)
        return True

    def put_packed(self, key: int, packed: bytes | T) -> None:
        if key not in self.packed:
            self.ids.add(key)
        self.packed[key] = packed

    def __setitem__(self, key: int, value: T) -> None:
        if key not in self.packed:
            self.ids.add(key)
        self._resting.pop(key, None)
        self.packed[key] = None
        self.used[key] = value

    def __getitem__(self, key: int) -> T:
        found = self.get(key)
        if found is None:
            raise KeyError(key)
        return found

    def __contains__(self, key: int) -> bool:
        return key in self.packed

    def __len__(self) -> int:
        return len(self.packed)

    def looks(self) -> Iterator[T]:
        """All values, read-only. Nothing may be added or removed meanwhile. (To change all values, iterate over the ids.)"""
        for key in self.packed:
            value = self.look(key)
            assert value is not None
            yield value

    def packed_form(self, key: int) -> bytes | T | None:
        """The packed value; the object itself if it can't be packed; None if absent. This call does not count as use."""
        value = self.in_use(key)
        if value is None:
            return self.packed.get(key)
        packed = self._pack(value)
        return value if packed is None else packed

    def objects(self) -> Iterator[T]:
        """The values that are in use or can't be packed, read-only. Nothing may be added or removed meanwhile."""
        for key, kept in self.packed.items():
            if not isinstance(kept, bytes):
                value = self.in_use(key) if kept is None else kept
                assert value is not None
                yield value

    @property
    def in_use_count(self) -> int:
        return len(self._resting) + len(self.used)

    def rest(self, key: int) -> None:
        """Pack a value unused since the last ``turn``."""
        value = self._resting.pop(key, None)
        if value is not None:
            self._rest(key, value)

    def rest_some(self, count: int) -> bool:
        """Pack up to ``count`` values unused since the last ``turn``. False if none is left."""
        for _ in range(min(count, len(self._resting))):
            self._rest(*self._resting.popitem())
        return bool(self._resting)

    def _rest(self, key: int, value: T) -> None:
        packed = self._pack(value)
        self.packed[key] = value if packed is None else packed

    def rest_all(self) -> None:
        """Pack all packable values at once. Callers must hold no value of the dict."""
        for _ in self.turn():
            pass
        self.rest_some(len(self._resting))

    def turn(self) -> Iterator[None]:
        """Begin a new period of use, in steps: values unused until the next ``turn`` may rest then. It walks only over values
        that were due and not packed, not over values in use."""
        count = 0
        while self._resting:
            key, value = self._resting.popitem()
            self.used[key] = value
            count += 1
            if count % _A_STEP == 0:
                yield None
        self._resting, self.used = self.used, {}
