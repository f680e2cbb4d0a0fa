"""Single bit flips in a small bookie's files, followed by a scrub, a boot and reads.

Law: an answer is right or an I/O error; never wrong bytes, never NoSuchEntry for an acknowledged entry, never a forgotten
fence; and scrub detects the flip.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bookspark.errors import StorageError
from bookspark.protocol.ledger.responses import Negative
from bookspark.store.bookie.offline.scrub import scrub
from bookspark.store.wire.header import Status
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import everything_kept, nothing_kept
from tests.store.bookie.kit import KEY, config
from tests.store.bookie.stepped import Promises, Stepped

SETTINGS = config(Path("/disk"), entry_log_bytes_max=1500)
_LAC = 2


class Flips:
    """One small directory of a bookie that stopped ``clean`` or was killed; its sealed logs are ``rewritten`` or original."""

    def __init__(self, *, clean: bool, rewritten: bool = False) -> None:
        self._promises = Promises()
        self.disk = MemoryFileSystem("/disk")
        run = Stepped(SETTINGS, self.disk, self._promises)
        run.add(5, 0, 1)
        run.add(8, 0)
        run.commit()
        run.fence(8)
        run.commit()
        if rewritten:
            run.seal()
            run.reclaim()
        run.checkpoint()
        run.add(6, 0, last_add_confirmed=-1)
        run.add(5, 2, last_add_confirmed=1)
        run.commit()
        run.confirm(5, _LAC)
        run.commit()
        if clean:
            run.storage.close()
        self.disk = self.disk.crashed(everything_kept)
        assert not scrub(self.disk, "/disk").damages

    def places(self) -> Iterator[tuple[str, int]]:
        """Every byte of every file: (path, offset)."""
        for path, content in self.disk.files().items():
            for offset in range(len(content)):
                yield path, offset

    def flipped(self, path: str, offset: int, bit: int) -> MemoryFileSystem:
        disk = self.disk.crashed(everything_kept)
        flip(disk, path, offset, bit)
        disk.sync_all()
        return disk

    def judge(self, path: str, offset: int, bit: int) -> str:
        """The outcome: ``stays down``, ``unknown`` or ``right``."""
        disk = self.flipped(path, offset, bit)
        assert scrub(disk, "/disk").damages, "scrub does not find it"
        try:
            storage = Stepped(SETTINGS, disk)
        except StorageError:
            return "stays down"
        return self.check_answers(storage)

    def judge_served(self, path: str, offset: int, bit: int, *, power_cut: bool) -> str:
        """The outcome if the bit flips while the bookie serves; a clean stop or a power cut follows."""
        disk = self.disk.crashed(everything_kept)
        storage = Stepped(SETTINGS, disk)
        flip(disk, path, offset, bit)
        disk.sync_all()
        outcomes = {self.check_answers(storage)}
        storage.commit()
        try:
            if power_cut:
                storage = Stepped(SETTINGS, disk.crashed(nothing_kept))
            else:
                storage.restart()
        except StorageError:
            return "stays down"
        return max(*outcomes, self.check_answers(storage), key=("right", "unknown").index)

    def check_answers(self, storage: Stepped) -> str:
        outcome = "right"
        for ledger_id, acked in self._promises.acked.items():
            for entry_id in acked:
                found, refusal = storage.read(ledger_id, entry_id, entry_id)
                if found:
                    assert found[0] in self._promises.asked[ledger_id][entry_id], "wrong bytes"
                else:
                    assert not isinstance(refusal, Negative), f"{refusal} for an acked entry"
                    outcome = "unknown"
            ledger = storage.storage.holdings.ledger(ledger_id)
            assert ledger is None or (ledger.last_add_confirmed <= _LAC and ledger.master_key in (None, KEY))
        for ledger_id in self._promises.fenced:
            assert storage.add(ledger_id, 1 << 40) == [Status.FENCED]
        assert storage.read(7, 0, 9)[0] == []
        return outcome


def flip(disk: MemoryFileSystem, path: str, offset: int, bit: int) -> None:
    file = disk.open(path, write=True)
    [byte] = file.read(1, offset)
    file.write([bytes([byte ^ 1 << bit])], offset)
