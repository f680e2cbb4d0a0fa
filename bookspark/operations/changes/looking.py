"""Looks at a cluster: its bookies, its ledgers' fragments and its autorecovery tasks.

Law: the first look reads every ledger. Later looks read new ledgers, ledgers that are not closed, and ledgers that have or had a
task, because only autorecovery changes the record of a closed ledger. ``renew`` reads every ledger of a leaving bookie again.
Looks change nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Set
from concurrent.futures import ThreadPoolExecutor

from bookspark.errors import ReadError
from bookspark.protocol.changes.observed import Fragments, Observed, ObservedBookie, placed
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.repair.underreplication_task import Reason
from bookspark.store.client import BookKeeper
from bookspark.store.cluster_view import BookieView, ClusterView, answering_bookies, with_homes
from bookspark.store.metadata.placement_rule import read_placement
from bookspark.store.wire.messages import BookieStatus
from bookspark.support.plain_text import counted


class Looking:
    """Repeated looks at one cluster. For one thread at a time."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self._bookkeeper = bookkeeper
        self._store = bookkeeper.metadata
        self._fragments = Fragments()
        self._open: set[int] = set()
        self._recovering: set[int] = set()
        self._tasks: frozenset[int] = frozenset()
        """Ledgers with a task at the previous look."""
        self._changed: set[int] = set()
        """Ledgers that the caller may have changed since the previous look."""
        self.cluster = ClusterView()
        """The bookies at the last look."""

    @property
    def statuses(self) -> Mapping[str, BookieStatus]:
        """Each bookie's own status at the last look, without silent bookies."""
        return self.cluster.statuses

    @property
    def open_ledgers(self) -> Set[int]:
        """Ids of ledgers that were not closed at the last look."""
        return self._open

    @property
    def in_recovery(self) -> Set[int]:
        """Ids of ledgers in recovery at the last look."""
        return self._recovering

    def look(self, at_once: bool = False) -> Observed:
        """The cluster's present state. ``at_once``: independent queries run in parallel, against a slow ZooKeeper, for callers
        that only display. Otherwise the bookies are asked last, because their answers decide about a change. Raises
        MetadataStoreError."""
        store, tasks = self._store, self._store.underreplication
        if not at_once:
            lacking, bad = self._lacking()
            unreadable = self._look_at_ledgers(set(store.list_ledgers()), lacking)
            self.cluster = with_homes(answering_bookies(self._bookkeeper), store)
            enabled, rule = tasks.enabled(), read_placement(store)
        else:
            with ThreadPoolExecutor(4, "look") as beside:
                others = beside.submit(answering_bookies, self._bookkeeper), beside.submit(tasks.enabled)
                ruled = beside.submit(read_placement, store)
                marked = beside.submit(self._lacking)
                ids = set(store.list_ledgers())
                lacking, bad = marked.result()
                unreadable = self._look_at_ledgers(ids, lacking)
            self.cluster, enabled, rule = with_homes(others[0].result(), store), others[1].result(), ruled.result()
        bookies = {name: _observed(one) for name, one in self.cluster.bookies.items()}
        known = {ledger_id: names for ledger_id, names in lacking.items() if names}
        return Observed(bookies, self._fragments, known, {**bad, **unreadable}, enabled, rule)

    def _lacking(self) -> tuple[dict[int, frozenset[str]], dict[int, str]]:
        """Ledgers with a task, with the bookies that lack entries of each; and tasks that can't be decoded, with the errors."""
        tasks = self._store.underreplication
        bad: dict[int, str] = {}
        found = {
            task.ledger_id: frozenset({*task.of(Reason.LOST), *task.of(Reason.LACKS)})
            for task in tasks.tasks(tasks.list_tasks(), bad)
        }
        return found, bad

    def _look_at_ledgers(self, ids: set[int], with_task: Collection[int]) -> dict[int, str]:
        """Update the fragments. ``ids``: all ledgers."""
        for gone in [one for one in self._fragments.ledgers() if one not in ids]:
            self._put(gone, None)
        new = {one for one in ids if not self._fragments.of_ledger(one)}
        unreadable = self._read(ids & {*new, *self._open, *with_task, *self._tasks, *self._changed})
        self._tasks, self._changed = frozenset(with_task), set()
        return unreadable

    def changed(self, ledger_ids: Iterable[int]) -> None:
        """Have the next look read these ledgers, whose records may have changed."""
        self._changed |= set(ledger_ids)

    def renew(self, bookie_id: str) -> dict[int, LedgerMetadata]:
        """Read again every ledger that names the bookie or stands in its index. Returns the ledgers that name it, by id. Raises
        ReadError if the bookie does not answer or a record can't be decoded."""
        held = set(self._bookkeeper.list_ranges(bookie_id)["ledger_id"].unique().to_pylist())
        named = {one.ledger_id for one in self._fragments.of(bookie_id)}
        every = held | named | self._open
        there = every & set(self._store.list_ledgers())
        found: dict[int, LedgerMetadata] = {}
        unreadable = self._read(there, found)
        for gone in every - there:
            self._put(gone, None)
        if unreadable:
            ledger_id, why = next(iter(unreadable.items()))
            raise ReadError(f"ledger {ledger_id} may name {bookie_id}, and its record can't be read: {why}")
        return {ledger_id: one for ledger_id, one in found.items() if bookie_id in one.bookies()}

    def _read(self, ledger_ids: Collection[int], found: dict[int, LedgerMetadata] | None = None) -> dict[int, str]:
        unreadable: dict[int, str] = {}
        left = set(ledger_ids)
        for metadata, _ in self._store.read_ledgers(sorted(ledger_ids), unreadable):
            left.discard(metadata.ledger_id)
            self._put(metadata.ledger_id, metadata)
            if found is not None:
                found[metadata.ledger_id] = metadata
        for ledger_id in left:
            self._put(ledger_id, None)
        return unreadable

    def _put(self, ledger_id: int, metadata: LedgerMetadata | None) -> None:
        self._fragments.put(ledger_id, () if metadata is None else placed(metadata))
        for ledgers, is_one in (
            (self._open, metadata is not None and not metadata.closed),
            (self._recovering, metadata is not None and metadata.state is LedgerState.IN_RECOVERY),
        ):
            if is_one:
                ledgers.add(ledger_id)
            else:
                ledgers.discard(ledger_id)


