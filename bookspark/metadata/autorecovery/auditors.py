"""What the auditors of a cluster share: the election of one of them, the requests to it, and its reports.

Law: at most one session holds the election's lock. An auditor that has lost its session, and does not know it yet, may mark
ledgers that its successor marks too. Marks merge, so a double mark costs one more look at the ledger. Below
``/ledgers/underreplication``::

    auditorelection            ephemeral: who the auditor is
    auditorstates/<name>       ephemeral: what an auditor sees, an ``AuditorState``
    lostbookierecoverydelay    seconds, in decimal; stands above each auditor's own option
    checkallledgersctime       a ``CheckReport`` of the last exact check
    triggeraudit               there while somebody waits for an exact check; its version counts who asked

Source: BookKeeper's ``AuditorElector``, ``ZkLedgerUnderreplicationManager``.
"""

from __future__ import annotations

import logging
import math
from typing import TypeVar

import msgspec

from bookspark.errors import UnreadableRecordError
from bookspark.metadata.autorecovery.underreplication_tasks import DISABLE
from bookspark.metadata.documents.locks import Changes, Lock, give_back, held, holder_of, new_token, take_lock
from bookspark.metadata.documents.tree import Tree, publish
from bookspark.metadata.records.codec import learn
from bookspark.metadata.records.documents import proven_struct, read_struct
from bookspark.metadata.records.names import encode_name

log = logging.getLogger(__name__)

Value = TypeVar("Value")

_ELECTION, _STATES, _DELAY, _CHECK, _TRIGGER = (
    "auditorelection",
    "auditorstates",
    "lostbookierecoverydelay",
    "checkallledgersctime",
    "triggeraudit",
)


class AuditorState(msgspec.Struct, frozen=True):
    """What the auditor sees at this moment."""

    auditor: str
    waiting: dict[str, int] = {}
    """Bookies that are gone, and the wall clock, in milliseconds, at which each counts as lost."""
    lost: tuple[str, ...] = ()
    checking: bool = False
    """An exact check is under way."""


class CheckReport(msgspec.Struct, frozen=True):
    """What an exact check found."""

    finished_at_ms: int
    seconds: float
    ledgers: int
    """Number of ledgers that were looked at."""
    marked: int
    """Number of these ledgers that lack copies."""
    skipped: dict[str, str] = {}
    """Bookies that could not be asked, and why: what they hold is not known."""
    unreadable: dict[int, str] = {}
    """Ledgers whose records can't be decoded, and why: what they lack is not known."""


class Auditors:
    """The election and its documents, through one session. Each thread that calls ``wait`` needs an object of its own."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._token = new_token()
        self._changes = Changes(tree, (_ELECTION, _DELAY, _TRIGGER, DISABLE))

    # -- election

    def elect(self, name: str) -> Lock | None:
        """Become the auditor under this name, until ``resign`` or the end of the session; None if there is another."""
        return take_lock(self._tree, _ELECTION, name, self._token)

    def elected(self, lock: Lock) -> bool:
        """Does the session still hold ``lock``, which ``elect`` returned?"""
        return held(self._tree, lock)

    def resign(self, lock: Lock) -> None:
        """Give up the election's lock."""
        give_back(self._tree, lock)

    def auditor(self) -> str | None:
        """The name of the auditor; None while there is none."""
        found = self._tree.read(_ELECTION)
        return holder_of(None if found is None else found.value)

    # -- what it is told

    def delay_seconds(self) -> float | None:
        """Seconds after which a bookie that is gone counts as lost. None: each auditor's own option holds. Raises
        UnreadableRecordError for what is no number of seconds."""
        found = self._tree.read(_DELAY)
        if found is None:
            return None
        try:
            seconds = float(found.value)
        except ValueError:
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise UnreadableRecordError(
                f"{_DELAY} is {found.value[:40]!r} and no number of seconds; set it by `bookspark autorecovery delay SECONDS`"
            )
        return seconds

    def set_delay(self, seconds: float | None) -> None:
        """Set the delay for all auditors. None: each auditor's own option holds."""
        if seconds is None:
            self._tree.delete(_DELAY)
            return
        document = f"{seconds:g}".encode()
        while not self._tree.create(_DELAY, document):
            found = self._tree.read(_DELAY)
            if found is not None and self._tree.write(_DELAY, document, found.version):
                return

    def trigger(self) -> None:
        """Ask for an exact check at once."""
        self._tree.touch(_TRIGGER)

    def triggered(self) -> int | None:
        """The version to give to ``answer_trigger``; None if nobody asks for an exact check."""
        found = self._tree.read(_TRIGGER)
        return None if found is None else found.version

    def answer_trigger(self, version: int) -> None:
        """Remove the trigger: a check that began after it is done. A trigger that was set again meanwhile stays."""
        self._tree.delete(_TRIGGER, version)

    # -- what it tells

    def publish_state(self, state: AuditorState) -> None:
        """Publish the state until the session ends."""
        publish(self._tree, _state_path(state.auditor), proven_struct(state, "state of an auditor"))

    def state(self) -> AuditorState | None:
        """The auditor's state; None if there is no auditor or it has not looked yet."""
        auditor = self.auditor()
        found = None if auditor is None else self._tree.read(_state_path(auditor))
        return None if found is None else _decoded(found.value, AuditorState)

    def note_check(self, report: CheckReport) -> None:
        """Keep the report of a check for ``last_check``."""
        found = self._tree.read(_CHECK)
        document = proven_struct(report, "report of a check")
        # Another auditor's report of the same moment is as good as this one.
        if found is None:
            self._tree.create(_CHECK, document)
        else:
            self._tree.write(_CHECK, document, found.version)

    def last_check(self) -> CheckReport | None:
        """The report of the last exact check; None if there was none."""
        found = self._tree.read(_CHECK)
        return None if found is None else _decoded(found.value, CheckReport)

    # -- those who wait

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until the election, the delay, the trigger or the switch has changed since the last wait, or ``wake`` is called.
        Returns True then, and at the first call at once; False after ``timeout_seconds``."""
        return self._changes.wait(timeout_seconds)

    def wake(self) -> None:
        """End the wait of another thread."""
        self._changes.wake()


def _decoded(document: bytes, kind: type[Value]) -> Value | None:
    """The value in ``document``. None if it can't be decoded: it is written again before long."""
    try:
        return read_struct(document, kind, f"{kind.__name__} of the auditor")
    except UnreadableRecordError as error:
        log.warning("%s", error)
        return None


def _state_path(auditor: str) -> str:
    return f"{_STATES}/{encode_name(auditor)}"


learn(AuditorState, CheckReport)
