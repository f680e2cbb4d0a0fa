"""Single bit flips in a bookie's logs that are rewritten afterwards, followed by reads.

Law: a bit flip in any log, before a boot or while the bookie serves, never leads to wrong bytes or to Negative for an
acknowledged, living entry, however often the logs are rewritten and the bookie is restarted.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bookspark.protocol.ledger.responses import Negative
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import everything_kept
from tests.store.bookie.flips import flip
from tests.store.bookie.kit import config
from tests.store.bookie.stepped import Promises, Stepped

_SETTINGS = config(Path("/disk"), entry_log_bytes_max=1 << 20)
_DELETED, _LIVING = 5, 6


class RewrittenFlips:
    """One small directory with a rewritten log, a sealed log and the log written last. Each holds entries of a ledger that is
    deleted later, before, between and behind entries of a living ledger."""

    def __init__(self) -> None:
        self._promises = Promises()
        self.disk = MemoryFileSystem("/disk")
        run = Stepped(_SETTINGS, self.disk, self._promises)
        run.add(_DELETED, 0)
        run.add(_LIVING, 0)
        run.commit()
        run.seal()
        run.reclaim()
        for entry_id in (1, 2):
            run.add(_DELETED, entry_id)
            run.add(_LIVING, entry_id)
        run.commit()
        run.checkpoint()
        run.seal()
        run.add(_LIVING, 3)
        run.add(_DELETED, 3)
        run.commit()
        self.disk = self.disk.crashed(everything_kept)

    def places(self) -> Iterator[tuple[str, int]]:
        """Every byte of every log: (path, offset)."""
        for path, content in self.disk.files().items():
            if path.endswith((".arrow", ".arrows")):
                for offset in range(len(content)):
                    yield path, offset

    def judge(self, path: str, offset: int, bit: int, *, serving: bool) -> str:
        """The outcome: ``unknown`` or ``right``. ``serving``: the bit flips after the boot, not before."""
        disk = self.disk.crashed(everything_kept)
        if serving:
            run = Stepped(_SETTINGS, disk, _copy(self._promises))
            flip(disk, path, offset, bit)
        else:
            flip(disk, path, offset, bit)
            disk.sync_all()
            run = Stepped(_SETTINGS, disk, _copy(self._promises))
        run.delete(_DELETED)
        run.seal()
        outcomes = set()
        for _ in range(2):
            run.reclaim(0.99)
            outcomes.add(self._check(run))
            run.restart()
            outcomes.add(self._check(run))
        return max(outcomes)

    def _check(self, run: Stepped) -> str:
        outcome = "right"
        for entry_id in self._promises.acked[_LIVING]:
            found, refusal = run.read(_LIVING, entry_id, entry_id)
            if found:
                assert found[0] in self._promises.asked[_LIVING][entry_id], "wrong bytes"
            else:
                assert not isinstance(refusal, Negative), f"{refusal} for entry {entry_id}, which was acked"
                outcome = "unknown"
        return outcome


def _copy(promises: Promises) -> Promises:
    copied = Promises()
    for ledger_id, acked in promises.acked.items():
        copied.acked[ledger_id] = set(acked)
    return copied
