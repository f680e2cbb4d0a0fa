"""The results of commit threads: who is answered, and what becomes of a directory that failed or is full.

Law: entries that a failed directory had not synced are lost (``Holdings.lose``). Entries that a full directory could not write
were not added, and nobody was told that they were: they are absent like any others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookspark.bookie.commit.commit_items import ControlRewrite, ControlWrite, EntryWrite, Item, RelaxedWrite, SealLog
from bookspark.bookie.commit.commit_thread import CommitThread
from bookspark.bookie.disk.file_system import NoSpaceError
from bookspark.bookie.disk.index import location
from bookspark.bookie.holdings.disk_marks import Takes
from bookspark.bookie.holdings.disks import Disks
from bookspark.bookie.holdings.holdings import POSITION_MAX, Holdings
from bookspark.bookie.holdings.log_directory import LogDirectory
from bookspark.wire.batch_prefix import HEADER_OFFSET
from bookspark.wire.header import Status, decode


class CommitResults:
    """Takes the results of one bookie's commit threads. Owned by the loop."""

    def __init__(self, holdings: Holdings, disks: Disks) -> None:
        self._holdings = holdings
        self._disks = disks
        self._by_thread = {directory.commit: directory for directory in holdings.directories}
        self._relief: tuple[int, Callable[[], None]] | None = None
        self.bytes_in_flight = 0
        """The bytes of batches that are admitted and not durable yet."""

    def when_below(self, bytes_in_flight: int, relieved: Callable[[], None]) -> None:
        """Call ``relieved`` once, when no more than ``bytes_in_flight`` bytes wait for their sync. One caller may wait at a
        time."""
        self._relief = (bytes_in_flight, relieved)

    def completed(
        self, thread: CommitThread, items: Sequence[Item], synced_bytes: int, failure: OSError | None
    ) -> None:
        """A commit thread finished ``items``, or they failed with ``failure``. ``synced_bytes`` that were acknowledged before
        their sync are synced now."""
        status = Status.OK
        if isinstance(failure, NoSpaceError):
            status = Status.READ_ONLY
            synced = list(filter(_is_synced, items))
            items = [item for item in items if not _is_synced(item)]
            self._ran_out(self._by_thread[thread], items)
            self._tell(synced, Status.OK)
        elif failure is not None:
            status = Status.IO_ERROR
            self._retire(self._by_thread[thread])
        self.bytes_in_flight -= synced_bytes
        self._tell(items, status)
        if self._relief is not None and self.bytes_in_flight <= self._relief[0]:
            (_, relieved), self._relief = self._relief, None
            relieved()

    def _tell(self, items: Sequence[Item], status: Status) -> None:
        recent = self._holdings.recent
        for item in items:
            if type(item) is EntryWrite:
                self.bytes_in_flight -= len(item.frame)
                del recent[location(item.log.number, item.position)]
            elif type(item) is RelaxedWrite:
                del recent[location(item.log.number, item.position)]
            item.done(status)

    def _retire(self, directory: LogDirectory) -> None:
        """Use a directory no more. What it had not synced is lost."""
        if directory.retired:
            return
        directory.retired = True
        self._holdings.live.remove(directory)
        self._disks.sort()
        for entry_log in directory.logs:
            if entry_log.synced < entry_log.end:
                first = location(entry_log.number, entry_log.synced)
                self._holdings.lose_between(first, location(entry_log.number, POSITION_MAX))

    def _ran_out(self, directory: LogDirectory, items: Sequence[Item]) -> None:
        """A write found no room: remove from the index what ``items`` were to add."""
        for item in items:
            if isinstance(item, (EntryWrite, RelaxedWrite)):
                ledger_id = decode(item.frame, HEADER_OFFSET)[0].ledger_id
                where = location(item.log.number, item.position)
                if (rows := self._holdings.index.get(ledger_id)) is not None:
                    rows.remove(where, where)
                self._holdings.volatile.forget(ledger_id)
                item.log.end = min(item.log.end, item.position)
            elif isinstance(item, (ControlWrite, ControlRewrite)):
                directory.control_behind = True
        if not any(isinstance(item, SealLog) for item in items):
            self._disks.take_less(directory, Takes.NOTHING)


def _is_synced(item: Item) -> bool:
    """Is the item of a group that found no room synced? It is if it was written to the log before."""
    return isinstance(item, (EntryWrite, RelaxedWrite)) and item.log.synced > item.position
