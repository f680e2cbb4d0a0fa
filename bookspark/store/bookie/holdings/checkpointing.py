"""Making checkpoints: taking them in steps on the loop, writing them in any thread.

Law: what was taken is written in the order in which it was taken, and not before the control logs have what was lost until then.
Otherwise rows would come back that point into logs which are removed by then, or entries would be missing and nothing would say
why. What can't be written stays pending, and is written with the next one. ``write`` tells of which directories the checkpoint
is durable, because the removal of logs has to wait for that. A checkpoint that can't be written costs a longer boot and nothing
else.

What is taken are the ledgers that changed since the last time, so a checkpoint costs what changed. All ledgers are taken if there
is no checkpoint on the disk that a part can be added to.
"""

from __future__ import annotations

import logging
import threading
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence

from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.store.bookie.checks import Damage, check_checkpoint
from bookspark.store.bookie.disk.checkpoint import DamagedPartError, Snapshot, write_checkpoint
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.disk.file_system import FileSystem
from bookspark.store.bookie.disk.index import Index, LedgerRows
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.steps import Steps

_WRITE_SECONDS_MAX = 60.0
_WEIGHT_A_STEP = 1 << 13
"""How much one step takes, counted in rows."""
_LEDGER_WEIGHT = 20
"""A ledger counts as this number of rows."""
_UNCHANGED_WEIGHT = 4
"""One that has not changed, and may be packed, as this number."""
_ROWS_A_STEP = 1 << 11
"""To find out the directory of a single row takes longer."""
_NO_ROWS = LedgerRows(array("q"), array("q"), array("q"))

Prepared = list[tuple[LogDirectory, Snapshot]]
"""Checkpoints of one moment that are ready to be written."""

log = logging.getLogger(__name__)


class Checkpoints:
    """The checkpoints of one bookie. The owner keeps ``live``, ``control`` and ``index`` up to date."""

    def __init__(
        self,
        file_system: FileSystem,
        live: Sequence[LogDirectory],
        control: ControlState,
        index: Index,
        losses_durable: threading.Event,
    ) -> None:
        """``losses_durable``: set while the control logs have everything that was lost, and so left the index."""
        self._file_system = file_system
        self._live = live
        self._control = control
        self._index = index
        self._losses_durable = losses_durable
        self._alone = len(live) == 1
        self._taken: list[int] = []
        self._writing = threading.Lock()
        self._pending: dict[str, list[Snapshot]] = defaultdict(list)
        """What was taken of each directory and is not written yet, by its path."""
        self._whole = False
        """A part on a disk is damaged: the next checkpoint has to hold everything."""

    def outdated(self) -> None:
        """Something else than adds changed the index: the next checkpoint is not left out."""
        self._taken = []

    def damages(self, directory: LogDirectory) -> list[Damage]:
        """What is damaged of the checkpoint on the disk, in any thread. Raises OSError."""
        _, found = check_checkpoint(self._file_system, directory.path, directory.parts or ())
        if found and self._writing.acquire(timeout=_WRITE_SECONDS_MAX):
            # It may have been replaced meanwhile.
            try:
                _, found = check_checkpoint(self._file_system, directory.path, directory.parts or ())
            finally:
                self._writing.release()
        return found

    def spoiled(self) -> None:
        """A checkpoint on a disk is damaged: the next one has to hold everything, and is not left out."""
        self._whole, self._taken = True, []

    @property
    def due(self) -> bool:
        """Is there anything that the last checkpoint does not hold?"""
        return [directory.covered() for directory in self._live] != self._taken

    def take(self) -> Steps[Prepared]:
        """Take a checkpoint of each directory, in steps of some milliseconds. Ledgers and rows may be added between two steps:
        they are above the covered locations. Nothing may be removed or moved meanwhile, but for the rows of a directory that
        fails: of that one nothing is taken, because the next start may be able to read it."""
        whole = self._whole or any(
            directory.parts is None and not self._pending[directory.path] for directory in self._live
        )
        covered = [directory.covered() for directory in self._live]
        prepared = [
            (
                directory,
                Snapshot(
                    None if self._alone else frozenset(entry_log.number for entry_log in directory.logs),
                    directory.covered(),
                    False,
                    frozenset(directory.rewritten),
                    whole=whole,
                ),
            )
            for directory in self._live
        ]
        yield from fill([snapshot for _, snapshot in prepared], self._control.ledgers.look, self._index, whole=whole)
        yield from self._control.rest()
        self._taken = covered
        self._whole = self._whole and not whole
        prepared = [(directory, snapshot) for directory, snapshot in prepared if not directory.retired]
        for directory, snapshot in prepared:
            if whole:
                self._pending[directory.path].clear()
            self._pending[directory.path].append(snapshot)
        return prepared

    def write(self, prepared: Prepared) -> set[str]:
        """Write what was taken, in any thread; returns the paths of the directories whose checkpoint is durable now."""
        durable: set[str] = set()
        if not self._losses_durable.is_set():
            log.warning("that entries were lost is not noted yet, so the checkpoint is written later")
            self._taken = []
            return durable
        if not self._writing.acquire(timeout=_WRITE_SECONDS_MAX):
            log.error("the last checkpoint is still being written; this one is left out")
            return durable
        try:
            for directory, _ in prepared:
                pending = self._pending[directory.path]
                taken = list(pending)
                try:
                    if taken:
                        directory.parts = write_checkpoint(
                            self._file_system, directory.path, directory.parts or [], taken
                        )
                    durable.add(directory.path)
                    for snapshot in taken:
                        if snapshot in pending:
                            pending.remove(snapshot)
                except OSError as error:
                    log.error("%s: the checkpoint can't be written: %s; the last one stays", directory.path, error)
                    self._whole |= isinstance(error, DamagedPartError)
                    self._taken = []
        finally:
            self._writing.release()
        return durable


