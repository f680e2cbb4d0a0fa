"""A storage under load in its own process; it prints each promise to standard output until it is killed.

Run as ``python -m tests.store.bookie.killed_storage DIRECTORY ROUND``. Lines: ``A ledger first last`` acknowledged adds, ``F
ledger`` an acknowledged fence, ``C ledger lac`` an acknowledged explicit LAC (last add confirmed), ``D ledger`` a ledger about
to be collected. Ledger and entry id determine every entry's content.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from random import Random

from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Flag, Status
from tests.store.bookie.kit import KEY, Pumped, add_frame, config, held_ledgers
from tests.store.metadata.kit import ledger

LEDGERS_A_ROUND = 6
KEPT_ROUNDS = 4
LOG_BYTES = 200_000


def payload_of(ledger_id: int) -> bytes:
    return b"ledger %d " % ledger_id * (1 + 37 * ledger_id % 90)


def settings(directories: list[Path], round_: int) -> BookieConfig:
    """Every third bookie has no journal."""
    return config(
        *directories,
        entry_log_bytes_max=LOG_BYTES,
        journal_write_data=round_ % 3 != 2,
        background_sync_interval_ms=20,
        background_sync_bytes=50_000,
    )


class Load:
    def __init__(self, directory: Path, round_: int) -> None:
        disks = [directory / "disk0", directory / "disk1"]
        self._round = round_
        self._random = Random(round_)
        self._next: dict[int, int] = {}
        self._run = Pumped(
            settings(disks, round_), before_start=lambda storage: storage.lossy_boots.phase_one_is_over()
        )

    def tell(self, *words: object) -> None:
        os.write(1, (" ".join(map(str, words)) + "\n").encode())

    def go_on(self) -> None:
        """Work until the process is killed."""
        self._collect()
        storage = self._run.storage
        while True:
            for _ in range(self._random.randint(1, 12)):
                self._add()
            action = self._random.random()
            if action < 0.05:
                self._run.checkpoint()
            elif action < 0.08:
                self._run.reclaim(0.6)
            elif action < 0.12:
                self._confirm()
            elif action < 0.13:
                self._fence()
            self._run.wait(lambda: storage.bytes_in_flight < 100_000)

    def _ledger(self) -> int:
        """A ledger of this round or of an earlier round."""
        round_ = max(0, self._round - self._random.choice([0, 0, 0, 1, 2]))
        return round_ * LEDGERS_A_ROUND + self._random.randrange(LEDGERS_A_ROUND)

    def _add(self) -> None:
        ledger_id = self._ledger()
        first = self._next.setdefault(ledger_id, self._run.storage.holdings.last_entry_id(ledger_id) + 1)
        last = first + self._random.choice([0, 0, 1, 9, 40])
        self._next[ledger_id] = last + 1
        flags = int(Flag.RECOVERY) if self._random.random() < 0.1 else 0

        def done(status: int) -> None:
            if status == Status.OK:
                self.tell("A", ledger_id, first, last)

        self._run.submit(add_frame(ledger_id, first, last, payload=payload_of(ledger_id), flags=flags), done)

    def _fence(self) -> None:
        ledger_id = self._ledger()
        self._run.storage.fence(ledger_id, KEY, lambda status: status == Status.OK and self.tell("F", ledger_id))

    def _confirm(self) -> None:
        ledger_id = self._ledger()
        confirmed = self._run.storage.holdings.last_entry_id(ledger_id)
        self._run.storage.write_last_add_confirmed(
            ledger_id, KEY, confirmed, lambda status: status == Status.OK and self.tell("C", ledger_id, confirmed)
        )

    def _collect(self) -> None:
        """Delete the ledgers of rounds older than ``KEPT_ROUNDS``."""
        oldest = max(0, self._round - KEPT_ROUNDS) * LEDGERS_A_ROUND
        metadata = MemoryStore()
        for ledger_id in sorted(held_ledgers(self._run.storage)):
            if ledger_id < oldest:
                self.tell("D", ledger_id)
            else:
                metadata.create_ledger(ledger(ledger_id))
        self._run.collect(metadata)


if __name__ == "__main__":
    assert RealFileSystem().exists(sys.argv[1])
    Load(Path(sys.argv[1]), int(sys.argv[2])).go_on()
