"""Shared state of a cluster's auditors: their election, requests to the auditor, and its reports.

Law: at most one session holds the election's lock. An auditor that lost its session unnoticed may mark the same ledgers as its
successor. Marks merge, so a double mark costs one more look at the ledger. Below ``/ledgers/underreplication``::

    auditorelection            ephemeral: the auditor's lock
    auditorstates/<name>       ephemeral: an auditor's view, an ``AuditorState``
    lostbookierecoverydelay    seconds, in decimal; overrides each auditor's own option
    lostBookieRecoveryDelay    the same in a cluster begun for BookKeeper's clients, in whole seconds
    checkallledgersctime       a ``CheckReport`` of the last exact check
    triggeraudit               exists while an exact check is requested; its version counts requests

In a cluster begun for BookKeeper's clients, ``checkallledgersctime`` is in BookKeeper's format, and the election has votes::

    auditorelection/V_0000000042    ephemeral: a vote, in the format of a lock

Source: BookKeeper's ``AuditorElector``, ``ZkLedgerAuditorManager``, ``ZkLedgerUnderreplicationManager``.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

from bookspark.errors import UnreadableRecordError
from bookspark.store.metadata.autorecovery.underreplication_tasks import DISABLE
from bookspark.store.metadata.documents.locks import (
    Changes,
    Lock,
    give_back,
    held,
    holder_of,
    new_lock,
    new_token,
    take_lock,
)
from bookspark.store.metadata.documents.tree import Tree, publish, put
from bookspark.store.metadata.records.bookkeeper_texts import check_bytes, check_of, is_foreign
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
from bookspark.store.metadata.records.names import encode_name
from bookspark.store.metadata.records.versioned import compare_and_set

log = logging.getLogger(__name__)

Value = TypeVar("Value")

ELECTION = "auditorelection"
_VOTE = re.compile(r"V_(\d+)")
_STATES, _CHECK, _TRIGGER = "auditorstates", "checkallledgersctime", "triggeraudit"
_DELAY, _BOOKKEEPERS_DELAY = "lostbookierecoverydelay", "lostBookieRecoveryDelay"


class AuditorState(msgspec.Struct, frozen=True):
    auditor: str
    waiting: dict[str, int] = {}
    """Gone bookies, each with the time at which it counts as lost, in ms since 1970, by the metadata store's clock."""
    lost: tuple[str, ...] = ()
    checking: bool = False


class CheckReport(msgspec.Struct, frozen=True):
    finished_at_ms: int
    """By the metadata store's clock."""
    seconds: float
    ledgers: int
    marked: int
    """Examined ledgers that lack copies."""
    skipped: dict[str, str] = {}
    """Bookies that did not answer, with the reason: their holdings are unknown."""
    unreadable: dict[int, str] = {}
    """Ledgers with undecodable records, with the reason: their lacking copies are unknown."""


