"""Commit results: answers after a commit, and the handling of failed and full directories.

Law: entries in a failed directory are not held any more (``Holdings.lose_directory``). A directory fails after one failed write
or sync. A bookie without a directory ends. Entries without room in a full directory were neither added nor
acknowledged: they are absent like any other.

A result's effect on its directory is immediate. Answers follow in the order of the results, some hundred in a turn of the loop: a
group may have ten thousands of items.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence

from bookspark.store.bookie.commit.commit_thread import (
    CommitThread,
    ControlRewrite,
    ControlWrite,
    EntryWrite,
    Item,
    RelaxedWrite,
    SealLog,
    Soon,
)
from bookspark.store.bookie.disk.file_system import NoSpaceError
from bookspark.store.bookie.disk.index import location
from bookspark.store.bookie.holdings.disk_marks import Takes
from bookspark.store.bookie.holdings.disks import Disks
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.header import Status, decode

_TOLD_A_TURN = 512
"""Answers in a turn of the loop; they take some milliseconds."""

log = logging.getLogger(__name__)


class CommitResults:
    """Handles the results of one bookie's commit threads. Owned by the loop."""

    def __init__(self, holdings: Holdings, disks: Disks) -> None:
        self._holdings = holdings
        self._disks = disks
        self._by_thread = {directory.commit: directory for directory in holdings.directories}
        self._relief: tuple[int, Callable[[], None]] | None = None
        self._soon: Soon | None = None
        self._untold: deque[tuple[Sequence[Item], int, Status, Callable[[], None] | None]] = deque()
        """Unanswered items: items, number of the first unanswered item, status, and a callback before the last answers."""
        self._telling = False
        self.none_left: Callable[[str], None] = lambda why: None
        """Called on the loop, with the reason, when the last directory has failed."""
        self.bytes_in_flight = 0

    def start(self, soon: Soon | None) -> None:
        """Spread answers over several turns of the loop from now on. None: no loop needs a break."""
        self._soon = soon

    def when_below(self, bytes_in_flight: int, relieved: Callable[[], None]) -> None:
        """Call ``relieved`` once, when at most ``bytes_in_flight`` bytes wait for their sync. One caller may wait at a time."""
        self._relief = (bytes_in_flight, relieved)

    def completed(
        self, thread: CommitThread, items: Sequence[Item], synced_bytes: int, failure: OSError | None
    ) -> None:
        """Handle ``items`` that a commit thread finished, or that failed with ``failure``. ``synced_bytes`` of earlier
        acknowledged bytes are synced now."""
        status, told = Status.OK, None
        if isinstance(failure, NoSpaceError):
            status = Status.READ_ONLY
            synced = list(filter(_is_synced, items))
            items = [item for item in items if not _is_synced(item)]
            self._tell(synced, Status.OK)
            told = self._ran_out(self._by_thread[thread], items, failure)
        elif failure is not None:
            status = Status.IO_ERROR
            self._retire(self._by_thread[thread], str(failure))
        elif self._by_thread[thread].retired:
            # A retired directory holds nothing any more, even after a successful write.
            status = Status.IO_ERROR
        self.bytes_in_flight -= synced_bytes
        self._tell(items, status, told)
        self._relieve()

    def waits(self, byte_count: int) -> None:
        """Count batches of ``byte_count`` bytes that wait for a decision, or (negative) wait no more."""
        self.bytes_in_flight += byte_count
        self._relieve()

    def _relieve(self) -> None:
        if self._relief is not None and self.bytes_in_flight <= self._relief[0]:
            (_, relieved), self._relief = self._relief, None
            relieved()

    def _tell(self, items: Sequence[Item], status: Status, told: Callable[[], None] | None = None) -> None:
        if status is Status.OK and not self._telling and len(items) <= _TOLD_A_TURN:
            # The usual case. All are answered at once, so no later group overtakes them.
            self._tell_each(items, status)
            return
        self._untold.append((items, 0, status, told))
        if not self._telling:
            self._tell_some()

    def _tell_some(self) -> None:
        """Answer the next items, and leave the rest to later turns."""
        self._telling, left = True, _TOLD_A_TURN
        try:
            while self._untold and left > 0:
                items, start, status, told = self._untold.popleft()
                end = len(items) if self._soon is None else min(len(items), start + left)
                left -= end - start
                if end < len(items):
                    self._untold.appendleft((items, end, status, told))
                if status is Status.READ_ONLY:
                    self._drop(items[start:end])
                if told is not None and end == len(items):
                    told()
                self._tell_each(items[start:end], status)
        finally:
            self._telling = bool(self._untold) and self._soon is not None
            if self._telling and self._soon is not None:
                self._soon(self._tell_some)
        self._relieve()

    def _tell_each(self, items: Sequence[Item], status: Status) -> None:
        recent = self._holdings.recent
        for item in items:
            if type(item) is EntryWrite:
                self.bytes_in_flight -= len(item.frame)
                # ``location``, without a call for each add.
                del recent[item.log.number << 32 | item.position]
            elif type(item) is RelaxedWrite:
                del recent[location(item.log.number, item.position)]
            item.done(status)

    def _retire(self, directory: LogDirectory, why: str) -> None:
        """Retire a directory. Its entries are not held from now on."""
        if directory.retired:
            return
        directory.retired, directory.failure = True, why
        log.error(
            "%s is retired until the bookie is started again: %s; its entries are lost here until other bookies' copies replace "
            "them; check the disk",
            directory.path,
            why,
        )
        self._holdings.live.remove(directory)
        self._disks.sort()
        self._holdings.lose_directory(directory)
        if not self._holdings.live:
            self.none_left(
                f"no directory can be used any more, the last one was {directory.path}: {why}; check the disk"
            )

    def _ran_out(self, directory: LogDirectory, items: Sequence[Item], failure: OSError) -> Callable[[], None]:
        """Handle a write without room. Returns a function to call once the index has lost the rows of ``items``. Until then a
        caller may begin to wait for an absent copy; ``HeldCopies`` recognises that by ``refusals``."""
        directory.control_behind |= any(isinstance(item, (ControlWrite, ControlRewrite)) for item in items)

        def dropped() -> None:
            for item in items:
                if isinstance(item, (EntryWrite, RelaxedWrite)):
                    item.log.end = min(item.log.end, item.position)
            directory.refusals, directory.no_room = directory.refusals + 1, failure
            only_seals = bool(items) and all(isinstance(item, SealLog) and item.failure is not None for item in items)
            # Not repeated without room for sealing the log either.
            if not (only_seals and directory.takes is Takes.NOTHING):
                self._disks.ran_out(directory, failure)

        return dropped

    def _drop(self, items: Sequence[Item]) -> None:
        for item in items:
            if isinstance(item, (EntryWrite, RelaxedWrite)):
                header = decode(item.frame, HEADER_OFFSET)[0]
                if (rows := self._holdings.index.changing(header.ledger_id)) is not None:
                    where = location(item.log.number, item.position)
                    rows.drop(header.first_entry_id, header.last_entry_id, where)
                self._holdings.volatile.forget(header.ledger_id)


def _is_synced(item: Item) -> bool:
    """Is the item of a group without room synced? True if the item was written to the log earlier."""
    return isinstance(item, (EntryWrite, RelaxedWrite)) and item.log.synced > item.position
