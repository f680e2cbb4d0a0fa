"""A storage without threads and a record of its promises, for tests that inspect it between any two operations."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.commit.commit_thread import (
    BackgroundSync,
    CommitThread,
    Completed,
    Post,
    SealLog,
    Soon,
    Sync,
    Synced,
)
from bookspark.store.bookie.commit.completions import ignore
from bookspark.store.bookie.disk.file_system import FileSystem
from bookspark.store.bookie.space.reclaiming import unlimited
from bookspark.store.bookie.steps import run_steps
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.entry_batch import Entry, EntryBatch
from bookspark.store.wire.header import Flag, Status, decode
from tests.store.bookie.kit import KEY, LocalRewriter, add_frame, entries, held_ledgers, read_entries, run_checkpoint
from tests.store.metadata.kit import ledger

_JOB_BYTES = 4000
_ALONE = {"value": 0, "limit": 1 << 20 | 1 << 10}
"""The assignment of an ensemble of one bookie, in an add to a VD (volatile durability) ledger."""


class AtOnce:
    """Runs submitted calls at once, in place of a ``ThreadPoolExecutor``."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        self.map = map

    def submit(self, function: Any, *arguments: Any) -> None:
        function(*arguments)

    def shutdown(self, **options: Any) -> None:
        """No threads to stop."""

    def __enter__(self) -> AtOnce:
        return self

    def __exit__(self, *error: object) -> None:
        """No threads to wait for."""


@contextmanager
def without_threads() -> Iterator[None]:
    """Commit threads created within have no thread: ``Stepped.commit`` does their work. Metadata is read at once."""

    def start(thread: Any, post: Post, completed: Completed, soon: Soon | None, *, alone: bool) -> None:
        # Kept in the thread itself: a table of threads here would keep every storage alive.
        thread.told = post, completed

    def step(thread: Any) -> None:
        while thread.queued:
            thread.commit_queued(*thread.told)

    def join(thread: Any, timeout: float) -> bool:
        if thread.told is not None:
            step(thread)
        return True

    with (
        patch.multiple(CommitThread, start=start, join=join, step=step, told=None, create=True),
        patch("bookspark.store.bookie.ledgers.metadata_looks.ThreadPoolExecutor", AtOnce),
        patch("bookspark.store.bookie.ledgers.metadata_looks._REST_SECONDS", 0),
    ):
        yield


@contextmanager
def overlapping_syncs() -> Iterator[None]:
    """Within ``without_threads``: background syncs wait until ``sync_in_background``, so other syncs can come between."""

    def submit(background: Any, sync: Sync, synced: Synced, *, apart: bool) -> None:
        background._queue.put(sync)
        background._told = synced

    def stop(background: Any) -> None:
        sync_in_background(background)

    with patch.multiple(BackgroundSync, submit=submit, stop=stop):
        yield


def sync_in_background(background: Any) -> None:
    """Run the waiting background syncs."""
    while not background._queue.empty():
        background.sync_queued(background._told)


class Promises:
    """The requests to a storage, and its promises."""

    def __init__(self) -> None:
        self.asked: dict[int, dict[int, list[Entry]]] = defaultdict(lambda: defaultdict(list))
        """Ledger and entry id → each content sent for it."""
        self.acked: dict[int, set[int]] = defaultdict(set)
        """Entries acknowledged as synced."""
        self.acked_early: dict[int, set[int]] = defaultdict(set)
        """Entries acknowledged before the sync by a bookie without a journal. A crash may lose them, and the next boot must
        know it."""
        self.fenced: set[int] = set()
        self.confirmed: dict[int, int] = {}
        """Explicit LACs (last add confirmed)."""

    @property
    def count(self) -> int:
        """A number that grows with every promise."""
        acked = (*self.acked.values(), *self.acked_early.values())
        return sum(map(len, acked)) + len(self.fenced) + sum(self.confirmed.values())