class Auditors:
    """The election and its documents, through one session. Each thread that calls ``wait`` needs an object of its own."""

    def __init__(self, tree: Tree, bookkeepers: bool = False) -> None:
        """``bookkeepers``: BookKeeper's auditors may take part, and their formats apply."""
        self._tree = tree
        self._token = new_token()
        self._bookkeepers = bookkeepers
        self._votes = _Votes(tree, self._token)
        self._delay = _BOOKKEEPERS_DELAY if bookkeepers else _DELAY
        self._changes = Changes(tree, (ELECTION, self._delay, _TRIGGER, DISABLE))

    # -- election

    def elect(self, name: str) -> Lock | None:
        """Become the auditor under this name, until ``resign`` or the end of the session; None if there is another."""
        if self._bookkeepers:
            return self._votes.elect(name, self.wake)
        return take_lock(self._tree, ELECTION, name, self._token)

    def elected(self, lock: Lock) -> bool:
        """True while the session holds ``lock``, which ``elect`` returned."""
        return held(self._tree, lock)

    def resign(self, lock: Lock) -> None:
        if self._bookkeepers:
            self._votes.withdraw(lock)
        else:
            give_back(self._tree, lock)

    def foreign(self) -> list[str]:
        """The names of BookKeeper's autorecovery processes that are the auditor of this cluster, or are candidates."""
        return self._votes.foreign()

    def auditor(self) -> str | None:
        if self._bookkeepers:
            return self._votes.auditor()
        found = self._tree.read(ELECTION)
        return holder_of(None if found is None else found.value)

    # -- requests to the auditor

    def delay_seconds(self) -> float | None:
        """Seconds after which a gone bookie counts as lost. None: each auditor's own option applies. Raises
        UnreadableRecordError if it is not a number of seconds."""
        found = self._tree.read(self._delay)
        if found is None:
            return None
        try:
            seconds = float(found.value)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise UnreadableRecordError(
                f"{self._delay} is {found.value[:40]!r} and no number of seconds; set it by `bookspark autorecovery delay "
                "SECONDS`"
            )
        return seconds

    def set_delay(self, seconds: float | None) -> None:
        """Set the delay for all auditors. None: each auditor's own option applies."""
        if seconds is None:
            self._tree.delete(self._delay)
            return
        document = f"{math.ceil(seconds) if self._bookkeepers else seconds:g}".encode()
        put_delay = partial(put, self._tree, self._delay)
        compare_and_set(self._delay, partial(self._tree.read, self._delay), lambda _: document, put_delay)

    def trigger(self) -> None:
        self._tree.touch(_TRIGGER)

    def triggered(self) -> int | None:
        """The version for ``answer_trigger``; None without a request for an exact check."""
        found = self._tree.read(_TRIGGER)
        return None if found is None else found.version

    def answer_trigger(self, version: int) -> None:
        """Remove the trigger after a check that began later. A trigger set again meanwhile stays."""
        self._tree.delete(_TRIGGER, version)

    # -- the auditor's reports

    def publish_state(self, state: AuditorState) -> None:
        publish(self._tree, _state_path(state.auditor), proven_struct(state, "state of an auditor"))

    def state(self) -> AuditorState | None:
        """The auditor's state; None without an auditor, or before its first look."""
        auditor = self.auditor()
        found = None if auditor is None else self._tree.read(_state_path(auditor))
        return None if found is None else _decoded(found.value, AuditorState)

    def note_check(self, report: CheckReport) -> None:
        found = self._tree.read(_CHECK)
        document = proven_struct(report, "report of a check")
        if self._bookkeepers:
            document = check_bytes(report.finished_at_ms, document)
        # Another auditor's report of the same moment is equally good.
        if found is None:
            self._tree.create(_CHECK, document)
        else:
            self._tree.write(_CHECK, document, found.version)

    def last_check(self) -> CheckReport | None:
        """The report of the last exact check; None if there was none."""
        found = self._tree.read(_CHECK)
        if found is None or found.value.startswith(b"{"):
            return None if found is None else _decoded(found.value, CheckReport)
        try:
            finished_at_ms, own = check_of(found.value)
        except ValueError as error:
            log.warning("the report of the last check can't be read: %s", error)
            return None
        # BookKeeper's auditor reports only the time of a check.
        return _decoded(own, CheckReport) if own else CheckReport(finished_at_ms, 0.0, 0, 0)

    # -- waiting

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for a change of the election, the delay, the trigger or the switch since the last wait, or for ``wake``: True,
        and at the first call at once; False after ``timeout_seconds``."""
        return self._changes.wait(timeout_seconds)

    def wake(self) -> None:
        self._changes.wake()


class _Votes:
    """The election together with BookKeeper's auditors, as one candidate sees it. ``token`` identifies its own vote.

    Law: each candidate has a vote, an ephemeral node numbered by ZooKeeper. The lowest number is the auditor, of whichever
    program, so only one auditor works at a time. A vote whose answer was lost is recognized by its document."""

    def __init__(self, tree: Tree, token: str) -> None:
        self._tree = tree
        self._token = token
        self._watched = ""

    def elect(self, name: str, changed: Callable[[], None]) -> Lock | None:
        """Vote, unless this candidate has a vote; returns its lock if it has the lowest number. Otherwise ``changed`` is
        called when the preceding vote is gone."""
        document = new_lock(ELECTION, name, self._token, bookkeepers=True).document
        votes = self._all()
        if document not in votes.values():
            self._tree.create_numbered(f"{ELECTION}/V_", document)
            votes = self._all()
        before = ""
        for path, found in votes.items():
            if found == document:
                break
            before = path
        else:
            return None
        if not before:
            return Lock(path, document)
        if before != self._watched:
            self._tree.watch(before, changed)
            self._watched = before
        return None

    def withdraw(self, lock: Lock) -> None:
        for path, found in self._all().items():
            if found == lock.document:
                self._tree.delete(path)

    def auditor(self) -> str | None:
        return holder_of(next(iter(self._all().values()), None))

    def foreign(self) -> list[str]:
        return [holder_of(document) or "" for document in self._all().values() if is_foreign(document)]

    def _all(self) -> dict[str, bytes]:
        """The votes by their paths, the lowest number first."""
        numbers = {name: int(found[1]) for name in self._tree.children(ELECTION) if (found := _VOTE.fullmatch(name))}
        paths = [f"{ELECTION}/{name}" for name in sorted(numbers, key=numbers.__getitem__)]
        documents = zip(paths, self._tree.read_each(paths), strict=True)
        return {path: document for path, document in documents if document is not None}


def _decoded(document: bytes, kind: type[Value]) -> Value | None:
    """The value in ``document``. None if it can't be decoded: the auditor soon writes it again."""
    try:
        return read_struct(document, kind, f"{kind.__name__} of the auditor")
    except UnreadableRecordError as error:
        log.warning("%s", error)
        return None


def _state_path(auditor: str) -> str:
    return f"{_STATES}/{encode_name(auditor)}"


learn(AuditorState, CheckReport)
