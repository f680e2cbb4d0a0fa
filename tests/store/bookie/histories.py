"""Random histories of one bookie's storage: adds, fences, reclaiming, kills and power cuts on disks that fail and lie.

Law: an acknowledged entry is served unchanged or answered Unknown; it is never denied and never replaced by another. A fence
holds or is reported as unsure: the old writer adds nothing, and ledger recovery can add. A boot is lossy only if acknowledged
data may be lost, and a bookie without an intact control log stays down. Where only kills, power cuts and full disks were
injected, nothing is missing. A sparse read skips no entry that exists or may be lost. No answer reports a fence that no client
requested, or an LAC (last add confirmed) that no client sent; a wrong password changes nothing. An id with held data is given
to no other ledger, even after an older copy of the metadata is restored. A ledger is collected only if two looks at the
metadata do not find it. Only a boot may end in an exception, and its message names the damage.

``judged`` keeps the true state and has the laws; ``rebooted`` has the stops, boots and faults.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

from bookspark.errors import NoSuchLedgerError
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.store.bookie.commit.commit_thread import NoteSync
from bookspark.store.bookie.steps import run_steps
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Status, decode
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from tests.store.bookie.kit import KEY, OTHER_KEY, add_frame, config
from tests.store.bookie.rebooted import Rebooted, StaysDown
from tests.store.bookie.stepped import AtOnce, Promises, overlapping_syncs, sync_in_background, without_threads
from tests.store.bookie.stories import RECOVERY, VOLATILE, Step, Story

_ALL = Assignment(0)
_PAYLOADS = (b"payload", b"x" * 300, b"volatile")
_VOLATILE_SLOT = 2
_QUIET = frozenset(
    {
        "add",
        "confirm",
        "fence",
        "again",
        "room",
        "fault",
        "background",
        "idle",
        "new",
        "sync",
        "full",
        "close",
        "backup",
    }
)
"""Steps without any effect that a check could detect."""


@contextmanager
def stepped() -> Iterator[None]:
    """No threads, small control logs, and background syncs that wait until ``sync_in_background``."""
    with (
        without_threads(),
        overlapping_syncs(),
        patch("bookspark.store.bookie.disk.control_log._REWRITE_BYTES_MIN", 150),
        patch("bookspark.servers.daemon.bookie_process.ThreadPoolExecutor", AtOnce),
    ):
        yield


class History(Rebooted):
    """A story in progress."""

    def __init__(self, story: Story) -> None:
        paths = [Path(f"/disk{number}") for number in range(story.disks)]
        self.promises = Promises()
        self.begin(story, MemoryFileSystem(*map(str, paths)))
        self.asked: Step = ("commit",)
        """The last request."""
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
        if step[0] in ("add", "fence", "confirm"):
            self.asked = step
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
        self.begin_recovery(self.slots[slot])
        self.fence_asked.add(self.slots[slot])
        self.fence(self.slots[slot])

    def do_confirm(self, slot: int, entry_id: int) -> None:
        ledger_id = self.slots[slot]
        self.told[ledger_id] = max(entry_id, self.told.get(ledger_id, -1))
        self.confirm(ledger_id, entry_id)

    def do_again(self) -> None:
        """Repeat the last request, as a duplicate or a client's retry."""
        getattr(self, f"do_{self.asked[0]}")(*self.asked[1:])

    def do_stranger(self, slot: int, what: str) -> None:
        """A request with another password, where the bookie surely knows the right one."""
        ledger_id = self.slots[slot]
        self.commit()
        if not (self.promises.acked.get(ledger_id) or ledger_id in self.promises.fenced) or self.lied or self.lossy:
            return
        answers: list[int] = []
        if what == "add":
            frame = add_frame(ledger_id, 0, payload=b"stranger", master_key=OTHER_KEY, flags=RECOVERY)
            header, crc = decode(frame, HEADER_OFFSET)
            self.storage.add(header, EntryBatch.checked(frame, header, crc), answers.append)
        elif what == "fence":
            self.storage.fence(ledger_id, OTHER_KEY, answers.append)
        else:
            self.storage.write_last_add_confirmed(ledger_id, OTHER_KEY, 99, answers.append)
        self.commit()
        assert Status.OK not in answers, f"granted: a stranger's {what} of {ledger_id}"

    def do_sync(self) -> None:
        """The writer of the VD (volatile durability) ledger asks for a sync."""
        ledger_id = self.slots[_VOLATILE_SLOT]

        def done(status: int) -> None:
            if status == Status.OK:
                synced = self.storage.volatile.last_add_synced(ledger_id, _ALL)
                self.promises.acked[ledger_id].update(range(synced + 1))

        self.storage.sync(ledger_id, KEY, _ALL, done)

    def do_new(self, slot: int) -> None:
        """Replace the ledger of the slot; the old one stays."""
        self.slots[slot] = self.new_ledger()

    def do_close(self, slot: int) -> None:
        """The writer closes the ledger; the metadata records it."""
        self.commit()
        self.close_ledger(self.slots[slot])
        self.slots[slot] = self.new_ledger()

    def do_backup(self) -> None:
        """Copy the metadata."""
        world = self.metadata._world
        self.copied = world.ledger_ids, world.highest_given, dict(world.documents)

    def do_put_back(self) -> None:
        """Restore the copy and start the bookie."""
        self.killed = True
        world = self.metadata._world
        world.ledger_ids, world.highest_given, documents = self.copied
        world.documents = dict(documents)
        self.boot("")
        there = self.metadata.list_ledgers()
        self.slots = [one if one in there else self.new_ledger() for one in self.slots]

    def do_collect(self, wrong: str = "") -> None:
        """``wrong``: the metadata lookup that finds no ledger, "listing" or "record". Either alone proves nothing."""
        self.commit()
        looks: dict[str, AbstractContextManager[object]] = {
            "listing": patch.object(self.metadata, "list_ledgers", return_value=[]),
            "record": patch.object(self.metadata, "read_ledger", side_effect=NoSuchLedgerError("no such ledger")),
        }
        with looks.get(wrong, nullcontext()):
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

    # -- background work

    def do_background(self) -> None:
        for directory in self.storage.holdings.directories:
            sync_in_background(directory.commit._writer._background)

    def do_idle(self) -> None:
        self.commit()
        self.do_background()
        for directory in self.storage.holdings.directories:
            directory.commit._writer.note_idle()

    def do_second(self) -> None:
        """A second passes and the notes become durable, except in a failed directory."""
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
        return bool(self.storage.holdings.plan_read(ledger_id, entry_id, entry_id, 0, sparse=False).pieces)

    def do_checkpoint(self) -> None:
        self.checkpoint()

    def do_seal(self) -> None:
        self.seal()

    def do_reclaim(self, threshold: float, entry_logs: bool) -> None:
        self.reclaim(threshold, entry_logs=entry_logs)

    def do_scrub(self) -> None:
        """Scrub everything on the disk."""
        self.commit()
        self.scrub()

    def do_heal(self, part: float = 1.0, nowhere: int = 0) -> None:
        """Copy missing entries from other bookies, then end limbo. ``part``: the share of ledgers done if healing ends early.
        ``nowhere``: the number of entries of each ledger that no other bookie has."""
        self.commit()
        boots, healed = self.storage.lossy_boots, part >= 1.0
        boot, limbo = boots.mark.boot, self.limbo()
        ledgers = sorted({*self.promised_ledgers(), *limbo})
        for ledger_id in ledgers[: round(part * len(ledgers))]:
            if ledger_id in limbo:
                # Ledger recovery comes first.
                self.close_ledger(ledger_id)
                self.slots = [self.new_ledger() if one == ledger_id else one for one in self.slots]
            elif (metadata := self.metadata_of(ledger_id)) is None or not metadata.closed:
                # Its end is unknown, and so are its missing entries.
                continue
            missing = [
                entry_id for entry_id in self.promised(ledger_id) if not self.read(ledger_id, entry_id, entry_id)[0]
            ]
            answers = [
                self.add(ledger_id, entry_id, flags=RECOVERY, payload=self.payload(ledger_id))
                for entry_id in missing[nowhere:]
            ]
            self.commit()
            if any(answer != [Status.OK] for answer in answers):
                healed = False
                continue
            if missing[:nowhere]:
                boots.note_lost(ledger_id, [(one, one) for one in missing[:nowhere]], lambda status: None)
            if ledger_id in limbo:
                boots.clear_limbo(ledger_id, limbo[ledger_id], self._cleared(ledger_id))
        self.commit()
        if boot > boots.healed_boot and healed:
            boots.note_healed(boot, lambda status: None)
            self.commit()

    def limbo(self) -> dict[int, int]:
        """The ledgers in limbo, each with its lossy boot."""
        known = map(self.storage.holdings.control.known, self.metadata.list_ledgers())
        return {ledger.ledger_id: ledger.limbo_boot for ledger in known if ledger.limbo}

    def _cleared(self, ledger_id: int) -> Any:
        def done(status: int) -> None:
            # Only a closed ledger leaves limbo, and no client asks a closed ledger for its LAC.
            self.promises.confirmed.pop(ledger_id, None)

        return done


def failure_of(story: Story) -> str:
    """The broken law of a story, as a line without ids and numbers; "" if no law breaks. Call it within ``stepped``."""
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
