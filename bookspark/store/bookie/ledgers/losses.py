"""Making durable what a bookie has lost.

Law: no checkpoint is written before the records of what was lost until then are durable. Otherwise a crash could leave an index
without these entries and nothing that says why, and their absence would be answered Negative. A record that no directory took is
written again when a checkpoint is due.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from bookspark.protocol.bookie.bookie_ledger import EntriesLost
from bookspark.store.bookie.disk.control_log import encode_records
from bookspark.store.bookie.holdings.checkpointing import Checkpoints
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.wire.header import Status

log = logging.getLogger(__name__)


class Losses:
    """The records of what one bookie has lost. Owned by the loop."""

    def __init__(self, holdings: Holdings, records: ControlRecords, checkpoints: Checkpoints) -> None:
        self._holdings = holdings
        self._records = records
        self._checkpoints = checkpoints
        self._not_durable: list[EntriesLost] = []
        self._under_way = 0
        """How many of the first records of ``_not_durable`` are being written."""

    def begin(self) -> None:
        """The boot has ended: write what it found lost, and from now on everything at once."""
        self._holdings.lost = self._lost
        self._holdings.ledgers_lacking.update(
            ledger_id
            for ledger_id in self._holdings.control.lost_copies
            if (ledger := self._holdings.ledgers.look(ledger_id)) is not None and ledger.lost
        )
        if any(directory.gone for directory in self._holdings.live):
            self._checkpoints.spoiled()
        if found := self._holdings.lost_at_boot:
            self._lost(found)

    def write_again(self) -> None:
        """Write what no directory took before; nothing if all is durable or under way."""
        if not self._not_durable or self._under_way:
            return
        self._under_way = len(self._not_durable)
        self._records.write(self._not_durable[: self._under_way], self._written)

    def end(self) -> bool:
        """The commit threads have ended: write what may not be durable yet. False if no directory took it."""
        if not self._not_durable:
            return True
        content = encode_records(self._not_durable)
        taken = 0
        for directory in self._holdings.live:
            try:
                directory.control.append(content)
                taken += 1
            except OSError as error:
                log.error("%s: that entries were lost can't be noted: %s", directory.path, error)
        if taken:
            self._not_durable.clear()
            self._holdings.losses_durable.set()
        return taken > 0

    def _lost(self, records: Sequence[EntriesLost]) -> None:
        self._holdings.losses_durable.clear()
        self._checkpoints.outdated()
        self._not_durable += records
        self.write_again()

    def _written(self, status: int) -> None:
        written, self._under_way = self._under_way, 0
        if status != Status.OK:
            log.error("that %d copies of entries were lost can't be noted; it is tried again", len(self._not_durable))
            return
        del self._not_durable[:written]
        if not self._not_durable:
            self._holdings.losses_durable.set()
        self.write_again()
