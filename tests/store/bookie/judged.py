"""The known state of a bookie's storage, kept outside it, and the laws that ``histories`` checks.

Law: no expected fact comes from the storage under test: requests, fences, damage and durable data are recorded here, beside it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from bookspark.protocol.bookie.bookie_boot import answer_unsure
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import Negative, Positive
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Status
from bookspark.testing.memory_files import MemoryFileSystem
from tests.store.bookie.kit import KEY
from tests.store.bookie.stepped import Stepped
from tests.store.bookie.stories import Story
from tests.store.metadata.kit import ledger as ledger_metadata

ME = "bookie-1"


class Judged(Stepped):
    """A storage, its promises, and the faults of its disks."""

    story: Story
    disk: MemoryFileSystem
    metadata: MemoryStore
    hurt = False
    """Was an I/O error or a lie injected?"""
    lied = False
    disk_lost_a_write = False
    lossy = False
    """Was there a lossy boot?"""
    apart = False
    """Did the bookie boot without one of its directories?"""

    def begin(self, story: Story, disk: MemoryFileSystem) -> None:
        """Start without recorded facts."""
        self.story, self.disk, self.metadata = story, disk, MemoryStore()
        self.fence_asked: set[int] = set()
        self.told: dict[int, int] = {}
        """The highest LAC (last add confirmed) sent for each ledger."""
        self.added: list[tuple[int, list[int]]] = []
        """The ledger id and the answer of each add."""
        self.noted: tuple[dict[int, set[int]], set[int]] = ({}, set())
        """The acknowledged entries and fenced ledgers at the last sync of the notes."""
        self.lost_early: dict[int, set[int]] = {}
        """Early acknowledged entries that a lossy boot did not find."""
        self.damaged: dict[str, bytes] = {}
        """Control logs damaged in their durable part: path → content up to the damage."""

    # -- the true state

    def new_ledger(self) -> int:
        ledger_id = self.metadata.new_ledger_id()
        if not self.hurt and not self.lossy:
            assert not self.promises.acked.get(ledger_id), f"given out again: {ledger_id}"
        self.metadata.create_ledger(ledger_metadata(ledger_id, master_key=KEY))
        return ledger_id

    def metadata_of(self, ledger_id: int) -> LedgerMetadata | None:
        there = ledger_id in self.metadata.list_ledgers()
        return self.metadata.read_ledger(ledger_id).value if there else None

    def begin_recovery(self, ledger_id: int) -> None:
        """Ledger recovery writes its state to the metadata before it fences the bookies."""
        if self.metadata_of(ledger_id) is not None:
            metadata, version = self.metadata.read_ledger(ledger_id)
            if metadata.state is LedgerState.OPEN:
                self.metadata.write_ledger(replace(metadata, state=LedgerState.IN_RECOVERY), version)

    def close_ledger(self, ledger_id: int) -> None:
        """Close a ledger at its last promised entry."""
        if self.metadata_of(ledger_id) is not None:
            metadata, version = self.metadata.read_ledger(ledger_id)
            last = max(self.promised(ledger_id), default=-1)
            closed = replace(metadata, state=LedgerState.CLOSED, last_entry_id=last, length=max(0, last + 1))
            if not metadata.closed:
                self.metadata.write_ledger(closed, version)

    def payload(self, ledger_id: int) -> bytes:
        [content] = {entry.payload for entry in next(iter(self.promises.asked[ledger_id].values()))}
        return content.partition(b":")[2]

    def promised_ledgers(self) -> list[int]:
        return sorted({*self.promises.acked, *self.promises.acked_early, *self.lost_early})

    def promised(self, ledger_id: int) -> list[int]:
        lost = self.lost_early.get(ledger_id, set())
        return sorted(self.promises.acked[ledger_id] | self.promises.acked_early[ledger_id] | lost)

    def excuse(self, promised: tuple[dict[int, set[int]], ...], noted: dict[int, set[int]]) -> None:
        """From now on, promised entries outside ``noted`` may be denied."""
        for of_ledger in promised:
            for ledger_id, entry_ids in of_ledger.items():
                entry_ids &= noted.get(ledger_id, set())

    def settle_early(self, why: str) -> None:
        """Early acknowledged entries found by a boot are durable; missing ones make the boot lossy."""
        early, self.promises.acked_early = self.promises.acked_early, type(self.promises)().acked_early
        for ledger_id, entry_ids in early.items():
            found = {entry_id for entry_id in entry_ids if self.read(ledger_id, entry_id, entry_id)[0]}
            assert why or self.hurt or found == entry_ids, (
                f"early acknowledged entries of {ledger_id} are gone, not lossy"
            )
            self.promises.acked[ledger_id] |= found
            self.lost_early.setdefault(ledger_id, set()).update(entry_ids - found)

    # -- the laws

    def check(self) -> None:
        for ledger_id in self.promised_ledgers():
            self._check_reads(ledger_id)
            self._check_sparse(ledger_id)
        if not self.lossy:
            told = [ledger_id for ledger_id, answer in self.added if answer == [Status.FENCED]]
            assert self.fence_asked.issuperset(told), f"told of a fence: {told}, and nobody fenced"
        self.added.clear()
        for ledger_id in self.promises.fenced:
            self._check_fence(ledger_id)
        for ledger_id, confirmed in self.promises.confirmed.items():
            known = self.storage.holdings.ledger(ledger_id)
            assert (
                self.lied
                or self.lacks_a_directory
                or (known is not None and (known.last_add_confirmed >= confirmed or known.limbo))
            ), f"forgotten: the explicit LAC {confirmed} of {ledger_id}: {known}"
        for ledger_id in self.promises.asked:
            known = self.storage.holdings.ledger(ledger_id)
            confirmed = -1 if known is None else known.last_add_confirmed
            assert self.lied or confirmed <= self.told.get(ledger_id, -1), (
                f"an LAC of {ledger_id} that nobody told: {known}"
            )

    @property
    def lacks_a_directory(self) -> bool:
        """Does the bookie run without a directory that may know more than the others?"""
        return self.apart and len(self.storage.live) < self.story.disks

    def _check_reads(self, ledger_id: int) -> None:
        asked, may_be_gone = self.promises.asked[ledger_id], self.lost_early.get(ledger_id, set())
        wanted = deque(self.promised(ledger_id))
        while wanted:
            first = wanted.popleft()
            found, refusal = self.read(ledger_id, first, wanted[-1] if wanted else first)
            for entry in found:
                assert entry in asked[entry.entry_id], f"wrong: {entry} was never written"
            if found:
                assert found[0].entry_id == first, "wrong: another entry"
                while wanted and wanted[0] <= found[-1].entry_id:
                    wanted.popleft()
            else:
                assert not isinstance(refusal, Negative), f"denied: {ledger_id}/{first} was acknowledged: {refusal}"
                assert self.hurt or first in may_be_gone, f"gone: {ledger_id}/{first} without a fault: {refusal}"

    def _check_sparse(self, ledger_id: int) -> None:
        """A sparse read denies the entries it skips."""
        wanted = self.promised(ledger_id)
        # Also read beyond the last entry, where nothing is.
        for last in (wanted[-1], wanted[-1] + 2) if wanted else ():
            plan = self.storage.holdings.plan_read(ledger_id, wanted[0], last, 0, sparse=True)
            given = {one for piece in plan.pieces for one in range(piece.first, piece.last + 1)}
            passed = [one for one in wanted if one <= plan.end and one not in given]
            assert not passed, f"denied: {passed} of {ledger_id} were passed over, and acknowledged"
            assert plan.end <= last, f"told of {plan.end} of {ledger_id}, and asked up to {last}"

    def _check_fence(self, ledger_id: int) -> None:
        """The old writer adds nothing, whatever the metadata says now, and ledger recovery can add."""
        ledger = self.storage.holdings.control.known(ledger_id)
        assert ledger.fenced or ledger.fence_unsure or ledger.limbo, f"forgotten: the fence of {ledger_id}"
        metadata = self.metadata_of(ledger_id)
        if metadata is None or ledger.master_key not in (None, KEY):
            return
        decision = ledger.admit_add(KEY, False)
        sure = answer_unsure(ME, metadata) if decision.ask_metadata else decision.response
        assert not isinstance(sure, Positive), f"forgotten: {ledger_id} is fenced, and its writer may add"
        recovery = ledger.admit_add(KEY, True).response
        assert isinstance(recovery, Positive), f"a fence that stops who recovers {ledger_id}: {recovery}"

    @property
    def no_control_log_is_whole(self) -> bool:
        """Is every control log damaged in its durable part? Then fences may be lost without a trace."""
        files = self.disk.files()
        damaged = [path for path, content in self.damaged.items() if files.get(path, b"").startswith(content)]
        return len(damaged) == self.story.disks