def fill(
    snapshots: Sequence[Snapshot], look: Callable[[int], BookieLedger | None], index: Index, *, whole: bool
) -> Steps[None]:
    """Let every snapshot take what belongs to it of what changed since the last time (``whole``: of all there is), in steps of
    some milliseconds at most. ``look`` finds what is known of a ledger."""
    weight = 0
    ids, forgotten = index.begin_checkpoint(whole=whole)
    for ledger_id in ids:
        change = index.take_change(ledger_id, anew=whole or ledger_id in forgotten)
        if change is None:
            weight += _UNCHANGED_WEIGHT
        else:
            weight += _LEDGER_WEIGHT + len(change.rows)
            taker = next((snapshot for snapshot in snapshots if snapshot.holds_all(change.rows)), None)
            if taker is not None:
                shares = [change.rows if snapshot is taker else _NO_ROWS for snapshot in snapshots]
            else:
                shares, behind = yield from _shared(snapshots, change.rows)
                if behind is not None:
                    index.take_again(ledger_id, change.clean + behind)
            ledger = look(ledger_id)
            for snapshot, rows in zip(snapshots, shares, strict=True):
                if len(rows) or change.lost_some:
                    confirmed = ledger.last_add_confirmed if ledger is not None else NO_ENTRY
                    replicated = ledger.last_add_fully_replicated if ledger is not None else NO_ENTRY
                    snapshot.add(ledger_id, confirmed, replicated, change.since, rows)
        index.rest(ledger_id)
        if weight >= _WEIGHT_A_STEP:
            weight = 0
            yield None
    yield from index.end_checkpoint()
    for snapshot in snapshots:
        snapshot.end()


def _shared(snapshots: Sequence[Snapshot], rows: LedgerRows) -> Steps[tuple[list[LedgerRows], int | None]]:
    """The rows that each snapshot takes, and the number of the first row that none takes now and one will later."""
    shares = [LedgerRows(array("q"), array("q"), array("q")) for _ in snapshots]
    behind: int | None = None
    for i, (first, where, extent) in enumerate(zip(rows.first, rows.where, rows.extent, strict=True)):
        for snapshot, share in zip(snapshots, shares, strict=True):
            if snapshot.holds(where):
                share.first.append(first)
                share.where.append(where)
                share.extent.append(extent)
                break
        else:
            if behind is None and any(snapshot.may_hold_later(where) for snapshot in snapshots):
                behind = i
        if i % _ROWS_A_STEP == _ROWS_A_STEP - 1:
            yield None
    return shares, behind
