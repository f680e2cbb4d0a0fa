"""A dict by id that keeps packed what is not in use: a bookie knows ten million ledgers, and works with some thousand of them.

Law: a value is an object while it is in use, and bytes at rest. ``get`` hands out the object that is kept, so a change of it
stays. ``look`` may hand out a passing copy, so nobody changes it. An object that ``get`` handed out is not held over two calls
of ``turn``: it may be packed then, and a change of it would be lost. What can't be packed stays an object.

For each id there is one entry in ``packed``: bytes, an object that can't be packed, or None while the object is in use. So a
ledger that is used now and then moves no others.

The ids are kept in order as well, 8 bytes each: to list ten million keys of a dict takes a third of a second, and a dict that
changes meanwhile can't be walked over in steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from bookspark.store.bookie.disk.sorted_ids import SortedIds

T = TypeVar("T")

_A_STEP = 4096


class PackedDict(Generic[T]):
    """Values by id, packed while nobody uses them."""

    def __init__(
        self,
        pack: Callable[[T], bytes | None],
        unpack: Callable[[int, bytes], T],
        begin_use: Callable[[T], T] = lambda value: value,
    ) -> None:
        """``pack`` returns None for a value that can't be packed. ``begin_use`` gives the object for one that was at rest."""
        self._begin_use = begin_use
        self._pack = pack
        self._unpack = unpack
        self.packed: dict[int, bytes | T | None] = {}
        """All ids. Bytes may be put here directly for ids that are here and not in use."""
        self.ids = SortedIds()
        """All ids, ascending."""
        self.used: dict[int, T] = {}
        """What was in use since the last ``turn``. A hot path may look here first; after a ``turn`` it is another dict."""
        self._resting: dict[int, T] = {}
        """What was in use since the ``turn`` before, and not since the last one."""

    def get(self, key: int) -> T | None:
        """The value, to be changed; None if there is none."""
        found = self.used.get(key)
        if found is None and key in self.packed:
            found = self._resting.get(key)
            self[key] = found = self._begin_use(self._at_rest(key)) if found is None else found
        return found

    def look(self, key: int) -> T | None:
        """The value, only to be read; None if there is none."""
        found = self.used.get(key)
        if found is None and key in self.packed:
            found = self._resting.get(key)
            return self._at_rest(key) if found is None else found
        return found

    def in_use(self, key: int) -> T | None:
        """The value if it is an object because it was used, else None. This is no use."""
        found = self.used.get(key)
        return self._resting.get(key) if found is None else found

    def _at_rest(self, key: int) -> T:
        kept = self.packed[key]
        assert kept is not None
        return self._unpack(key, kept) if isinstance(kept, bytes) else kept

    def pop(self, key: int) -> bool:
        """Remove a value; False if there was none."""
        if key not in self.packed:
            return False
        del self.packed[key]
        self.ids.discard(key)
        self.used.pop(key, None)
        self._resting.pop(key, None)
        return True

    def put_packed(self, key: int, packed: bytes | T) -> None:
        """Add a value, packed if it can be. There is none with this id."""
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
        """All values, only to be read. Nothing is added or removed meanwhile. (Who changes all of them goes through the ids.)"""
        for key in self.packed:
            value = self.look(key)
            assert value is not None
            yield value

    def packed_form(self, key: int) -> bytes | T | None:
        """A value packed, as it is if it can't be packed, None if there is none. This is no use."""
        value = self.in_use(key)
        if value is None:
            return self.packed.get(key)
        packed = self._pack(value)
        return value if packed is None else packed

    def objects(self) -> Iterator[T]:
        """The values that are in use or can't be packed, only to be read. Nothing is added or removed meanwhile."""
        for key, kept in self.packed.items():
            if not isinstance(kept, bytes):
                value = self.in_use(key) if kept is None else kept
                assert value is not None
                yield value

    @property
    def in_use_count(self) -> int:
        """How many values are objects because they were used."""
        return len(self._resting) + len(self.used)

    def rest(self, key: int) -> None:
        """Pack a value if it was not used since the last ``turn``."""
        value = self._resting.pop(key, None)
        if value is not None:
            self._rest(key, value)

    def rest_some(self, count: int) -> bool:
        """Pack up to ``count`` values that were not used since the last ``turn``. False if there is none left."""
        for _ in range(min(count, len(self._resting))):
            self._rest(*self._resting.popitem())
        return bool(self._resting)

    def _rest(self, key: int, value: T) -> None:
        packed = self._pack(value)
        self.packed[key] = value if packed is None else packed

    def rest_all(self) -> None:
        """Pack all that can be packed, at once. Nobody holds a value."""
        for _ in self.turn():
            pass
        self.rest_some(len(self._resting))

    def turn(self) -> Iterator[None]:
        """What is not used from now on until the next ``turn`` may rest then. In steps, as far as there is something that could
        not rest; what is in use, and may be all there is, is not walked over."""
        count = 0
        while self._resting:
            key, value = self._resting.popitem()
            self.used[key] = value
            count += 1
            if count % _A_STEP == 0:
                yield None
        self._resting, self.used = self.used, {}
