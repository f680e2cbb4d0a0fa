"""What is known of a bookie's storage from outside, and the laws that ``histories`` judges it by.

Law: nothing is looked up in the storage that it should answer for: what was asked, told, fenced, damaged and made durable is kept
here, beside it.
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
    """A storage, what was promised by it, and what befell its disks."""

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
    """Was a boot without one of the directories?"""

    def begin(self, story: Story, disk: MemoryFileSystem) -> None:
        """Nothing is known yet."""
        self.story, self.disk, self.metadata = story, disk, MemoryStore()
        self.fence_asked: set[int] = set()
        self.told: dict[int, int] = {}
        """The highest LAC that was told of each ledger."""
        self.added: list[tuple[int, list[int]]] = []
        """Of adds: the ledger, and the answer."""
        self.noted: tuple[dict[int, set[int]], set[int]] = ({}, set())
        """What was acknowledged, and fenced, when the notes were made durable last."""
        self.lost_early: dict[int, set[int]] = {}
        """Early acknowledged entries that a lossy boot did not find."""
        self.damaged: dict[str, bytes] = {}
        """Control logs that were damaged where they were durable: each up to the damage."""

    # -- what is true

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
        """Whoever fences a ledger says so in the metadata first."""
        if self.metadata_of(ledger_id) is not None:
            metadata, version = self.metadata.read_ledger(ledger_id)
            if metadata.state is LedgerState.OPEN:
                self.metadata.write_ledger(replace(metadata, state=LedgerState.IN_RECOVERY), version)

    def close_ledger(self, ledger_id: int) -> None:
        """Somebody closes a ledger, at the last entry that was promised."""
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
        """Entries that are not ``noted`` may be denied from now on."""
        for of_ledger in promised:
            for ledger_id, entry_ids in of_ledger.items():
                entry_ids &= noted.get(ledger_id, set())

    def settle_early(self, why: str) -> None:
        """What a boot found of the entries that were acknowledged early is durable; what it did not find makes it lossy."""
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
            known = self.storage.ledger(ledger_id)
            assert (
                self.lied
                or self.lacks_a_directory
                or (known is not None and (known.last_add_confirmed >= confirmed or known.limbo))
            ), f"forgotten: the explicit LAC {confirmed} of {ledger_id}: {known}"
        for ledger_id in self.promises.asked:
            known = self.storage.ledger(ledger_id)
            confirmed = -1 if known is None else known.last_add_confirmed
            assert self.lied or confirmed <= self.told.get(ledger_id, -1), (
                f"an LAC of {ledger_id} that nobody told: {known}"
            )

    @property
    def lacks_a_directory(self) -> bool:
        """Is the bookie used without one of its directories, which may know more than the others?"""
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
        """What a sparse read passes over, it denies."""
        wanted = self.promised(ledger_id)
        # Behind the last one, too, where nothing is.
        for last in (wanted[-1], wanted[-1] + 2) if wanted else ():
            plan = self.storage.plan_read(ledger_id, wanted[0], last, 0, sparse=True)
            given = {one for piece in plan.pieces for one in range(piece.first, piece.last + 1)}
            passed = [one for one in wanted if one <= plan.end and one not in given]
            assert not passed, f"denied: {passed} of {ledger_id} were passed over, and acknowledged"
            assert plan.end <= last, f"told of {plan.end} of {ledger_id}, and asked up to {last}"

    def _check_fence(self, ledger_id: int) -> None:
        """The old writer adds nothing, whatever the metadata says now, and who recovers the ledger does."""
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
        """Is every control log damaged where it was durable? Fences may be lost then of which nothing tells."""
        files = self.disk.files()
        damaged = [path for path, content in self.damaged.items() if files.get(path, b"").startswith(content)]
        return len(damaged) == self.story.disks
