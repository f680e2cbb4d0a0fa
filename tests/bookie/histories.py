"""Random histories of one bookie's storage: stories of adds, fences, reclaiming, kills and power cuts on disks that fail and lie.

Law: an entry that was acknowledged is served as it was, or Unknown; it is never denied, and never another one. A fence holds, or
is told to be unsure. A boot is lossy only if something that was acknowledged may be lost. Where nothing was injected but kills,
power cuts and full disks, everything is there. A sparse read passes over nothing that is there or may be lost. Nobody is told of
a fence that nobody asked for, or of an LAC that nobody told; who has another password changes nothing. An id of which something
is held is given to no other ledger, also if an older copy of the metadata is put back. Nothing ends in an exception but a boot,
and that one says what is damaged.
"""

from __future__ import annotations

import re
import traceback
import uuid
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bookspark.bookie.commit.commit_items import NoteSync
from bookspark.bookie.steps import run_steps
from bookspark.bookie.storage import Storage
from bookspark.daemon.lossy_boot import fence_check, fence_what_may_be_lost, why_lossy
from bookspark.daemon.lost_records import keep_lost_records
from bookspark.errors import BookieError, StorageError
from bookspark.metadata.memory.memory_store import MemoryStore
from bookspark.protocol.bookie.reach import NOTHING_NOTED, Reach
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.ledger.responses import Negative
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import LOSSES, drawn
from bookspark.wire.entry_batch import EntryBatch
from bookspark.wire.header import Status, decode
from tests.bookie.kit import KEY, OTHER_KEY, add_frame, config
from tests.bookie.known_open import KNOWN_OPEN, LOST_WITHIN_A_SECOND, MARKER_VANISHED
from tests.bookie.stepped import AtOnce, Promises, Stepped, overlapping_syncs, sync_in_background, without_threads
from tests.bookie.stories import RECOVERY, VOLATILE, Step, Story
from tests.metadata.kit import ledger as ledger_metadata

ME = "bookie-1"
_ALL = Assignment(0)
_PAYLOADS = (b"payload", b"x" * 300, b"volatile")
_VOLATILE_SLOT = 2
_BOOTS_MAX = 5
"""How often a boot is tried, where something was injected: each file may have an error to tell."""
_QUIET = frozenset(
    {"add", "confirm", "fence", "room", "fault", "background", "idle", "new", "sync", "full", "close", "backup"}
)
"""Steps that change nothing of what a check could find."""


class StaysDown(Exception):
    """A boot said what is damaged: the end of a story, if a disk lied."""


@contextmanager
def stepped() -> Iterator[None]:
    """No threads, small control logs, and background syncs that wait until ``sync_in_background``."""
    with (
        without_threads(),
        overlapping_syncs(),
        patch("bookspark.bookie.disk.control_log._REWRITE_BYTES_MIN", 150),
        patch("bookspark.daemon.lossy_boot.ThreadPoolExecutor", AtOnce),
    ):
        yield


