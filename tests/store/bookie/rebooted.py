"""Stops and boots of the bookie in ``histories``, and faults of its disks.

Law: the possible cost of each fault is recorded here, and nothing else is excused.
"""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress

from bookspark.errors import BookieError, StorageError
from bookspark.protocol.bookie.reach import NOTHING_NOTED, Reach
from bookspark.servers.daemon.bookie_process import fence_check, fence_what_may_be_lost, keep_lost_records, why_lossy
from bookspark.store.bookie.storage import Storage
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.power_cuts import LOSSES, drawn
from tests.store.bookie.judged import ME, Judged
from tests.store.bookie.known_open import KNOWN_OPEN, LOST_WITHIN_A_SECOND, MARKER_VANISHED

_BOOTS_MAX = 5
"""The number of boot attempts after an injected fault: each file may have an error to report."""


class StaysDown(Exception):
    """A boot reported damage: the end of a story with a lying disk."""


class Rebooted(Judged):
    """A storage that stops and boots, on disks that fail and lie."""

    killed = True
    boots = power_cuts = 0

    # -- stops and boots

    def do_stop(self, fault: str) -> None:
        with suppress(StorageError):
            self.storage.close()
        self.killed = False
        self.boot(fault)

    def do_kill(self, fault: str) -> None:
        self.killed = True
        self.boot(fault)

    def do_without(self, number: int, kill: bool) -> None:
        """Boot without one of the directories; the next boot has it again."""
        self.hurt = self.apart = True
        if kill:
            self.killed = True
        else:
            with suppress(StorageError):
                self.storage.close()
        self.boot("", [f"/disk{number}"][: self.story.disks - 1])

    def do_crash(self, seed: int, fault: str) -> None:
        """A power cut: one of ``LOSSES``, or a drawn one."""
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
        """Boot; try again after a failure from ``fault``, a full disk, or an earlier unreported error."""
        self.hurt |= bool(fault)
        # A note may lag behind. Without a note, only the files themselves show a loss.
        noted = self.boots % 2 == 0
        reached = {directory.path: directory.reach() for directory in self.storage.live if noted}
        for left in range(_BOOTS_MAX)[::-1]:
            self.files = FaultyFileSystem(self.disk, *filter(None, [fault]))
            broken = self.no_control_log_is_whole
            try:
                self.open(reached, without)
                assert not broken, "serves, and no control log was whole"
                self.damaged.clear()
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
            # Like the kernel's boot id: no flipped bit turns it into another valid one.
            boot_id=str(uuid.uuid5(uuid.NAMESPACE_OID, str(self.power_cuts))) if self.story.trusts_boot_id else "",
            check_fence=fence_check(self.metadata, ME),
            without=without,
        ).open(reached)
        # First, since a lossy boot takes an id, which could be the id of a held ledger.
        keep_lost_records(self.storage, self.metadata)
        why = why_lossy(self.storage.lossy_boots, ())
        if why:
            assert self.hurt or (self.killed and not self.story.journal), f"lossy boot without a cause: {why}"
            fence_what_may_be_lost(self.storage, self.metadata, ME, (), lambda text: None)
            self.storage.lossy_boots.phase_one_is_over()
            self.lossy = True
        else:
            self.storage.lossy_boots.note_first_mark(self.metadata.highest_ledger_id())
        self.storage.start(lambda function, *arguments: function(*arguments))
        self.settle_early(why)

    # -- faults

    def do_fault(self, rule: str) -> None:
        self.files.add(rule)
        self.hurt |= rule.rpartition(" ")[2] not in ("no-space", "too-many-files")
        self.disk_lost_a_write |= "lost" in rule or "misdirected" in rule
        self.lied |= self.disk_lost_a_write

    def do_full(self, left: int) -> None:
        """Other files fill the disk, up to ``left`` free bytes."""
        self.disk.capacity_bytes = self.disk.used_bytes() + left

    def do_room(self) -> None:
        """The disks have room again, all fault rules are cleared, and the disks are checked."""
        self.files.clear()
        self.disk.capacity_bytes = 1 << 50
        for directory in self.storage.live:
            deque(self.storage.disks.look(directory, 0.1), maxlen=0)
        self.commit()

    def do_flip(self, which: float, where: float, bit: int) -> None:
        files = [(path, content) for path, content in self.disk.files().items() if content]
        if files:
            path, content = files[int(which * len(files))]
            self.flip(path, int(where * len(content)), bit)

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

    def do_flip_control(self, number: int, where: float, bit: int) -> None:
        """Flip a bit in the durable part of a control log."""
        self.do_second()
        for directory in self.storage.live:
            path = f"{directory.path}/control.log"
            content = self.disk.files().get(path, b"")
            place = int(where * min(directory.control.synced, len(content)))
            if directory.number == number % self.story.disks and content[place:]:
                self.flip(path, place, bit)
                self.damaged[path] = self.disk.files()[path][: place + 1]

    def flip(self, path: str, place: int, bit: int) -> None:
        self.disk.flip(path, place, bit)
        self.hurt = self.lied = True
