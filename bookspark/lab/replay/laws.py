"""The checkers' laws, applied to joined histories.

Law: existing judges give every verdict: ``bookspark.testing.history.Checker`` on the clients' calls and results in order,
the simulator's checkers on the end state, as far as the records show it (``View``). A law that needs unrecorded facts, such
as contents of entries, is not judged. A loss accepted by an operator breaks no law.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator
from types import SimpleNamespace
from typing import Any, NamedTuple

from bookspark.lab.replay.joining import Joined, Ledger
from bookspark.lab.simulation.checkers import CHECKERS
from bookspark.testing.history import Checker, Event, EventKind

OF_THE_END = (
    "no_divergence_between_writer_and_metadata",
    "all_committed_entries_reach_ack_quorum",
    "last_add_confirmed_is_confirmed",
)
"""The simulator's checkers that judge the end state."""
FENCE = "no_add_after_the_fence"


class Broken(NamedTuple):
    """A broken law and its ledger."""

    law: str
    ledger_id: int
    what: str
    at_ns: int
    """Time of the violation, or the end of the record."""


class View:
    """A ledger as seen by a simulator's checker (``bookspark.lab.simulation.view.WorldView``)."""

    def __init__(self, ledger: Ledger) -> None:
        m = ledger.metadata
        assert m is not None
        self.metadata, self.deleted = m, False
        self.options = SimpleNamespace(ack_quorum=m.ack_quorum)
        self.writer = SimpleNamespace(last_add_confirmed=ledger.confirmed)
        self.bookies = {
            name: SimpleNamespace(rows=one.rows, ledger=SimpleNamespace(last_add_confirmed=one.last_add_confirmed))
            for name, one in ledger.bookies.items()
        }
        self.lost_boots = sum(len(one.lossy_boots) for one in ledger.bookies.values())
        self._acked = ledger.acked

    def holders(self, entry_id: int) -> list[str]:
        """The bookies of the entry's write set that acknowledged it."""
        return [name for name in self.metadata.write_set_of(entry_id) if name in self._acked.get(entry_id, ())]


def broken_laws(joined: Joined, torn: Collection[str]) -> Iterator[Broken]:
    """The broken laws, by ascending ledger id. ``torn``: the processes whose record has no clean end."""
    for _, ledger in sorted(joined.ledgers.items()):
        yield from broken_by(ledger, torn)


def broken_by(ledger: Ledger, torn: Collection[str]) -> Iterator[Broken]:
    for name, bookie in sorted(ledger.bookies.items()):
        if bookie.taken_after_fence is not None:
            process, span = bookie.taken_after_fence
            what = f"{name} (process {process}) took an add of the writer after its fence"
            yield Broken(FENCE, ledger.ledger_id, what, span.end_ns)
    if ledger.metadata is None or ledger.given_up or not ledger.writers:
        return
    last_ns = max((one.at_ns for one in ledger.seen), default=0)
    view: Any = View(ledger)
    for law in OF_THE_END:
        if law == "last_add_confirmed_is_confirmed" and not ledger.whole(torn):
            continue
        if (violation := CHECKERS[law](view)) is not None:
            yield Broken(law, ledger.ledger_id, violation, last_ns)
    yield from _history(ledger, torn)


class _Payload:
    """Stand-in for a payload, with only its length. The last entry of a batch has the length of all."""

    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> bytes:
        return b""


def _history(ledger: Ledger, torn: Collection[str]) -> Iterator[Broken]:
    """The clients' calls and results, judged in order: appends at their earliest possible time, all else at the latest."""
    whole = ledger.whole(torn)
    seen = sorted(ledger.seen, key=lambda one: (one.at_ns, one.kind is not EventKind.APPENDED))
    payloads: dict[int, Any] = {}
    checker, times = Checker(), [one.at_ns for one in seen]
    for number, one in enumerate(seen, 1):
        length, payload = one.length, payloads.get(one.entry_id, b"") if one.kind is EventKind.READ else b""
        if one.kind is EventKind.APPENDED:
            payload = payloads[one.entry_id] = _Payload(one.length)
            length = 0
        if not whole and one.kind is not EventKind.APPENDED and one.entry_id not in payloads and one.entry_id >= 0:
            # The record lacks the writer's last appends.
            continue
        if one.kind in (EventKind.CLOSED, EventKind.CLOSED_BY_WRITER) and not _ends_an_append(ledger, one.entry_id):
            # Lengths within an append are not recorded.
            continue
        since = _before(times, one.since_ns)
        event = Event(one.kind, one.who, ledger.ledger_id, one.entry_id, payload, length, since=since, number=number)
        violation = checker.observe(event)
        if violation is not None:
            end = f", {one.length} bytes" if one.length and one.kind is not EventKind.APPENDED else ""
            yield Broken(
                violation.rule, ledger.ledger_id, f"{one.who}: {one.kind.value} {one.entry_id}{end}", one.at_ns
            )
            return


def _ends_an_append(ledger: Ledger, entry_id: int) -> bool:
    return entry_id < 0 or entry_id in ledger.batch_ends


def _before(times: list[int], ns: int) -> int:
    """Number of events surely before ``ns``."""
    return bisect_right(times, ns)
