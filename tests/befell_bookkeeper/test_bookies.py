"""Failures of BookKeeper's bookies: fences, collection, compaction, checkpoints and full disks (docs/befell.md)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from random import Random

import pytest

from bookspark.protocol.bookie.bookie_ledger import NO_SUCH_LEDGER
from bookspark.protocol.ledger.responses import Unknown
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.log_scan import SCHEMA
from bookspark.store.bookie.space.reclaiming import unlimited
from bookspark.store.bookie.space.rewriting import Job, NoRewriterError, Rewritten
from bookspark.store.bookie.steps import run_steps
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import nothing_kept
from tests.awaiting import await_that
from tests.store.bookie.kit import KEY, OTHER_KEY, LocalRewriter, config
from tests.store.bookie.stepped import Stepped, without_threads


@pytest.fixture(autouse=True)
def stepped() -> Iterator[None]:
    with without_threads():
        yield


def settings(*directories: str, **options: object) -> BookieConfig:
    return config(*map(Path, directories), **options)


@pytest.mark.parametrize("known", [False, True], ids=["a new ledger", "a ledger with entries"])
def test_4701_fence_sees_every_acknowledged_add_in_any_order(known: bool) -> None:
    """BookKeeper #4701: an add and a fence were the first requests for a ledger, at the same moment. Each created an object
    for it, with its own lock. The fence marked one object and read "no entries"; the other admitted the add, which was
    acknowledged behind the end that recovery had determined.

    Here every order of two adds, a fence, and the disk's work between them: the fence has seen each acknowledged add."""
    first = 5 if known else 0
    steps = ("add", "add", "fence", "disk", "disk")
    for order in set(permutations(steps)):
        run = Stepped(settings("/disk"), MemoryFileSystem("/disk"))
        if known:
            run.add(7, 0, 4)
            run.commit()
        seen: list[int] = []
        statuses: list[list[int]] = []

        def fenced(_: int, run: Stepped = run, seen: list[int] = seen) -> None:
            seen.append(run.storage.holdings.last_entry_id(7))

        for step in (*order, "disk"):
            match step:
                case "add":
                    statuses.append(run.add(7, first + len(statuses)))
                case "fence":
                    run.storage.fence(7, KEY, fenced)
                case _:
                    run.commit()
        fenced_after = order[: order.index("fence")].count("add")
        assert statuses == [[Status.OK]] * fenced_after + [[Status.FENCED]] * (2 - fenced_after), order
        assert seen == [first - 1 + fenced_after], order
        run.storage.close()


@pytest.mark.parametrize("header", ["zeros", "noise", "the end of another file"])
def test_4607_log_with_a_wrong_header_is_neither_collected_nor_taken_for_empty(header: str) -> None:
    """BookKeeper #4607: the buffer for a new log's header was not cleared, so a header said that the log names no ledgers.
    Collection believed it, and deleted the entries of live ledgers.

    Here the header decides nothing: the index names the live entries, and a boot reads past a wrong header."""
    files = MemoryFileSystem("/disk")
    run = Stepped(settings("/disk"), files)
    for ledger_id in (5, 6, 7):
        run.add(ledger_id, 0, 9)
    run.commit()
    run.seal()
    wrong = {
        "zeros": bytes(len(SCHEMA)),
        "noise": Random(4607).randbytes(len(SCHEMA)),
        "the end of another file": SCHEMA[8:] + bytes(8),
    }[header]
    files.open("/disk/logs/00000001.arrows", write=True).write([wrong], 0)
    files.sync_all()
    run.delete(6)
    run.reclaim(threshold=0.1, entry_logs=False)
    assert [entry.entry_id for ledger in (5, 7) for entry in run.read(ledger, 0, 9)[0]] == [*range(10)] * 2
    run.storage.close()
    for name in files.list("/disk"):
        if name.startswith("checkpoint"):
            files.unlink(f"/disk/{name}")
    run.open()
    assert [entry.entry_id for ledger in (5, 7) for entry in run.read(ledger, 0, 9)[0]] == [*range(10)] * 2
    run.storage.close()


