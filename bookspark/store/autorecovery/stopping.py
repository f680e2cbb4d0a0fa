"""Whether bookies can be stopped, by the metadata store and the other bookies. It needs no Spark and reads no entries.

Law: ``protocol.repair.stopping`` decides. A silent bookie counts as down. A ledger with an undecodable record is a danger,
because it may name the bookie. A bookie lists all its entries if it reports lacking entries, or if a task of autorecovery
names it for them.

``dangers`` reads the metadata of all ledgers, a few thousand records a second. ``foreseen`` uses an index of all fragments,
and reads only records that may be in danger by the shape of their fragments, mostly none; its answer is as old as the index.

Only the exact audit (``bookspark safe-to-stop``) sees a missing copy that is not noticed yet, and a recently acknowledged
entry on its way to the last of its bookies.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from bookspark.errors import ReadError
from bookspark.protocol.changes.observed import Fragments, Shape
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.audit_plan import absent
from bookspark.protocol.repair.stopping import Danger, Known, dangers_of, fewest_left
from bookspark.protocol.repair.underreplication_task import Reason
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.held_ranges import Ranges, held_ranges
from bookspark.store.cluster_view import known_bookies
from bookspark.store.metadata.store import MetadataStore
from bookspark.support.arguments import check_names

LOOKED_AT_MAX = 2000


def dangers(bookkeeper: BookKeeper, bookies: Sequence[str]) -> list[Danger]:
    """The dangers of stopping ``bookies`` (ids); empty: they can be stopped. Raises ConfigurationError for a bookie unknown to
    the cluster, and MetadataStoreError."""
    store = bookkeeper.metadata
    cluster = known_bookies(store)
    registered = cluster.registered()
    check_names(bookies, list(cluster.bookies), "bookie")
    unreadable: dict[int, str] = {}
    stopped = set(bookies)
    named = [
        one
        for one, _ in store.read_ledgers(store.list_ledgers(), unreadable)
        if any(not stopped.isdisjoint(fragment.ensemble) for fragment in one.fragments)
    ]
    others = {bookie for one in named for fragment in one.fragments for bookie in fragment.ensemble} - stopped
    peers = _Peers(bookkeeper, others & registered.keys())
    peers.ask(_marked(bookkeeper, {one.ledger_id for one in named}.__contains__, unreadable))
    found = [
        danger for one in named for danger in dangers_of(one, stopped, peers.known(one, others - registered.keys()))
    ]
    return found + [Danger(ledger_id, None, None, None, 0, why) for ledger_id, why in sorted(unreadable.items())]


def _marked(bookkeeper: BookKeeper, concerned: Callable[[int], bool], unreadable: dict[int, str]) -> set[str]:
    """The bookies that lack entries by a task of a ``concerned`` ledger."""
    store = bookkeeper.metadata.underreplication
    there = sorted(filter(concerned, store.list_tasks()))
    return {bookie for task in store.tasks(there, unreadable) for bookie in task.of(Reason.LACKS)}


class Index(NamedTuple):
    """A caller's index of all ledgers, as of its last update."""

    by_shape: Mapping[Shape, Collection[int]]
    """The ledgers of each shape. It must not change during a call, or a ledger closed meanwhile could miss both of its shapes."""
    fragments: Fragments
    unreadable: Mapping[int, str]
    """Undecodable records or tasks, by ledger, with the reason."""
    ledgers: Sequence[int]


class Foreseen(NamedTuple):
    dangers: list[Danger]
    looked_at: int
    doubtful: int
    """Ledgers that may be in danger. If more than ``looked_at``, the rest was not needed for an answer."""


