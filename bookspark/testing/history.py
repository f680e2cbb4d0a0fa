"""History of the clients' observations, checked against the laws of a ledger store.

Law: an append is recorded before its call, an observation after its call returned. So an event recorded before the start of
another call happened before that call. The checker knows nothing of bookies, quorums or faults. It compares all clients'
observations of a ledger (LAC is the last add confirmed):

- an entry that is acknowledged, or covered by an observed LAC or close, is never absent afterwards;
- an entry has one value: the payload appended under its id;
- an observer's LAC never goes back, and no LAC is beyond the end;
- a closed ledger has one end for all observers, at or above every acknowledged entry, and the length of its payloads;
- after a successful close by the writer, a failed append is not in the ledger; otherwise it may be.
"""

from __future__ import annotations

import bisect
import threading
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from bookspark.support.arguments import checks_methods

EVENTS_KEPT = 200
"""Events kept for each ledger, for excerpts."""
_PAYLOAD_BYTES_SHOWN = 40
_CONTEXT_EVENTS = 30


class EventKind(Enum):
    APPENDED = "appended"
    """An append is about to be called."""
    ACKED = "acked"
    FAILED = "failed"
    READ = "read"
    ABSENT = "absent"
    """A read reported that the entry does not exist."""
    LAC = "lac"
    """A client saw a LAC: ``entry_id``."""
    CLOSED = "closed"
    """A client saw the ledger closed, or closed it by recovery. ``entry_id`` is its last entry."""
    CLOSED_BY_WRITER = "closed by writer"
    """The writer's own close succeeded. ``entry_id`` is the ledger's last entry."""
    FAULT = "fault"
    """A fault of the cluster. It belongs to no ledger."""


class Event(NamedTuple):
    kind: EventKind
    client: str
    """Name of the observing handle."""
    ledger_id: int = -1
    entry_id: int = -1
    payload: bytes = b""
    length: int = 0
    """Length of the closed ledger, in bytes."""
    note: str = ""
    since: int = 0
    """Number of the last event before the call: the entry was absent at some moment after it."""
    number: int = 0
    """Position from 1, set by the history."""
    seconds: float = 0.0
    """Time since the history's start, set by the history."""

    def __str__(self) -> str:
        what = f"{self.number:>8} {self.seconds:10.4f} s  {self.client}: {self.kind.value}"
        if self.ledger_id >= 0:
            what += f" ledger {self.ledger_id} entry {self.entry_id}"
        if self.kind in (EventKind.APPENDED, EventKind.READ):
            what += (
                f" = {self.payload[:_PAYLOAD_BYTES_SHOWN]!r}{'…' if len(self.payload) > _PAYLOAD_BYTES_SHOWN else ''}"
            )
        if self.kind in (EventKind.CLOSED, EventKind.CLOSED_BY_WRITER):
            what += f", {self.length} bytes"
        return f"{what} {self.note}".rstrip()


class Violation(NamedTuple):
    """A broken rule, the event that breaks it, and an excerpt of the history."""

    rule: str
    event: Event
    excerpt: tuple[str, ...] = ()
    """Last events of the entry and the ledger, the ledger's first end, and the last faults, in order. Taken at once,
    because the history discards them some hundred events later."""

    def __str__(self) -> str:
        return f"{self.rule}:\n{self.event}"


class _Ledger:
    __slots__ = ("closed", "closed_by_writer", "confirmed", "confirmed_since", "failed", "lacs", "payloads")

    def __init__(self) -> None:
        self.payloads: dict[int, bytes] = {}
        self.failed: dict[int, Event] = {}
        self.lacs: dict[str, int] = {}
        self.confirmed = array("q")
        """Entry ids, ascending: each confirmed together with all ids below it."""
        self.confirmed_since = array("q")
        """Parallel to ``confirmed``: the number of the confirming event."""
        self.closed: tuple[int, int] | None = None
        self.closed_by_writer = False

    def confirm(self, entry_id: int, number: int) -> None:
        if entry_id > self.highest_confirmed():
            self.confirmed.append(entry_id)
            self.confirmed_since.append(number)

    def highest_confirmed(self) -> int:
        return self.confirmed[-1] if self.confirmed else -1

    def was_confirmed(self, entry_id: int, number: int) -> bool:
        at = bisect.bisect_left(self.confirmed, entry_id)
        return at < len(self.confirmed) and self.confirmed_since[at] <= number


class Checker:
    """Checks a history, event by event."""

    def __init__(self) -> None:
        self._ledgers: defaultdict[int, _Ledger] = defaultdict(_Ledger)

    def observe(self, event: Event) -> Violation | None:
        """Take the next event. Returns the rule that it breaks, or None."""
        if event.kind is EventKind.FAULT:
            return None
        rule = _RULES[event.kind](self._ledgers[event.ledger_id], event)
        return None if rule is None else Violation(rule, event)


def _appended(ledger: _Ledger, event: Event) -> str | None:
    if event.entry_id in ledger.payloads:
        return "an id is given to one append only"
    ledger.payloads[event.entry_id] = event.payload
    return None


def _acked(ledger: _Ledger, event: Event) -> str | None:
    if event.entry_id not in ledger.payloads:
        return "only what was appended is acknowledged"
    if event.entry_id in ledger.failed:
        return "an append that raised is not acknowledged afterwards"
    return _confirmed(ledger, event, "what is acknowledged is in the closed ledger")