def test_4740_earlier_checkpoint_never_overwrites_a_later_one() -> None:
    """BookKeeper #4740 and #4105: a flush took the position of the journal, then had the storage flush, which took a later
    position, wrote it and removed the journals before it. The first flush ended by writing its own, earlier position. The next
    start missed the removed journals, and the bookie stayed down.

    Here the later checkpoint stays on the disk, and a start has everything that it names. (``test_rewriting`` has the same with
    logs removed meanwhile.)"""
    files = MemoryFileSystem("/disk")
    run = Stepped(settings("/disk"), files)
    run.add(5, 0, 9)
    run.commit()
    run.seal()
    earlier = run_steps(run.storage.checkpoint(), run.commit)
    run.add(5, 10, 19)
    run.commit()
    run.reclaim()
    assert not files.exists("/disk/logs/00000001.arrows"), "a later checkpoint is on the disk"
    run.storage.write_checkpoints(earlier)
    run.storage.close = lambda: None  # type: ignore[method-assign]
    again = Stepped(settings("/disk"), files.crashed(nothing_kept))
    assert [entry.entry_id for entry in again.read(5, 0, 19)[0]] == list(range(20))
    assert not again.storage.holdings.damaged
    again.storage.close()


def test_4640_bookie_that_was_full_accepts_adds_after_a_restart_with_room() -> None:
    """BookKeeper #4640: a bookie became read-only because its disk was full, and kept that state for its next start. Although
    the disk had been emptied, it stayed read-only, because only a change from full to not full made it writable.

    Here fullness is measured and never stored. Only the operator's switch is stored
    (``test_full_disks_say_so.test_read_only_switch_survives_a_restart``)."""
    files = MemoryFileSystem("/disk", capacity_bytes=1 << 20)
    run = Stepped(settings("/disk"), files)
    run.add(5, 0, payload=bytes(900_000))
    run.commit()
    run_steps(run.storage.disks.look(run.storage.live[0], 0.96), run.commit)
    assert run.storage.status().read_only
    refused = run.add(6, 0)
    run.commit()
    assert refused == [Status.READ_ONLY]
    run.storage.close()
    files.capacity_bytes = 100 << 20
    run.open()
    assert not run.storage.status().read_only
    taken = run.add(6, 0)
    run.commit()
    assert taken == [Status.OK]
    run.storage.close()


@pytest.mark.parametrize("failing", ["/a", "/b"])
@pytest.mark.parametrize("fault", ["no-space", "io-error"])
def test_4661_full_disk_does_not_stop_reclaiming_on_other_disks(failing: str, fault: str) -> None:
    """BookKeeper #4661: each directory has its own collector, and all of them were notified of any full disk. So one full disk
    ended the collection and compaction of all others, until they were full too.

    Here a job without room, or a failing disk, leaves the jobs of the other directory alone."""
    files = FaultyFileSystem(MemoryFileSystem("/a", "/b"))
    run = Stepped(settings("/a", "/b"), files)
    for ledger_id in range(8):
        run.add(ledger_id, 0, 9)
    run.commit()
    run.seal()
    for ledger_id in (0, 1):
        run.delete(ledger_id)
    for kind in ("write", "preallocate"):
        files.add(f"{kind} {failing}/logs/*.arrow.* 1.. {fault}")
    run.reclaim()
    rewritten = {log.directory for log in run.storage.logs.values() if not isinstance(log, EntryLog)}
    assert rewritten == {"/a", "/b"} - {failing}
    for ledger_id in range(2, 8):
        assert len(run.read(ledger_id, 0, 9)[0]) == 10
    run.storage.close()


