"""Crashes of a bookie's storage before each file operation, and the checks after the next boot.

Law: entries acknowledged as synced are served byte for byte, every served entry was requested, fences and explicit LACs (last
add confirmed) hold, a crash alone is never damage, no file is left over, and the storage goes on working.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.disk.checkpoint import read_checkpoint
from bookspark.store.bookie.disk.rewritten_log import RewrittenLog
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem, Operation
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import Loss
from tests.store.bookie.stepped import Promises, Stepped

CHANGES = frozenset(
    {"write", "sync", "truncate", "preallocate", "create", "make_directory", "rename", "unlink", "sync_directory"}
)
RECOVERY, VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)
KNOWN_FILES = frozenset({"control.log", "control.synced", "checkpoint", "unclean"})
_NEW_LEDGER = 1_000_000


def check_promises(storage: Stepped, promises: Promises) -> None:
    assert not storage.storage.holdings.damaged, "a crash is no damage"
    for ledger_id, asked in promises.asked.items():
        found, refusal = storage.read(ledger_id, 0, 1 << 40, sparse=True)
        assert refusal is None or not found, refusal
        for entry in found:
            assert entry in asked[entry.entry_id], f"{entry} was never written"
        there = {entry.entry_id for entry in found}
        missing = promises.acked[ledger_id] - there
        assert not missing, f"ledger {ledger_id}: {sorted(missing)} were acked and are gone"
        missing = promises.acked_early[ledger_id] - there
        assert not missing or storage.storage.lossy_boots.unclean, (
            f"ledger {ledger_id}: {sorted(missing)} are gone, and no marker tells"
        )
    for ledger_id in promises.fenced:
        assert storage.add(ledger_id, 1 << 40) == [Status.FENCED], f"the fence of {ledger_id} is gone"
    for ledger_id, confirmed in promises.confirmed.items():
        ledger = storage.storage.holdings.ledger(ledger_id)
        assert ledger is not None and ledger.last_add_confirmed >= confirmed


def check_files(storage: Stepped) -> None:
    """Every file on the disk belongs to the current state."""
    files = storage.files
    for directory in storage.storage.directories:
        named = read_checkpoint(files, directory)
        parts = {f"checkpoint.{part.number:08x}" for part in (named and named.parts) or ()}
        assert {name for name in files.list(directory) if name not in KNOWN_FILES | {"logs"}} == parts
        logs = [stored for stored in storage.storage.logs.values() if stored.directory == directory]
        known = {
            f"{stored.number:08x}.{end}"
            for stored in logs
            for end in (["arrow"] if isinstance(stored, RewrittenLog) else ["arrows", "synced"])
        }
        assert set(files.list(f"{directory}/logs")) == known, "a log that is on the disk is in use"


def add_fence_confirm(run: Stepped) -> None:
    """Appends (single, grouped, duplicate), fences, explicit LACs, checkpoints, log rolls, a clean stop, a rewritten control
    log."""
    run.add(5, 0, 3)
    run.add(5, 4)
    run.add(8, 0, 1)
    run.commit()
    run.fence(8)
    run.add(5, 5, 6, last_add_confirmed=4)
    run.commit()
    run.confirm(5, 6)
    run.commit()
    run.fence(9)
    run.commit()
    run.checkpoint()
    run.add(5, 3, 9)
    run.add(8, 2, flags=RECOVERY)
    run.commit()
    for entry_id in range(3):
        run.add(6, 3 * entry_id, 3 * entry_id + 2, payload=b"x" * 400)
    run.commit()
    run.add(6, 0, 2, payload=b"x" * 400)
    for entry_id in range(3, 9):
        run.confirm(6, entry_id)
        run.commit()
    run.checkpoint()
    run.add(7, 0)
    run.commit()
    run.restart()
    run.add(7, 1)
    run.fence(5)
    run.commit()
    run.add(7, 2)
    run.checkpoint()


def acked_before_the_sync(run: Stepped) -> None:
    """For a bookie without a journal: appends acknowledged early beside those of recovery and of VD (volatile durability)
    ledgers, a log roll, a fence, stops."""
    run.add(5, 0, 3)
    run.commit()
    run.add(5, 4)
    run.add(8, 0, flags=RECOVERY)
    run.commit()
    run.add(6, 0, 1, flags=VOLATILE)
    run.commit()
    run.add(5, 3, 4, flags=RECOVERY)
    run.commit()
    for first in (2, 5, 8):
        run.add(6, first, first + 2, payload=b"x" * 400, flags=VOLATILE)
        run.add(5, first + 3, first + 5, payload=b"x" * 400)
        run.commit()
    run.fence(6)
    run.commit()
    run.checkpoint()
    run.add(7, 0)
    run.commit()
    run.restart()
    run.add(7, 1)
    run.commit()


class Crashes:
    """Runs a workload and crashes it before every changing operation, with several power losses each. Boots after a crash are
    crashed too, ``depth`` boots deep."""

    def __init__(self, settings: BookieConfig, losses: Callable[[int, int], Iterable[Loss]], depth: int = 1) -> None:
        """``losses``: the power cuts to try, given the number of the crash and the remaining depth."""
        self._settings = settings
        self._losses = losses
        self._depth = depth
        self._judged: set[int] = set()
        self.points = 0
        self.boots = 0
        self.operations: set[str] = set()

    def run(self, workload: Callable[[Stepped], None]) -> None:
        disk = MemoryFileSystem(*self._settings.directories)
        promises = Promises()
        storage = Stepped(self._settings, self._watched(disk, promises, self._depth), promises)
        workload(storage)
        self._crash(disk, promises, "at the end", self._depth)
        storage.storage.close()
        self._crash(disk, promises, "after a clean stop", self._depth)

    def _watched(self, disk: MemoryFileSystem, promises: Promises, depth: int) -> FaultyFileSystem:
        def before(operation: Operation) -> None:
            if operation.kind in CHANGES:
                self.operations.add(operation.kind)
                self._crash(disk, promises, f"before {operation.kind} {operation.path}", depth)

        return FaultyFileSystem(disk, before=before)

    def _crash(self, disk: MemoryFileSystem, promises: Promises, when: str, depth: int) -> None:
        self.points += 1
        for number, loss in enumerate(self._losses(self.points, depth)):
            after = disk.crashed(loss)
            same = hash((depth, promises.count, *after.files().items()))
            if same in self._judged:
                continue
            self._judged.add(same)
            self.boots += 1
            try:
                self._judge(after, promises, depth)
            except Exception as error:
                error.add_note(f"crash {self.points}, {when}, loss {number} ({getattr(loss, '__name__', 'drawn')})")
                raise

    def _judge(self, disk: MemoryFileSystem, promises: Promises, depth: int) -> None:
        """Boot on ``disk`` and check the law."""
        storage = Stepped(self._settings, self._watched(disk, promises, depth - 1) if depth else disk)
        check_promises(storage, promises)
        check_files(storage)
        storage.files = disk
        added = storage.add(_NEW_LEDGER, 0)
        storage.commit()
        assert added == [Status.OK], "it goes on working"
        storage.restart()
        check_promises(storage, promises)
        check_files(storage)
        assert [entry.entry_id for entry in storage.read(_NEW_LEDGER, 0, 0)[0]] == [0]
