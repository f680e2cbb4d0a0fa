"""What a bookie has lost, as far as it knows, and what of it is back.

Law: that of ``protocol.bookie_boot`` and ``bookie_healing``. What a boot finds lost stays noted (markers, limbo) until its phase
one is durable, or until it is healed, whoever opens the storage meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from bookspark.bookie.commit.completions import Done
from bookspark.bookie.disk.control_log import encode_records
from bookspark.bookie.disk.control_state import Record
from bookspark.bookie.holdings.boot import in_each
from bookspark.bookie.holdings.disks import Disks
from bookspark.bookie.holdings.holdings import Holdings
from bookspark.bookie.ledgers.control_requests import ControlRequests
from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted, PhaseOne
from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.wire.header import Status


class Losses:
    """Of one storage."""

    def __init__(self, holdings: Holdings, control: ControlRequests, disks: Disks) -> None:
        self._holdings = holdings
        self._disks = disks
        self._state = holdings.control
        self._live = holdings.live
        self._control = control

    @property
    def unreadable(self) -> Sequence[str]:
        """Directories that the boot gave up."""
        return self._holdings.unreadable

    @property
    def unclean(self) -> list[str]:
        """The directories in which the last process may have lost what it had promised."""
        return [directory.path for directory in self._live if directory.unclean]

    # -- phase one, before the storage is started

    @property
    def known_ledgers(self) -> Collection[BookieLedger]:
        """What the directories that are left know of ledgers."""
        return self._state.ledgers.values()

    def note_lossy_boot(self, found: PhaseOne) -> None:
        """Make the lossy-boot mark durable, and then what is fenced and in limbo. A directory that can't take it is used no more.
        Raises StorageError."""
        records: list[Record] = [found.mark, *found.records]
        content = encode_records(records)
        in_each(self._live, lambda directory: directory.control.append(content))
        for directory in self._holdings.directories:
            directory.retired = directory not in self._live
        self._disks.sort()
        self._state.replay(records)

    def phase_one_is_over(self) -> None:
        """It is durable, so nothing that was promised can be denied any more."""
        for directory in self._live:
            directory.marker.settled()
            directory.marker.clear()
            directory.unclean = False

    # -- phase two

    @property
    def mark(self) -> LossyBootNoted:
        """Of the last lossy boot."""
        return self._state.mark

    @property
    def healed_boot(self) -> int:
        """The number of the last lossy boot of which everything is back."""
        return self._state.healed.boot

    def limbo(self) -> dict[int, int]:
        """The ledgers in limbo, and the lossy boot that each is in limbo for."""
        return self._state.limbo()

    def clear_limbo(self, ledger_id: int, boot: int, done: Done) -> None:
        """What lossy boot number ``boot`` had lost of the ledger is back and synced. ``done``: OK once that is durable."""
        ledger = self._state.ledgers.get(ledger_id)
        if ledger is None:
            done(Status.OK)
        else:
            self._control.write(ledger.clear_limbo(boot).records, done)

    def note_healed(self, boot: int, done: Done) -> None:
        """What lossy boot number ``boot`` had lost is back. ``done``: OK once that is durable."""
        record = HealedNoted(boot)
        self._state.replay([record])
        self._control.write([record], done)