@pytest.mark.parametrize("stated", [0x7FFFFFF0, -8, 0], ids=["two gigabytes", "negative", "nothing"])
def test_4596_unreadable_log_ends_no_compaction(stated: int) -> None:
    """BookKeeper #4596 and #4544: the size of an entry in a log was damaged. Reading through that log requested gigabytes of
    memory for one entry, and the collector's thread died silently: no log was compacted any more until an operator moved the file
    away.

    Here the damaged batch is lost and reported, all other batches move, and the space of the other logs is reclaimed in that
    pass, that of the damaged log once another copy has taken the place of the lost one."""
    files = MemoryFileSystem("/disk")
    run = Stepped(settings("/disk"), files)
    for ledger_id in (5, 6, 7):
        run.add(ledger_id, 0, 9)
        run.add(ledger_id + 10, 0, 9)
        run.commit()
        run.seal()
    log = files.open("/disk/logs/00000002.arrows", write=True)
    stated_at = len(SCHEMA) + 48
    assert struct.unpack("<q", log.read(8, stated_at))[0] > 0, "the length of the first batch's body"
    log.write([struct.pack("<q", stated)], stated_at)
    run.reclaim()
    run.commit()  # the lost batch is noted; the old logs go after that
    run.reclaim()
    assert [number for number, log in run.storage.logs.items() if isinstance(log, EntryLog)] == [2]
    for ledger_id in (5, 15, 16, 7, 17):
        assert len(run.read(ledger_id, 0, 9)[0]) == 10
    assert isinstance(run.read(6, 0, 9)[1], Unknown)
    assert run.storage.status().lacking_ledgers == 1
    run.add(6, 0, 9, flags=int(Flag.RECOVERY))
    run.commit()
    run.checkpoint()
    run.reclaim()
    assert 2 not in run.storage.logs and len(run.read(6, 0, 9)[0]) == 10
    run.storage.close()


class Rewriter(LocalRewriter):
    """A rewriter that dies on one log and stays away for the rest of the pass."""

    def __init__(self, files: MemoryFileSystem, deadly: int) -> None:
        super().__init__(files)
        self.deadly = deadly
        self.dead = False

    def rewrite(self, job: Job) -> Rewritten:
        if self.dead:
            raise NoRewriterError("it is not time yet to begin another one")
        if any(log.number == self.deadly for log in job.sources):
            self.dead = True
            raise ConnectionResetError("the rewriting process has ended")
        return super().rewrite(job)


def test_4596_log_that_kills_its_rewriter_comes_last_afterwards() -> None:
    """A log that always fails does not block the other logs."""
    files = MemoryFileSystem("/disk")
    run = Stepped(settings("/disk"), files)
    for ledger_id in range(6):
        run.add(ledger_id, 0, 9)
        run.commit()
        run.seal()
    for _ in range(4):
        steps = run.storage.reclaiming.reclaim(Rewriter(files, 1), 0.0, 2000, unlimited, entry_logs=True)
        run_steps(steps, run.commit)
    assert [log.number for log in run.storage.logs.values() if isinstance(log, EntryLog)] == [1]
    assert all(len(run.read(ledger_id, 0, 9)[0]) == 10 for ledger_id in range(6))
    run.reclaim()
    assert not any(isinstance(log, EntryLog) for log in run.storage.logs.values()), "it is tried again each time"
    run.storage.close()


def test_4657_deleted_ledger_is_not_reported_as_a_wrong_password() -> None:
    """BookKeeper #4657: once fences outlived their ledgers (#4462), opening a deleted ledger reported a wrong password, because
    the new error had no answer of its own. Here each request for it has its own answer."""
    run = Stepped(settings("/disk"), MemoryFileSystem("/disk"))
    run.add(5, 0)
    run.fence(5)
    run.commit()
    run.delete(5)
    assert run.read(5, 0, 0) == ([], NO_SUCH_LEDGER)
    assert run.storage.holdings.may_read(5, KEY) and run.storage.holdings.may_read(5, OTHER_KEY)
    run.storage.write_last_add_confirmed(5, KEY, 0, (told := []).append)
    late, copy = run.add(5, 1), run.add(5, 1, flags=int(Flag.RECOVERY))
    run.fence(5)
    run.commit()
    await_that(lambda: told and late and copy, what="an answer to each")
    assert told == [Status.LIMBO] and late == [Status.LIMBO], "the metadata is asked, and does not answer here"
    assert copy == [Status.OK]
    run.storage.close()