def _failed(ledger: _Ledger, event: Event) -> str | None:
    ledger.failed[event.entry_id] = event
    if event.entry_id <= ledger.highest_confirmed() and ledger.closed_by_writer:
        return "an append that raised is not in a ledger that its writer closed"
    return None


def _read(ledger: _Ledger, event: Event) -> str | None:
    if ledger.payloads.get(event.entry_id) != event.payload:
        return "an entry has the value that was appended under its id"
    if ledger.closed is not None and event.entry_id > ledger.closed[0]:
        return "nothing is read beyond the end of a closed ledger"
    return None


def _absent(ledger: _Ledger, event: Event) -> str | None:
    if ledger.was_confirmed(event.entry_id, event.since):
        return "an entry that was confirmed is never absent"
    return None


def _lac(ledger: _Ledger, event: Event) -> str | None:
    if event.entry_id < ledger.lacs.get(event.client, -1):
        return "the LAC never goes back"
    ledger.lacs[event.client] = event.entry_id
    return _confirmed(ledger, event, "a LAC is at or below the end of the closed ledger")


def _closed(ledger: _Ledger, event: Event) -> str | None:
    end = (event.entry_id, event.length)
    if ledger.closed is None:
        ledger.closed = end
        if event.entry_id < ledger.highest_confirmed():
            return f"a ledger is closed at or above what was confirmed, {ledger.highest_confirmed()}"
        ledger.confirm(event.entry_id, event.number)
        if not all(entry_id in ledger.payloads for entry_id in range(event.entry_id + 1)):
            return "all that is in a closed ledger was appended"
        if event.length != sum(len(ledger.payloads[entry_id]) for entry_id in range(event.entry_id + 1)):
            return "the length of a closed ledger is that of its entries"
    elif ledger.closed != end:
        return f"a closed ledger has one end, {ledger.closed[0]} with {ledger.closed[1]} bytes"
    if event.kind is EventKind.CLOSED_BY_WRITER:
        ledger.closed_by_writer = True
        if any(entry_id <= event.entry_id for entry_id in ledger.failed):
            return "an append that raised is not in a ledger that its writer closed"
    return None


def _confirmed(ledger: _Ledger, event: Event, rule: str) -> str | None:
    if event.entry_id >= 0 and event.entry_id not in ledger.payloads:
        return "only what was appended is confirmed"
    if ledger.closed is not None and event.entry_id > ledger.closed[0]:
        return f"{rule}, which ends at {ledger.closed[0]}"
    ledger.confirm(event.entry_id, event.number)
    return None


_RULES = {
    EventKind.APPENDED: _appended,
    EventKind.ACKED: _acked,
    EventKind.FAILED: _failed,
    EventKind.READ: _read,
    EventKind.ABSENT: _absent,
    EventKind.LAC: _lac,
    EventKind.CLOSED: _closed,
    EventKind.CLOSED_BY_WRITER: _closed,
}


@checks_methods
class History:
    """Records events, from any thread, and checks each at once.

    ``violations`` lists the violations, ``violated`` is set at the first, and ``counts`` counts events by kind. ``watcher``
    gets each event in order, for another judge.
    """

    def __init__(self, watcher: Callable[[Event], object] | None = None) -> None:
        self._watcher = watcher
        self.violations: list[Violation] = []
        self.violated = threading.Event()
        self.counts: Counter[EventKind] = Counter()
        self._lock = threading.Lock()
        self._checker = Checker()
        self._began = time.monotonic()
        self._number = 0
        self._kept: defaultdict[int, deque[Event]] = defaultdict(lambda: deque(maxlen=EVENTS_KEPT))
        self._ends: dict[int, Event] = {}
        """The first observed end of each ledger."""

    def now(self) -> int:
        """Number of the last event, for an event's ``since``."""
        return self._number

    def record(self, event: Event) -> None:
        """Number the event, time it, keep it, and check it."""
        with self._lock:
            self._number += 1
            event = event._replace(number=self._number, seconds=time.monotonic() - self._began)
            self.counts[event.kind] += 1
            if self._watcher is not None:
                self._watcher(event)
            self._kept[event.ledger_id].append(event._replace(payload=event.payload[: _PAYLOAD_BYTES_SHOWN + 1]))
            if event.kind in (EventKind.CLOSED, EventKind.CLOSED_BY_WRITER):
                self._ends.setdefault(event.ledger_id, event)
            violation = self._checker.observe(event)
            if violation is not None:
                self._violated(violation)

    def report(self, rule: str, note: str) -> None:
        """Add a violation without an event: a hang or an unexpected exception."""
        with self._lock:
            event = Event(EventKind.FAULT, "", note=note, number=self._number, seconds=time.monotonic() - self._began)
            self._violated(Violation(rule, event))

    def _violated(self, violation: Violation) -> None:
        event = violation.event
        ledger, faults = list(self._kept[event.ledger_id]), list(self._kept[-1])
        about = [other for other in ledger if other.entry_id == event.entry_id]
        shown = {*ledger[-_CONTEXT_EVENTS:], *about[-_CONTEXT_EVENTS:], *faults[-_CONTEXT_EVENTS:]}
        if event.ledger_id in self._ends:
            shown.add(self._ends[event.ledger_id])
        excerpt = tuple(str(other) for other in sorted(shown, key=lambda other: other.number))
        self.violations.append(violation._replace(excerpt=excerpt))
        self.violated.set()
