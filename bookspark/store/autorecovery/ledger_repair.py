"""The repair of one ledger, as its underreplication task asks for it.

Law: a registered bookie is not lost, whatever the task says. The entries that it lacks are copied to it, and the metadata still
names it. A lost bookie is replaced (``protocol.repair.ledger_replication``). So is a misplaced one, where that fences no writer.
A part that can't be repaired does not stop the other parts; the task then fails with the reasons, names every entry that could
not be copied, and is tried again. A deleted ledger needs no repair.

Source: ``ReplicationWorker.rereplicate`` of BookKeeper, which loops over ledgers that are gone and entries of one copy.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence, Set
from contextlib import suppress

from bookspark.errors import BookieError, BookKeeperError, EntriesNotCopiedError, NoSuchLedgerError, ReadError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.entry_copying import EntryCopying, Room
from bookspark.protocol.repair.ledger_replication import (
    LedgerReplication,
    ReplicationEvent,
    WaitForWriter,
    WriterWaitedFor,
)
from bookspark.protocol.repair.not_copied import not_copied_error
from bookspark.protocol.repair.replication_plan import lacks
from bookspark.protocol.repair.run_lengths import LONG_RUN_BYTES
from bookspark.protocol.repair.underreplication_task import Reason
from bookspark.store.autorecovery.copying import BOOKIES_KNOWN_SECONDS, RUN_ENTRIES_MAX, Copying, RepairDriver
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.bookie_questions import large_batch_ends
from bookspark.store.decisions.seam import made
from bookspark.store.metadata.autorecovery.underreplication_tasks import Taken


class LedgerRepair:
    """One repair: call ``go_on`` until it returns None. One thread at a time."""

    def __init__(
        self,
        taken: Taken,
        bookkeeper: BookKeeper,
        copying: Copying,
        grace_seconds: float,
    ) -> None:
        self.taken = taken
        self._bookkeeper = bookkeeper
        self._copying = copying
        self._grace_seconds = grace_seconds
        self._machine: LedgerReplication | None = None
        self._driver: RepairDriver
        self._waiting_since = 0.0
        self._errors: list[BookKeeperError] = []

    def go_on(self) -> float | None:
        """Do all that can be done now.

        Returns None if the repair is complete. Otherwise it returns after how many seconds to call it again: the ledger's
        writer has that long to replace a lost bookie itself. Raises BookKeeperError if the repair failed and is to be tried
        later."""
        try:
            with self._copying.room(self.taken.ledger_id) as room:
                wait_seconds = self._begin(room) if self._machine is None else self._after_waiting()
        except NoSuchLedgerError:
            return None
        except BookKeeperError as error:
            self._errors.append(error)
            wait_seconds = None
        if wait_seconds is None and self._errors and not self._is_gone():
            raise self._why()
        return wait_seconds

    def _why(self) -> BookKeeperError:
        """The first error; with all entries that could not be copied, if there are any."""
        first, *others = self._errors
        entries = [one for error in self._errors if isinstance(error, EntriesNotCopiedError) for one in error.entries]
        if not entries or not others:
            return first
        if all(isinstance(error, EntriesNotCopiedError) for error in self._errors):
            return not_copied_error(self.taken.ledger_id, entries)
        return EntriesNotCopiedError("; ".join(map(str, self._errors)), entries)

    def _begin(self, room: Room) -> float | None:
        task, store = self.taken.task, self._bookkeeper.metadata
        found = store.read_ledger(task.ledger_id)
        registered = self._bookkeeper.context.bookies(BOOKIES_KNOWN_SECONDS)
        lost = [bookie for bookie in task.of(Reason.LOST) if bookie not in registered]
        named = {bookie for fragment in found.value.fragments for bookie in fragment.ensemble}
        for bookie in ({*task.of(Reason.LACKS), *task.of(Reason.LOST)} - set(lost)) & named:
            try:
                self._fill(found.value, bookie, registered, room)
            except NoSuchLedgerError:
                raise
            except BookKeeperError as error:
                self._errors.append(error)
        misplaced = task.of(Reason.MISPLACED)
        self._driver = RepairDriver(self._bookkeeper, found.value, self._copying, lends=True)
        ends = self._batch_ends(self._driver, found.value, set(registered).difference(lost, misplaced))
        self._machine = made(LedgerReplication, lost, self._grace_seconds, RUN_ENTRIES_MAX, misplaced, room, ends)
        return self._drive(act.MetadataRead(*found))

    def _after_waiting(self) -> float | None:
        self._driver.resume()
        return self._drive(WriterWaitedFor(time.monotonic() - self._waiting_since))

    def _drive(self, event: ReplicationEvent) -> float | None:
        assert self._machine is not None
        match self._driver.run(self._machine.step, self._machine.step(event)):
            case WaitForWriter(grace_seconds):
                self._waiting_since = time.monotonic()
                return grace_seconds
        return None

    def _fill(self, metadata: LedgerMetadata, bookie: str, registered: Collection[str], room: Room) -> None:
        """Copy to ``bookie`` the entries that it lacks. The last fragment of a ledger that is not closed is left to its
        writer."""
        if bookie not in registered:
            raise BookieError(
                f"{bookie} lacks entries of ledger {metadata.ledger_id} and is not registered; start it again"
            )
        ranges = self._bookkeeper.list_ranges(bookie, metadata.ledger_id)
        held = zip(ranges["first_entry_id"].to_pylist(), ranges["last_entry_id"].to_pylist(), strict=True)
        driver = RepairDriver(self._bookkeeper, metadata, self._copying, lends=True)
        ends = self._batch_ends(driver, metadata, set(registered) - {bookie})
        machine = made(EntryCopying, metadata, lacks(metadata, bookie, held), RUN_ENTRIES_MAX, {bookie}, room, ends)
        driver.run(machine.step, machine.start())

    def _batch_ends(self, driver: RepairDriver, metadata: LedgerMetadata, bookies: Set[str]) -> Sequence[int]:
        """Where the stored batches of the ledger end, as one of ``bookies`` says of each fragment. A bookie that does not say it
        stops nothing: batches are cut then. Nothing is asked where the target does not fetch, or gets little at a time."""
        striped = metadata.ensemble_size > metadata.write_quorum
        if not driver.lends or striped or metadata.length <= LONG_RUN_BYTES:
            return ()
        context = self._bookkeeper.context
        well = bookies - context.runtime.connections.quarantined().keys()
        asked = {next((one for one in fragment.ensemble if one in well), "") for fragment in metadata.fragments}
        ends: set[int] = set()
        for bookie in asked - {""}:
            with suppress(ReadError):
                ends.update(large_batch_ends(context, bookie, metadata.ledger_id))
        return sorted(ends)

    def _is_gone(self) -> bool:
        """Was the ledger deleted meanwhile? Then its reads fail, and it needs no repair."""
        try:
            self._bookkeeper.metadata.read_ledger(self.taken.ledger_id)
        except NoSuchLedgerError:
            return True
        return False