def foreseen(bookkeeper: BookKeeper, bookies: Sequence[str], index: Index) -> Foreseen:
    """The dangers of stopping ``bookies`` (ids), by an index of all ledgers. Ledgers open in the index or made since are read
    anew. Other doubtful ledgers follow, fewest remaining copies first, LOOKED_AT_MAX at a time, until a danger is found.
    Raises ConfigurationError for a bookie unknown to the cluster, and MetadataStoreError."""
    store = bookkeeper.metadata
    cluster = known_bookies(store)
    registered = cluster.registered()
    check_names(bookies, list(cluster.bookies), "bookie")
    stopped, fragments = set(bookies), index.fragments

    def concerned(ledger_id: int) -> bool:
        known = fragments.of_ledger(ledger_id)
        return not known or any(not stopped.isdisjoint(one.ensemble) for one in known)

    bad = {ledger_id: why for ledger_id, why in index.unreadable.items() if concerned(ledger_id)}
    anew = _anew(store, index)
    read = [one for one, _ in store.read_ledgers(sorted(anew), bad)]
    touched = {shape: ids for shape, ids in index.by_shape.items() if not stopped.isdisjoint(shape.ensemble)}
    named = {bookie for shape in touched for bookie in shape.ensemble} | _bookies_of(read)
    peers = _Peers(bookkeeper, (named & registered.keys()) - stopped)
    peers.ask(_marked(bookkeeper, concerned, bad))

    def look(records: Iterable[LedgerMetadata]) -> list[Danger]:
        return [
            danger
            for one in records
            for danger in dangers_of(one, stopped, peers.known(one, _bookies_of([one]) - registered.keys() - stopped))
        ]

    doubted = (named - registered.keys() - stopped) | peers.doubted
    doubtful = [one for one in _doubtful(touched, stopped, doubted) if one not in anew]
    found, at = look(read), 0
    while at < len(doubtful) and (at < LOOKED_AT_MAX or not found):
        some = doubtful[at : at + LOOKED_AT_MAX]
        at += len(some)
        found += look(one for one, _ in store.read_ledgers(some, bad))
    found += [Danger(ledger_id, None, None, None, 0, why) for ledger_id, why in sorted(bad.items())]
    return Foreseen(found, at + len(read), len(doubtful) + len(read))


def _anew(store: MetadataStore, index: Index) -> set[int]:
    """Ledgers whose ensembles change, or which the index lacks, at most LOOKED_AT_MAX of either kind."""
    newest = store.last_ledger_id()
    known = bisect_right(index.ledgers, newest)
    since = index.ledgers[known - 1] + 1 if known else 0
    found = set(range(max(since, newest + 1 - LOOKED_AT_MAX), newest + 1))
    still_open = [ids for shape, ids in index.by_shape.items() if shape.open]
    if sum(map(len, still_open)) <= LOOKED_AT_MAX:
        found.update(*still_open)
    return found


def _bookies_of(records: Iterable[LedgerMetadata]) -> set[str]:
    return {bookie for one in records for fragment in one.fragments for bookie in fragment.ensemble}


def _doubtful(
    by_shape: Mapping[Shape, Collection[int]], stopped: Collection[str], doubted: Collection[str]
) -> list[int]:
    """Ledgers that may be in danger, fewest remaining copies first."""
    by_left: dict[int, set[int]] = defaultdict(set)
    for shape, ledgers in by_shape.items():
        left = fewest_left(*shape[:4], stopped, doubted)
        if left is None and shape.loss:
            left = shape.ack_quorum
        if left is not None:
            by_left[left].update(ledgers)
    found: dict[int, None] = {}
    for _, those in sorted(by_left.items()):
        found.update(dict.fromkeys(sorted(those)))
    return list(found)


class _Peers:
    def __init__(self, bookkeeper: BookKeeper, bookies: Iterable[str]) -> None:
        self._bookkeeper = bookkeeper
        self._bookies = sorted(bookies)
        self._silent: set[str] = set()
        self._held: dict[str, Mapping[int, Ranges]] = {}
        """Bookies that lack entries: their held ranges by ledger."""
        self._limbo: dict[str, set[int]] = defaultdict(set)

    def ask(self, doubtful: set[str]) -> None:
        """Ask each bookie once. ``doubtful``: bookies that must list their entries, whatever their status."""
        for bookie in self._bookies:
            try:
                status = self._bookkeeper.bookie_status(bookie)
                if status.limbo_ledgers:
                    self._limbo[bookie] = set(self._bookkeeper.list_limbo(bookie))
                if status.limbo_ledgers or status.lacking_ledgers or bookie in doubtful:
                    self._held[bookie] = held_ranges(self._bookkeeper, bookie)
            except ReadError:
                self._silent.add(bookie)

    @property
    def doubted(self) -> set[str]:
        """Bookies that may lack a ledger's entries, or did not answer."""
        return self._silent | self._held.keys() | self._limbo.keys()

    def known(self, metadata: LedgerMetadata, not_registered: set[str]) -> Known:
        ledger_id = metadata.ledger_id
        return Known(
            down=not_registered | self._silent,
            lacking={bookie: absent(metadata, bookie, held.get(ledger_id, ())) for bookie, held in self._held.items()},
            limbo={bookie for bookie, ledgers in self._limbo.items() if ledger_id in ledgers},
        )