class Stepped:
    """A storage whose loop and commit threads run in the test, within ``without_threads``."""

    def __init__(self, settings: BookieConfig, files: FileSystem, promises: Promises | None = None) -> None:
        self._settings = settings
        self.files = files
        self.promises = promises or Promises()
        self.open()

    def open(self) -> None:
        self.storage = Storage(self._settings, self.files).open()
        self.storage.start(lambda function, *arguments: function(*arguments))

    def commit(self) -> None:
        """Write all queued items: one group per directory."""
        for directory in self.storage.holdings.directories:
            directory.commit.step()

    def add(self, ledger_id: int, first: int, last: int | None = None, **options: Any) -> list[int]:
        """Queue an add; its status will be in the list."""
        last = first if last is None else last
        flags = options.get("flags", 0)
        if flags & Flag.VOLATILE:
            options |= _ALONE
        frame = add_frame(ledger_id, first, last, **options)
        asked = self.promises.asked[ledger_id]
        for entry in entries(
            ledger_id, first, last, options.get("payload", b"payload"), options.get("last_add_confirmed", -1)
        ):
            asked[entry.entry_id].append(entry)
        statuses: list[int] = []

        after_sync = self._settings.journal_write_data or flags & Flag.RECOVERY
        acked = self.promises.acked if after_sync else self.promises.acked_early

        def done(status: int) -> None:
            statuses.append(status)
            if status == Status.OK and not flags & Flag.VOLATILE:
                acked[ledger_id].update(range(first, last + 1))

        header, crc = decode(frame, HEADER_OFFSET)
        self.storage.add(header, EntryBatch.checked(frame, header, crc), done)
        return statuses

    def fence(self, ledger_id: int) -> None:
        def done(status: int) -> None:
            if status == Status.OK:
                self.promises.fenced.add(ledger_id)

        self.storage.fence(ledger_id, KEY, done)

    def confirm(self, ledger_id: int, entry_id: int) -> None:
        """Send an explicit LAC."""

        def done(status: int) -> None:
            if status == Status.OK:
                known = self.promises.confirmed
                known[ledger_id] = max(entry_id, known.get(ledger_id, -1))

        self.storage.write_last_add_confirmed(ledger_id, KEY, entry_id, done)

    def checkpoint(self) -> None:
        run_checkpoint(self.storage)
        self.commit()

    def seal(self) -> None:
        """Seal the open logs, as if they were full."""
        for directory in self.storage.live:
            directory.commit.submit(SealLog(directory.current, ignore))
            directory.current = None
        self.commit()

    def reclaim(self, threshold: float = 0.0, *, entry_logs: bool = True) -> None:
        """One pass over the sealed logs."""
        steps = self.storage.reclaiming.reclaim(
            LocalRewriter(self.files), threshold, _JOB_BYTES, unlimited, entry_logs=entry_logs
        )
        run_steps(steps, self.commit)

    def scrub(self) -> None:
        """A whole scrub round, and a check of the other files."""
        scrubbing = self.storage.scrubbing
        scrubbing.begin(1000)
        while scrubbing.under_way:
            self.scrub_group()
        run_steps(self.storage.kept_files.look(), self.commit)
        self.commit()

    def scrub_group(self) -> None:
        """Scrub the next logs of a round."""
        scrubbing = self.storage.scrubbing
        logs, following = run_steps(scrubbing.group(), self.commit)
        for number, pieces in logs.items():
            for looked in scrubbing.look(number, pieces):
                run_steps(scrubbing.looked(number, looked), self.commit)
        scrubbing.end_group(following, 2000)

    def delete(self, *deleted: int) -> None:
        """Delete ledgers and collect them: from now on their entries may be there or not."""
        self.commit()
        metadata = MemoryStore()
        metadata.note_given_id(max(deleted))
        for ledger_id in held_ledgers(self.storage) - set(deleted):
            metadata.create_ledger(ledger(ledger_id))
        for ledger_id in deleted:
            for promised in (self.promises.acked, self.promises.acked_early):
                promised[ledger_id].clear()
            self.promises.fenced.discard(ledger_id)
            self.promises.confirmed.pop(ledger_id, None)
        held = held_ledgers(self.storage) & set(deleted)
        assert run_steps(self.storage.garbage_collection.collect(metadata), self.commit) == len(held)

    def restart(self) -> None:
        """A clean stop, and a start."""
        self.storage.close()
        self.open()

    def read(self, ledger_id: int, first: int, last: int, *, sparse: bool = False) -> tuple[list[Entry], Any]:
        return read_entries(self.storage, ledger_id, first, last, sparse=sparse)