class History(Stepped):
    """A story as it goes."""

    def __init__(self, story: Story) -> None:
        self.story = story
        paths = [Path(f"/disk{number}") for number in range(story.disks)]
        self.disk = MemoryFileSystem(*map(str, paths))
        self.metadata = MemoryStore()
        self.hurt = False
        """Was an I/O error or a lie injected?"""
        self.lied = self.disk_lost_a_write = False
        self.lossy = False
        """Was there a lossy boot?"""
        self.apart = False
        """Was a boot without one of the directories?"""
        self.fence_asked: set[int] = set()
        self.told: dict[int, int] = {}
        """The highest LAC that was told of each ledger."""
        self.added: list[tuple[int, list[int]]] = []
        """Of adds: the ledger, and the answer."""
        self.killed = True
        self.boots = self.power_cuts = 0
        self.noted: tuple[dict[int, set[int]], set[int]] = ({}, set())
        """What was acknowledged, and fenced, when the notes were made durable last."""
        self.lost_early: dict[int, set[int]] = {}
        """Early acknowledged entries that a lossy boot did not find."""
        self.promises = Promises()
        self.slots = [self.new_ledger() for _ in _PAYLOADS]
        self.do_backup()
        settings = config(
            *paths,
            entry_log_bytes_max=story.entry_log_bytes_max,
            journal_write_data=story.journal,
            background_sync_interval_ms=3_600_000,
            background_sync_bytes=story.background_sync_bytes,
        )
        super().__init__(settings, FaultyFileSystem(self.disk), self.promises)

    def new_ledger(self) -> int:
        ledger_id = self.metadata.new_ledger_id()
        if not self.hurt and not self.lossy:
            assert not self.promises.acked.get(ledger_id), f"given out again: {ledger_id}"
        self.metadata.create_ledger(ledger_metadata(ledger_id, master_key=KEY))
        return ledger_id

    def run(self) -> None:
        for number, step in enumerate(self.story.steps):
            try:
                self.take(step)
                if step[0] not in _QUIET:
                    self.check()
            except StaysDown:
                return
            except Exception as error:
                error.add_note(f"at step {number}: {step}")
                raise

    def take(self, step: Step) -> None:
        getattr(self, f"do_{step[0]}")(*step[1:])
        if not self.story.apart:
            self.do_background()

    # -- requests

    def do_add(self, slot: int, first: int, count: int, flags: int) -> None:
        flags |= VOLATILE if slot == _VOLATILE_SLOT else 0
        ledger_id = self.slots[slot]
        answer = self.add(ledger_id, first, first + count - 1, flags=flags, payload=_PAYLOADS[slot])
        self.added.append((ledger_id, answer))

    def do_commit(self) -> None:
        self.commit()

    def do_fence(self, slot: int) -> None:
        self.fence_asked.add(self.slots[slot])
        self.fence(self.slots[slot])

    def do_confirm(self, slot: int, entry_id: int) -> None:
        ledger_id = self.slots[slot]
        self.told[ledger_id] = max(entry_id, self.told.get(ledger_id, -1))
        self.confirm(ledger_id, entry_id)

    def do_stranger(self, slot: int, what: str) -> None:
        """Somebody with another password, where the bookie knows the right one for sure."""
        ledger_id = self.slots[slot]
        self.commit()
        if not (self.promises.acked.get(ledger_id) or ledger_id in self.promises.fenced) or self.lied or self.lossy:
            return
        answers: list[int] = []
        if what == "add":
            frame = add_frame(ledger_id, 0, payload=b"stranger", master_key=OTHER_KEY, flags=RECOVERY)
            header, crc = decode(frame, 88)
            self.storage.add(header, EntryBatch.checked(frame, header, crc), answers.append)
        elif what == "fence":
            self.storage.fence(ledger_id, OTHER_KEY, answers.append)
        else:
            self.storage.write_last_add_confirmed(ledger_id, OTHER_KEY, 99, answers.append)
        self.commit()
        assert Status.OK not in answers, f"granted: a stranger's {what} of {ledger_id}"

    def do_sync(self) -> None:
        """The writer of the VD ledger asks for a sync."""
        ledger_id = self.slots[_VOLATILE_SLOT]

        def done(status: int) -> None:
            if status == Status.OK:
                synced = self.storage.volatile.last_add_synced(ledger_id, _ALL)
                self.promises.acked[ledger_id].update(range(synced + 1))

        self.storage.sync(ledger_id, KEY, _ALL, done)

    def do_new(self, slot: int) -> None:
        """The old ledger stays."""
        self.slots[slot] = self.new_ledger()

    def do_close(self, slot: int) -> None:
        """Its writer closes the ledger: the metadata says so from now on."""
        self.commit()
        ledger_id = self.slots[slot]
        if ledger_id in self.metadata.list_ledgers():
            metadata, version = self.metadata.read_ledger(ledger_id)
            last = max(self.promised(ledger_id), default=-1)
            closed = replace(metadata, state=LedgerState.CLOSED, last_entry_id=last, length=max(0, last + 1))
            self.metadata.write_ledger(closed, version)
        self.slots[slot] = self.new_ledger()

    def do_backup(self) -> None:
        """Somebody copies the metadata."""
        world = self.metadata._world
        self.copied = world.ledger_ids, world.highest_given, dict(world.documents)

    def do_put_back(self) -> None:
        """The copy is put back, and the bookie starts."""
        self.killed = True
        world = self.metadata._world
        world.ledger_ids, world.highest_given, documents = self.copied
        world.documents = dict(documents)
        self.boot("")
        there = self.metadata.list_ledgers()
        self.slots = [one if one in there else self.new_ledger() for one in self.slots]

    def do_collect(self) -> None:
        self.commit()
        run_steps(self.storage.garbage_collection.collect(self.metadata), self.commit)

    def do_delete(self, slot: int) -> None:
        self.commit()
        ledger_id = self.slots[slot]
        self.metadata.delete_ledger(ledger_id)
        for promised in (self.promises.acked, self.promises.acked_early, self.promises.confirmed, self.lost_early):
            promised.pop(ledger_id, None)
        self.promises.fenced.discard(ledger_id)
        run_steps(self.storage.garbage_collection.collect(self.metadata), self.commit)
        self.slots[slot] = self.new_ledger()

    # -- work beside them

    def do_background(self) -> None:
        for directory in self.storage.holdings.directories:
            sync_in_background(directory.commit._writer._background)

    def do_idle(self) -> None:
        self.commit()
        self.do_background()
        for directory in self.storage.holdings.directories:
            directory.commit._writer.note_idle()

    def do_second(self) -> None:
        """A second passes, after which the notes are durable: of a directory that fails they are not."""
        self.commit()
        statuses: list[int] = []
        for directory in self.storage.live:
            directory.commit.submit(NoteSync(statuses.append))
        self.commit()
        if all(status == Status.OK for status in statuses):
            noted, _ = self.noted
            acked = {
                ledger_id: {one for one in acked if one in noted.get(ledger_id, ()) or self.is_held(ledger_id, one)}
                for ledger_id, acked in self.promises.acked.items()
            }
            self.noted = acked, set(self.promises.fenced)

    def is_held(self, ledger_id: int, entry_id: int) -> bool:
        """Is the entry in a directory that has not failed?"""
        return bool(self.storage.plan_read(ledger_id, entry_id, entry_id, 0, sparse=False).pieces)

    def do_checkpoint(self) -> None:
        self.checkpoint()

    def do_seal(self) -> None:
        self.seal()

    def do_reclaim(self, threshold: float, entry_logs: bool) -> None:
        self.reclaim(threshold, entry_logs=entry_logs)

    def do_scrub(self) -> None:
        """The scrub reads everything from the disk."""
        self.commit()
        self.scrub()

    def do_heal(self) -> None:
        """Copy what is missing from other bookies, then end limbo."""
        self.commit()
        boots, healed = self.storage.lossy_boots, True
        boot, limbo = boots.mark.boot, self.limbo()
        for ledger_id in self.promised_ledgers():
            missing = [
                entry_id for entry_id in self.promised(ledger_id) if not self.read(ledger_id, entry_id, entry_id)[0]
            ]
            answers = [
                self.add(ledger_id, entry_id, flags=RECOVERY, payload=self.payload(ledger_id)) for entry_id in missing
            ]
            self.commit()
            limbo_boot = limbo.pop(ledger_id, None)
            if any(answer != [Status.OK] for answer in answers):
                healed = False
            elif limbo_boot is not None:
                boots.clear_limbo(ledger_id, limbo_boot, self._cleared(ledger_id))
        for ledger_id, limbo_boot in limbo.items():
            boots.clear_limbo(ledger_id, limbo_boot, self._cleared(ledger_id))
        self.commit()
        if boot > boots.healed_boot and healed:
            boots.note_healed(boot, lambda status: None)
            self.commit()

    def limbo(self) -> dict[int, int]:
        """The ledgers in limbo, and the lossy boot that each is in limbo for."""
        known = map(self.storage.holdings.control.known, self.metadata.list_ledgers())
        return {ledger.ledger_id: ledger.limbo_boot for ledger in known if ledger.limbo}

    def _cleared(self, ledger_id: int) -> Any:
        def done(status: int) -> None:
            # Only a closed ledger leaves limbo, and nobody asks for the LAC of one.
            self.promises.confirmed.pop(ledger_id, None)

        return done

    # -- ends and boots

    def do_stop(self, fault: str) -> None:
        with suppress(StorageError):
            self.storage.close()
        self.killed = False
        self.boot(fault)

    def do_kill(self, fault: str) -> None:
        self.killed = True
        self.boot(fault)

    def do_without(self, number: int, kill: bool) -> None:
        """A boot without one of the directories. The next one has it again."""
        self.hurt = self.apart = True
        if kill:
            self.killed = True
        else:
            with suppress(StorageError):
                self.storage.close()
        self.boot("", [f"/disk{number}"][: self.story.disks - 1])

    def do_crash(self, seed: int, fault: str) -> None:
        """A power cut: one of ``LOSSES``, or one that is drawn."""
        self.killed = True
        self.power_cuts += 1
        if self.disk_lost_a_write and LOST_WITHIN_A_SECOND in KNOWN_OPEN:
            noted, fenced = self.noted
            self.excuse((self.promises.acked, self.promises.acked_early), noted)
            self.promises.fenced &= fenced
            self.promises.confirmed.clear()
        self.disk = self.disk.crashed(LOSSES[seed] if seed < 0 else drawn(seed))
        self.boot(fault)

    def boot(self, fault: str, without: Sequence[str] = ()) -> None:
        """A boot that fails because of ``fault``, of a full disk, or of an error that nobody was told yet, is tried again."""
        self.hurt |= bool(fault)
        # A note may be behind. Without one nothing but what lies there tells of a loss.
        noted = self.boots % 2 == 0
        reached = {directory.path: directory.reach() for directory in self.storage.live if noted}
        for left in range(_BOOTS_MAX)[::-1]:
            self.files = FaultyFileSystem(self.disk, *filter(None, [fault]))
            try:
                self.open(reached, without)
                return
            except (StorageError, BookieError, OSError) as error:
                if not left and self.lied:
                    raise StaysDown from error
                if not left or not (self.hurt or "No space left" in str(error)):
                    raise
                self.killed, fault, self.disk.capacity_bytes = True, "", 1 << 50

    def open(self, reached: Mapping[str, Reach] = NOTHING_NOTED, without: Sequence[str] = ()) -> None:
        self.boots += 1
        self.storage = Storage(
            self._settings,
            self.files,
            # As the kernel's: no flipped bit makes another one of it.
            boot_id=str(uuid.uuid5(uuid.NAMESPACE_OID, str(self.power_cuts))) if self.story.trusts_boot_id else "",
            check_fence=fence_check(self.metadata, ME),
            without=without,
        ).open(reached)
        why = why_lossy(self.storage.lossy_boots, ())
        if why:
            assert self.hurt or (self.killed and not self.story.journal), f"lossy boot without a cause: {why}"
            fence_what_may_be_lost(self.storage, self.metadata, ME, (), lambda text: None)
            self.storage.lossy_boots.phase_one_is_over()
            self.lossy = True
        keep_lost_records(self.storage, self.metadata)
        self.storage.start(lambda function, *arguments: function(*arguments))
        self.settle_early(why)

    def settle_early(self, why: str) -> None:
        """What a boot found of the entries that were acknowledged early is durable; what it did not find makes it lossy."""
        early, self.promises.acked_early = self.promises.acked_early, Promises().acked_early
        for ledger_id, entry_ids in early.items():
            found = {entry_id for entry_id in entry_ids if self.read(ledger_id, entry_id, entry_id)[0]}
            assert why or self.hurt or found == entry_ids, (
                f"early acknowledged entries of {ledger_id} are gone, not lossy"
            )
            self.promises.acked[ledger_id] |= found
            self.lost_early.setdefault(ledger_id, set()).update(entry_ids - found)

    # -- trouble

    def do_fault(self, rule: str) -> None:
        self.files.add(rule)
        self.hurt |= rule.rpartition(" ")[2] not in ("no-space", "too-many-files")
        self.disk_lost_a_write |= "lost" in rule or "misdirected" in rule
        self.lied |= self.disk_lost_a_write

    def do_full(self, left: int) -> None:
        """Somebody else fills the disk, up to this number of bytes."""
        self.disk.capacity_bytes = self.disk.used_bytes() + left

    def do_room(self) -> None:
        """There is room again, no rule strikes any more, and the disks are looked at."""
        self.files.clear()
        self.disk.capacity_bytes = 1 << 50
        for directory in self.storage.live:
            deque(self.storage.disks.look(directory, 0.1), maxlen=0)
        self.commit()

    def do_flip(self, which: float, where: float, bit: int) -> None:
        files = [(path, content) for path, content in self.disk.files().items() if content]
        if files:
            path, content = files[int(which * len(files))]
            self.disk.flip(path, int(where * len(content)), bit)
            self.hurt = self.lied = True

    def do_vanish(self, which: float) -> None:
        files = list(self.disk.files())
        if files:
            path = files[int(which * len(files))]
            self.disk.lose(path)
            self.hurt = self.lied = True
            if path.endswith("/unclean") and MARKER_VANISHED in KNOWN_OPEN:
                self.excuse((self.promises.acked_early,), {})

    def do_evict(self) -> None:
        self.disk.evict()

    def excuse(self, promised: tuple[dict[int, set[int]], ...], noted: dict[int, set[int]]) -> None:
        """Entries that are not ``noted`` may be denied from now on."""
        for of_ledger in promised:
            for ledger_id, entry_ids in of_ledger.items():
                entry_ids &= noted.get(ledger_id, set())

    # -- the law

    def payload(self, ledger_id: int) -> bytes:
        [content] = {entry.payload for entry in next(iter(self.promises.asked[ledger_id].values()))}
        return content.partition(b":")[2]

    def promised_ledgers(self) -> list[int]:
        return sorted({*self.promises.acked, *self.promises.acked_early, *self.lost_early})

    def promised(self, ledger_id: int) -> list[int]:
        lost = self.lost_early.get(ledger_id, set())
        return sorted(self.promises.acked[ledger_id] | self.promises.acked_early[ledger_id] | lost)

    def check(self) -> None:
        for ledger_id in self.promised_ledgers():
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
            self.check_sparse(ledger_id)
        if not self.lossy:
            told = [ledger_id for ledger_id, answer in self.added if answer == [Status.FENCED]]
            assert self.fence_asked.issuperset(told), f"told of a fence: {told}, and nobody fenced"
        self.added.clear()
        for ledger_id in self.promises.fenced:
            ledger = self.storage.holdings.control.known(ledger_id)
            assert ledger.fenced or ledger.fence_unsure or ledger.limbo, f"forgotten: the fence of {ledger_id}"
        for ledger_id, confirmed in self.promises.confirmed.items():
            known = self.storage.ledger(ledger_id)
            assert (
                self.lied
                or self.apart
                or (known is not None and (known.last_add_confirmed >= confirmed or known.limbo))
            ), f"forgotten: the explicit LAC {confirmed} of {ledger_id}: {known}"

        for ledger_id in self.promises.asked:
            known = self.storage.ledger(ledger_id)
            confirmed = -1 if known is None else known.last_add_confirmed
            assert self.lied or confirmed <= self.told.get(ledger_id, -1), (
                f"an LAC of {ledger_id} that nobody told: {known}"
            )

    def check_sparse(self, ledger_id: int) -> None:
        """What a sparse read passes over, it denies."""
        wanted = self.promised(ledger_id)
        if wanted:
            plan = self.storage.plan_read(ledger_id, wanted[0], wanted[-1], 0, sparse=True)
            given = {one for piece in plan.pieces for one in range(piece.first, piece.last + 1)}
            passed = [one for one in wanted if one <= plan.end and one not in given]
            assert not passed, f"denied: {passed} of {ledger_id} were passed over, and acknowledged"


def failure_of(story: Story) -> str:
    """What breaks the law in a story, in a line that names neither ids nor numbers; "" if nothing does. Within ``stepped``."""
    try:
        History(story).run()
    except (Exception, RecursionError) as error:
        frames = traceback.extract_tb(error.__traceback__)
        at = next(
            (f for f in reversed(frames) if "/bookspark/" in f.filename and "/testing/" not in f.filename), frames[-1]
        )
        where = "" if isinstance(error, AssertionError) else f" at {at.filename.rpartition('/')[2]}:{at.lineno}"
        text = re.sub(r"[0-9]+", "N", str(error).partition("\n")[0])[:120]
        return f"{type(error).__name__}{where}: {text}"
    return ""
