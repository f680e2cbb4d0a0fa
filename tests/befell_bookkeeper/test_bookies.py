"""What befell bookies of BookKeeper: fences, collection, compaction, checkpoints and full disks (docs/befell.md)."""

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
def test_4701_what_a_fence_answers_holds_for_every_add_whatever_the_order(known: bool) -> None:
    """BookKeeper #4701: an add and a fence were the first to ask for a ledger, at the same moment. Each made an object for it,
    with a lock of its own. The fence marked one of the two, and read "no entries"; the add was admitted by the other one, and
    acknowledged behind the end that recovery found.

    Here each order of two adds, a fence, and the disk's work between them: what is acknowledged was seen by the fence."""
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
            seen.append(run.storage.last_entry_id(7))

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
def test_4607_a_log_with_a_wrong_header_is_neither_taken_for_dead_nor_for_empty(header: str) -> None:
    """BookKeeper #4607: the buffer for a new log's header was not cleared, so a header said that the log names no ledgers.
    Collection believed it, found nothing that lives in the log, and deleted the entries of ledgers that were alive.

    Here the header decides nothing: what lives is what the index names, and a boot reads behind a header that is wrong."""
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
    files.open("/disk/logs/00000001.arrows").write([wrong], 0)
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


def test_4740_a_checkpoint_that_was_taken_first_and_is_written_last_does_not_go_back() -> None:
    """BookKeeper #4740 and #4105: a flush took the position of the journal, then had the storage flush, which took a later one,
    wrote it and removed the journals before it. The first flush ended by writing its own, earlier position. The next start looked
    for journals that were gone, and the bookie stayed down.

    Here both end with the later one on the disk, and a start finds what it names. (``test_rewriting`` has the same with logs that
    are removed meanwhile.)"""
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
    assert not again.storage.damaged
    again.storage.close()


def test_4640_a_bookie_that_was_full_and_has_room_when_it_starts_again_takes_adds() -> None:
    """BookKeeper #4640: a bookie turned read-only because its disk was full, and kept that for its next start. Although the disk
    had been emptied meanwhile, it stayed read-only, because only a change from full to not full made it writable.

    Here fullness is measured and never noted. What is noted is only the switch of an operator
    (``test_full_disks_say_so.test_the_switch_is_kept_over_a_restart``)."""
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
def test_4661_a_disk_without_room_stops_the_reclaiming_of_no_other(failing: str, fault: str) -> None:
    """BookKeeper #4661: each directory has a collector of its own, and all of them heard when any disk was full. So one full disk
    ended the collection and compaction of all others, until they were full too.

    Here a job that finds no room, or a disk that fails, leaves the jobs of the other directory as they are."""
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
def test_4596_a_log_that_can_not_be_read_through_ends_no_compaction(stated: int) -> None:
    """BookKeeper #4596 and #4544: an entry's size in one log had gone wrong. Who read through that log wanted gigabytes of memory
    for one entry, and the thread of the collector died without a word: no log was compacted any more until somebody moved the
    file away.

    Here the damaged batch is lost and told of, all others move, and the space of all logs comes back in the same pass."""
    files = MemoryFileSystem("/disk")
    run = Stepped(settings("/disk"), files)
    for ledger_id in (5, 6, 7):
        run.add(ledger_id, 0, 9)
        run.add(ledger_id + 10, 0, 9)
        run.commit()
        run.seal()
    log = files.open("/disk/logs/00000002.arrows")
    stated_at = len(SCHEMA) + 48
    assert struct.unpack("<q", log.read(8, stated_at))[0] > 0, "the length of the first batch's body"
    log.write([struct.pack("<q", stated)], stated_at)
    run.reclaim()
    run.commit()  # that the batch is lost is noted; the old logs go after that
    run.reclaim()
    assert all(not isinstance(log, EntryLog) for log in run.storage.logs.values())
    for ledger_id in (5, 15, 16, 7, 17):
        assert len(run.read(ledger_id, 0, 9)[0]) == 10
    assert isinstance(run.read(6, 0, 9)[1], Unknown)
    assert run.storage.status().lacking_ledgers == 1
    run.storage.close()


class Rewriter(LocalRewriter):
    """It dies of one log, and is not back for the rest of the pass."""

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


def test_4596_a_log_that_its_rewriter_dies_of_comes_last_from_then_on() -> None:
    """The same from the other side: whatever goes wrong with a log, the others are not behind it for ever."""
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


def test_4657_a_ledger_that_is_gone_is_no_matter_of_passwords() -> None:
    """BookKeeper #4657: once fences outlived their ledgers (#4462), who opened a deleted ledger was told that the password was
    wrong, because nobody had an answer for the new error. Here each request about it has its own answer."""
    run = Stepped(settings("/disk"), MemoryFileSystem("/disk"))
    run.add(5, 0)
    run.fence(5)
    run.commit()
    run.delete(5)
    assert run.read(5, 0, 0) == ([], NO_SUCH_LEDGER)
    assert run.storage.may_read(5, KEY) and run.storage.may_read(5, OTHER_KEY)
    run.storage.write_last_add_confirmed(5, KEY, 0, (told := []).append)
    late, copy = run.add(5, 1), run.add(5, 1, flags=int(Flag.RECOVERY))
    run.fence(5)
    run.commit()
    await_that(lambda: told and late and copy, what="an answer to each")
    assert told == [Status.LIMBO] and late == [Status.LIMBO], "the metadata is asked, and does not answer here"
    assert copy == [Status.OK]
    run.storage.close()
