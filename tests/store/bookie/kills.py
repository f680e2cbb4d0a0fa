"""Repeated kills of a storage under load (``killed_storage``), with a check of its promises after each."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from random import Random

from bookspark.store.bookie.disk.file_system import SPARE_FILES, RealFileSystem
from bookspark.store.bookie.offline.scrub import scrub
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Status, decode
from tests.store.bookie.killed_storage import payload_of, settings
from tests.store.bookie.kit import Pumped, add_frame, entries, read_entries

_LINES_MAX = 600


class Kills:
    """One bookie's directories, over many lives."""

    def __init__(self, directory: Path, seed: int = 0) -> None:
        self._directory = directory
        self._disks = [directory / "disk0", directory / "disk1"]
        for disk in self._disks:
            disk.mkdir()
        self._random = Random(seed)
        self._acked: dict[int, set[int]] = defaultdict(set)
        self._fenced: set[int] = set()
        self._confirmed: dict[int, int] = {}
        self.counts: Counter[str] = Counter()

    def run(self, rounds: int) -> Mapping[str, int]:
        for round_ in range(rounds):
            self._kill(round_)
            self._check(round_)
            self.counts["rounds"] += 1
        return dict(self.counts)

    def _kill(self, round_: int) -> None:
        """Let the storage make a random number of promises, then kill it at work."""
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.store.bookie.killed_storage", str(self._directory), str(round_)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdout is not None
        try:
            left = self._random.randint(0, _LINES_MAX)
            for line in child.stdout:
                self._hear(line)
                left -= 1
                if left <= 0:
                    break
            os.kill(child.pid, signal.SIGKILL)
            for line in child.stdout:
                if line.endswith("\n"):
                    self._hear(line)
        finally:
            child.kill()
            child.stdout.close()
        assert child.wait() == -signal.SIGKILL, "it ended by itself"

    def _hear(self, line: str) -> None:
        kind, *words = line.split()
        ledger_id, *numbers = map(int, words)
        self.counts["promises"] += 1
        if kind == "A":
            self._acked[ledger_id].update(range(numbers[0], numbers[1] + 1))
        elif kind == "F":
            self._fenced.add(ledger_id)
        elif kind == "C":
            self._confirmed[ledger_id] = max(numbers[0], self._confirmed.get(ledger_id, -1))
        else:
            self._acked.pop(ledger_id, None)
            self._fenced.discard(ledger_id)
            self._confirmed.pop(ledger_id, None)

    def _check(self, round_: int) -> None:
        files = RealFileSystem()
        for disk in self._disks:
            assert not scrub(files, str(disk)).damages
        storage = Storage(settings(self._disks, round_)).open()
        assert not storage.holdings.damaged
        for ledger_id, acked in self._acked.items():
            found, _ = self._all(storage, ledger_id)
            there = {entry.entry_id for entry in found}
            assert acked <= there, f"round {round_}: ledger {ledger_id} lost {sorted(acked - there)}"
            for entry in found:
                assert entry == entries(ledger_id, entry.entry_id, entry.entry_id, payload_of(ledger_id))[0]
            self.counts["entries checked"] += len(found)
        for ledger_id in self._fenced:
            assert _refusal(storage, add_frame(ledger_id, 1 << 40)) == Status.FENCED
        for ledger_id, confirmed in self._confirmed.items():
            ledger = storage.holdings.ledger(ledger_id)
            assert ledger is not None and ledger.last_add_confirmed >= confirmed
        for disk in self._disks:
            known = {name for name in os.listdir(disk) if not name.endswith(".new")}
            known = {name for name in known if not name.startswith("checkpoint.")}
            assert known <= {"control.log", "control.synced", "checkpoint", "unclean", "logs", *SPARE_FILES}
            assert not [name for name in os.listdir(disk / "logs") if name.endswith(".new")]
        if round_ % 2:
            # Stop cleanly before the next round; otherwise the next round starts as after a kill.
            run = Pumped(
                settings(self._disks, round_), before_start=lambda storage: storage.lossy_boots.phase_one_is_over()
            )
            run.storage.close()

    @staticmethod
    def _all(storage: Storage, ledger_id: int):
        found = []
        while True:
            first = found[-1].entry_id + 1 if found else 0
            more, refusal = read_entries(storage, ledger_id, first, 1 << 40, sparse=True)
            found += more
            if not more or refusal is not None:
                return found, refusal


def _refusal(storage: Storage, frame: bytes) -> int:
    statuses: list[int] = []
    header, crc = decode(frame, HEADER_OFFSET)
    storage.add(header, EntryBatch.checked(frame, header, crc), statuses.append)
    return statuses[0]
