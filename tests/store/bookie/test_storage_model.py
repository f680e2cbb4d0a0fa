"""Storage compared with a plain dict over any sequence of adds, fences, LACs, checkpoints, clean stops and crashes."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from bookspark.protocol.ledger.responses import Negative
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.wire.entry_batch import Entry
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import LOSSES, drawn
from tests.store.bookie.crashes import check_files, check_promises
from tests.store.bookie.kit import config, entries
from tests.store.bookie.stepped import Stepped, without_threads

LEDGERS = st.integers(0, 2)
IDS = st.integers(0, 12)
DISKS = (Path("/disk0"), Path("/disk1"))
LAST = 1 << 40
EXAMPLES = 50


class StorageModel(RuleBasedStateMachine):
    """``held`` is the model: exactly the entries that a read must return."""

    settings: BookieConfig

    @initialize(disks=st.integers(1, 2), journal=st.booleans())
    def start(self, disks: int, journal: bool) -> None:
        self.settings = config(*DISKS[:disks], entry_log_bytes_max=2500, journal_write_data=journal)
        self.disk = MemoryFileSystem(*map(str, DISKS[:disks]))
        self.run = Stepped(self.settings, self.disk)
        self.held: dict[int, dict[int, Entry]] = {}
        self.fenced: set[int] = set()
        self.ledgers = [0, 0, 0]
        for which in range(3):
            self.create(which, 1 + which)

    def create(self, which: int, ledger_id: int) -> None:
        """Make a ledger with an entry: for an unknown ledger the bookie would ask the metadata, in a thread."""
        self.ledgers[which] = ledger_id
        self.held[ledger_id] = {20: entries(ledger_id, 20, 20)[0]}
        self.run.add(ledger_id, 20, flags=int(Flag.RECOVERY))
        self.run.commit()

    @rule(
        which=LEDGERS,
        first=IDS,
        count=st.integers(1, 4),
        payload=st.sampled_from([b"payload", b"payload", b"payload", b"another", b"x" * 500]),
        flags=st.sampled_from([0, 0, int(Flag.RECOVERY), int(Flag.VOLATILE)]),
    )
    def add(self, which: int, first: int, count: int, payload: bytes, flags: int) -> None:
        ledger_id = self.ledgers[which]
        held = self.held[ledger_id]
        added = entries(ledger_id, first, first + count - 1, payload)
        conflicts = any(held.get(entry.entry_id, entry) != entry for entry in added)
        statuses = self.run.add(ledger_id, first, first + count - 1, payload=payload, flags=flags)
        if ledger_id in self.fenced and not flags & Flag.RECOVERY:
            assert statuses == [Status.FENCED]
        elif conflicts:
            assert statuses == [Status.CONFLICT]
        else:
            assert statuses in ([], [Status.OK])
            held |= {entry.entry_id: entry for entry in added}

    @rule()
    def commit(self) -> None:
        self.run.commit()

    @rule(which=LEDGERS)
    def fence(self, which: int) -> None:
        ledger_id = self.ledgers[which]
        self.run.fence(ledger_id)
        self.fenced.add(ledger_id)

    @rule(which=LEDGERS, entry_id=IDS)
    def confirm(self, which: int, entry_id: int) -> None:
        self.run.confirm(self.ledgers[which], entry_id)

    @rule()
    def checkpoint(self) -> None:
        self.run.checkpoint()

    @rule()
    def seal(self) -> None:
        self.run.seal()

    @rule(threshold=st.sampled_from([0.0, 0.7]), entry_logs=st.booleans())
    def reclaim(self, threshold: float, entry_logs: bool) -> None:
        self.run.reclaim(threshold, entry_logs=entry_logs)

    @rule(which=LEDGERS)
    def delete_and_collect(self, which: int) -> None:
        """Ids are never used again."""
        ledger_id = self.ledgers[which]
        self.run.delete(ledger_id)
        del self.held[ledger_id]
        self.fenced.discard(ledger_id)
        self.create(which, max(self.ledgers) + 1)

    @rule()
    def stop_and_start(self) -> None:
        self.run.restart()

    @rule(loss=st.one_of(st.sampled_from(LOSSES), st.integers(0, 99).map(drawn)))
    def crash(self, loss) -> None:
        """Unsynced entries may be gone; entries present after the crash stay."""
        self.disk = self.disk.crashed(loss)
        self.run = Stepped(self.settings, self.disk, self.run.promises)
        check_promises(self.run, self.run.promises)
        check_files(self.run)
        self.run.promises.acked_early.clear()
        for ledger_id in self.held:
            found, _ = self.run.read(ledger_id, 0, LAST, sparse=True)
            self.held[ledger_id] = {entry.entry_id: entry for entry in found}
            ledger = self.run.storage.holdings.ledger(ledger_id)
            if ledger is None or not ledger.fenced:
                self.fenced.discard(ledger_id)

    @invariant()
    def what_is_read_is_what_is_held(self) -> None:
        for ledger_id, held in getattr(self, "held", {}).items():
            found, refusal = self.run.read(ledger_id, 0, LAST, sparse=True)
            assert found == [held[entry_id] for entry_id in sorted(held)]
            absent = next(entry_id for entry_id in range(100) if entry_id not in held)
            assert isinstance(self.run.read(ledger_id, absent, absent)[1], Negative)
            assert refusal is None or not held


@pytest.mark.timeout(300)
def test_storage_answers_as_a_dict_through_stops_and_crashes():
    with without_threads():
        run_state_machine_as_test(
            StorageModel,
            settings=settings(
                max_examples=EXAMPLES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
            ),
        )
