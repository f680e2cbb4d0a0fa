"""The observed cluster: its bookies, and the fragments that name each of them.

Law: a bookie's fragments are reached without a walk over all: a cluster may have a thousand bookies and millions of fragments.
Unknown never counts as good: a bookie that does not answer, or heals itself, is not *settled*, and its copies don't count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.placement import PlacementRule, Topology


class Placed(NamedTuple):
    ledger_id: int
    first_entry_id: int
    ensemble: tuple[str, ...]
    write_quorum: int
    ack_quorum: int
    open: bool
    """True for the last fragment of a ledger that is not closed: more entries may come."""
    byte_count: int
    """Approximate bytes on each bookie of the ensemble; 0 while the length is unknown."""
    loss: bool = False
    """An operator accepted a loss of the ledger's entries."""


class Shape(NamedTuple):
    """Properties shared by many fragments: a cluster has few shapes, and millions of fragments."""

    ensemble: tuple[str, ...]
    write_quorum: int
    ack_quorum: int
    open: bool
    loss: bool


def placed(metadata: LedgerMetadata) -> Iterator[Placed]:
    """A ledger's fragments, as if all of its entries had the same size."""
    entries = metadata.last_entry_id + 1 if metadata.closed else 0
    for fragment, last in metadata.fragment_ranges():
        count = max(0, last + 1 - fragment.first_entry_id) if last is not None and entries else 0
        share = metadata.length * count * metadata.write_quorum // (max(1, entries) * metadata.ensemble_size)
        yield Placed(
            metadata.ledger_id,
            fragment.first_entry_id,
            fragment.ensemble,
            metadata.write_quorum,
            metadata.ack_quorum,
            last is None,
            share,
            metadata.accepted_loss is not None,
        )


def _shape(one: Placed) -> Shape:
    return Shape(one.ensemble, one.write_quorum, one.ack_quorum, one.open, one.loss)


class Fragments:
    """An index by ledger, by bookie and by shape."""

    def __init__(self, found: Iterable[Placed] = ()) -> None:
        self._of_ledger: dict[int, tuple[Placed, ...]] = {}
        self._by_bookie: dict[str, dict[tuple[int, int], Placed]] = {}
        self._open: dict[str, dict[tuple[int, int], Placed]] = {}
        self._shapes: dict[Shape, tuple[Shape, set[int]]] = {}
        """The ledgers of each shape. All fragments of a shape share one ensemble object."""
        self.bytes_of: dict[str, int] = {}
        """Approximate bytes of all fragments that name a bookie."""
        ledgers: dict[int, list[Placed]] = {}
        for one in found:
            ledgers.setdefault(one.ledger_id, []).append(one)
        for ledger_id, each in ledgers.items():
            self.put(ledger_id, each)

    def put(self, ledger_id: int, fragments: Iterable[Placed]) -> None:
        """Replace the ledger's fragments; none: the ledger is gone."""
        for old in self._of_ledger.pop(ledger_id, ()):
            key = old.ledger_id, old.first_entry_id
            self._forget(_shape(old), ledger_id)
            for bookie in old.ensemble:
                del self._by_bookie[bookie][key]
                self._open.get(bookie, {}).pop(key, None)
                self.bytes_of[bookie] -= old.byte_count
        now = tuple(self._shaped(one) for one in fragments)
        if now:
            self._of_ledger[ledger_id] = now
        for one in now:
            key = one.ledger_id, one.first_entry_id
            for bookie in one.ensemble:
                self._by_bookie.setdefault(bookie, {})[key] = one
                self.bytes_of[bookie] = self.bytes_of.get(bookie, 0) + one.byte_count
                if one.open:
                    self._open.setdefault(bookie, {})[key] = one

    def _shaped(self, one: Placed) -> Placed:
        shape = _shape(one)
        known, ledgers = self._shapes.setdefault(shape, (shape, set()))
        ledgers.add(one.ledger_id)
        return one if one.ensemble is known.ensemble else one._replace(ensemble=known.ensemble)

    def _forget(self, shape: Shape, ledger_id: int) -> None:
        found = self._shapes.get(shape)
        if found is not None:
            found[1].discard(ledger_id)
            if not found[1]:
                del self._shapes[shape]

    def by_shape(self) -> dict[Shape, set[int]]:
        """The ledgers with a fragment of each shape, as a copy."""
        return {shape: ledgers.copy() for shape, (_, ledgers) in self._shapes.items()}

    def of_ledger(self, ledger_id: int) -> tuple[Placed, ...]:
        """By first entry id."""
        return self._of_ledger.get(ledger_id, ())

    def of(self, bookie_id: str) -> Collection[Placed]:
        return self._by_bookie.get(bookie_id, {}).values()

    def open_on(self, bookie_id: str) -> Collection[Placed]:
        """The bookie's fragments that may still get entries."""
        return self._open.get(bookie_id, {}).values()

    def ledgers(self) -> Collection[int]:
        return self._of_ledger.keys()

    def all(self) -> Iterator[Placed]:
        for each in self._of_ledger.values():
            yield from each

    def copy(self) -> Fragments:
        return Fragments(self.all())


@dataclass(frozen=True)
class ObservedBookie:
    bookie_id: str
    registered: bool = True
    has_cookie: bool = True
    read_only: bool = False
    read_only_by_change: bool = False
    """A change made the bookie read-only, this change or an earlier one."""
    change_order: int = 0
    """Highest order of a change that the bookie obeyed."""
    settled: bool = True
    """The bookie answers, has nothing in limbo, and knows of no lacking entry."""
    unsettled_why: str = ""
    incarnation: int = 1
    lossy_boot: int = 0
    version: str = ""
    host: str = ""
    """Last known, as ``rack`` and ``labels``, of a bookie that is down."""
    rack: str = ""
    labels: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def counts(self) -> bool:
        return self.registered and self.settled

    @property
    def writable(self) -> bool:
        """May new entries and copies go to the bookie?"""
        return self.counts and not self.read_only


@dataclass
class Observed:
    bookies: dict[str, ObservedBookie]
    fragments: Fragments = field(default_factory=Fragments)
    lacking: Mapping[int, frozenset[str]] = field(default_factory=dict)
    """Bookies known to lack entries, by ledger."""
    unreadable: Mapping[int, str] = field(default_factory=dict)
    """Ledgers with records that can't be decoded, and the reason."""
    autorecovery_enabled: bool = True
    placement: PlacementRule = field(default_factory=PlacementRule)

    def topology(self) -> Topology:
        """The bookies for placement: those that are down, and are without a known place, are left out."""
        away = {name: one for name, one in self.bookies.items() if not one.registered and (one.host or one.rack)}
        return Topology({name: one for name, one in self.bookies.items() if one.registered}, away=away)

    def counts(self, bookie_id: str, ledger_id: int) -> bool:
        """Do the bookie's copies of this ledger count?"""
        bookie = self.bookies.get(bookie_id)
        return bookie is not None and bookie.counts and bookie_id not in self.lacking.get(ledger_id, ())
