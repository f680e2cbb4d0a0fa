"""Checkpointing: checkpoints are taken in steps on the loop, and written in any thread.

Law: snapshots are written in the order in which they were taken, and only once the control logs have all earlier losses.
Otherwise rows of removed logs would return, or entries would be missing without a reason. An unwritten snapshot stays pending,
and is written with the next. ``write`` returns the directories with a durable checkpoint, because the removal of logs waits for
it. A failed checkpoint costs a longer boot and nothing else.

A snapshot takes the ledgers that changed since the last, so a checkpoint costs as much as changed. It takes all ledgers if no
checkpoint on the disk can be extended.
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
_LEDGER_WEIGHT = 20
_UNCHANGED_WEIGHT = 4
"""Cost of an unchanged ledger, which may be packed."""
_ROWS_A_STEP = 1 << 11
"""Smaller steps, because the search for the directory of a single row takes longer."""
_NO_ROWS = LedgerRows(array("q"), array("q"), array("q"))

Prepared = list[tuple[LogDirectory, Snapshot]]
"""Snapshots of one moment, ready to be written."""

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
        """``losses_durable``: set while the control logs have every loss that the index reflects."""
        self._file_system = file_system
        self._live = live
        self._control = control
        self._index = index
        self._losses_durable = losses_durable
        self._alone = len(live) == 1
        self._taken: list[int] = []
        self._writing = threading.Lock()
        self._pending: dict[str, list[Snapshot]] = defaultdict(list)
        self._whole = False
        """A part on a disk is damaged, so the next checkpoint must hold everything."""

    def outdated(self) -> None:
        """Force the next checkpoint, after a change of the index other than adds."""
        self._taken = []

    def damages(self, directory: LogDirectory) -> list[Damage]:
        """Damages of the checkpoint on the disk, in any thread. Raises OSError."""
        _, found = check_checkpoint(self._file_system, directory.path, directory.parts or ())
        if found and self._writing.acquire(timeout=_WRITE_SECONDS_MAX):
            # The part may have been replaced meanwhile.
            try:
                _, found = check_checkpoint(self._file_system, directory.path, directory.parts or ())
            finally:
                self._writing.release()
        return found

    def spoiled(self) -> None:
        """Force a next checkpoint that holds everything, after damage on a disk."""
        self._whole, self._taken = True, []

    @property
    def due(self) -> bool:
        return [directory.covered() for directory in self._live] != self._taken

    def take(self) -> Steps[Prepared]:
        """Take a snapshot of each directory, in steps of some milliseconds. Ledgers and rows may be added between two steps: they
        are above the covered locations. Nothing may be removed or moved meanwhile, except the rows of a failed directory. Its
        snapshot is dropped, because the next start may be able to read the directory."""
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
                    frozenset(directory.rewritten),
                    whole=whole,
                    decisions=self._control.decisions,
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
        """Write the snapshots, in any thread; return the paths of the directories with a durable checkpoint."""
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
    """Give each snapshot its share of the changes since the last (``whole``: of all ledgers), in steps of some milliseconds at
    most. ``look``: returns the known ledger."""
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
    """Each snapshot's share of the rows, and the number of the first row that only a later snapshot takes."""
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