def _observed(bookie: BookieView) -> ObservedBookie:
    name, registration, status = bookie.bookie_id, bookie.registration, bookie.status
    if registration is None:
        return ObservedBookie(
            name,
            registered=False,
            settled=False,
            incarnation=0,
            host=bookie.host,
            rack=bookie.rack,
            labels=bookie.labels,
        )
    why = bookie.problem if status is None else _unsettled(status)
    return ObservedBookie(
        name,
        registered=True,
        has_cookie=bookie.has_cookie,
        read_only=registration.read_only if status is None else status.read_only,
        read_only_by_change=status is not None and status.read_only_by_change,
        change_order=0 if status is None else status.change_order,
        settled=not why,
        unsettled_why=why,
        incarnation=registration.incarnation if status is None else status.incarnation,
        lossy_boot=0 if status is None else status.lossy_boot,
        version="" if status is None else status.version,
        host=registration.host,
        rack=registration.rack,
        labels=registration.labels,
    )


def _unsettled(status: BookieStatus) -> str:
    """The reason why the bookie's copies don't count, or ""."""
    if status.limbo_ledgers:
        return f"heals itself: {counted(status.limbo_ledgers, 'ledger')} in limbo"
    if status.healed_boot < status.lossy_boot:
        return "heals itself: it has lost entries, and not all are back"
    if status.lacking_ledgers:
        return f"lacks entries of {counted(status.lacking_ledgers, 'ledger')}"
    return ""
