"""Rewriting of sealed logs: reads afterwards, the files on disk, crashes and flipped bits."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest

from bookspark.protocol.bookie.bookie_ledger import ENTRY_LOST, NO_SUCH_ENTRY, NO_SUCH_LEDGER
from bookspark.protocol.ledger.responses import Unknown
from bookspark.servers.daemon.processes import Process, wait_for_end
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.disk.index import ChangingRows, Row, location
from bookspark.store.bookie.disk.rewritten_block import BLOCK_PREFIX_BYTES
from bookspark.store.bookie.disk.rewritten_log import HEAD, BadPart, RewrittenLog, footer, scan_rewritten
from bookspark.store.bookie.space.reclaiming import LogUse, choose, unlimited
from bookspark.store.bookie.space.rewriting import BLOCK_ENTRIES_MAX, Job
from bookspark.store.bookie.space.rewriting_process import RewritingProcess
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.entry_batch import EntryBatch, arrow_schema
from bookspark.store.wire.header import Flag, Status
from bookspark.store.wire.messages import Ranges
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.store.bookie.kit import KEY, Client, LocalRewriter, Pumped, add_frame, config, crash_image, entries, serving


def logs_of(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "logs").iterdir())


def fill(storage: Pumped) -> None:
    """Four ledgers: single entries, a batch of a thousand, gaps, a long entry."""
    pending = [storage.submit(add_frame(5, i, last_add_confirmed=i - 1)) for i in range(300)]
    pending.append(storage.submit(add_frame(6, 0, 999, payload=b"x" * 300)))
    pending += [storage.submit(add_frame(7, i, i + 1)) for i in range(0, 60, 3)]
    pending.append(storage.submit(add_frame(8, 0, payload=b"y" * 400_000)))
    storage.wait(lambda: all(pending))


def contents(storage: Pumped):
    return {ledger_id: storage.read(ledger_id, 0, 2000, sparse=True) for ledger_id in (5, 6, 7, 8)}


@pytest.fixture
def storage(tmp_path):
    """A storage with a sealed log."""
    pumped = Pumped(config(tmp_path / "live"))
    fill(pumped)
    pumped.seal()
    yield pumped
    pumped.storage.close()


@pytest.fixture
def rewritten(storage, tmp_path):
    storage.reclaim()
    assert logs_of(tmp_path / "live") == ["00000002.arrow"]
    return storage


def test_rewritten_log_returns_the_same_entries_in_less_space(storage, tmp_path):
    before = contents(storage)
    size = storage.storage.status().log_bytes
    assert storage.reclaim() > size // 2
    assert logs_of(tmp_path / "live") == ["00000002.arrow"]
    assert contents(storage) == before
    assert [len(found) for found, _ in before.values()] == [300, 1000, 40, 1]
    assert storage.storage.status().log_bytes == (tmp_path / "live/logs/00000002.arrow").stat().st_size < size / 3


def test_rewritten_log_keeps_every_row_and_digest(rewritten):
    found, _ = rewritten.read(5, 0, 299)
    assert found == [entries(5, i, i, confirmed=i - 1)[0] for i in range(300)]


def test_arrow_reader_opens_a_rewritten_log(rewritten, tmp_path):
    with pyarrow.ipc.open_file(tmp_path / "live/logs/00000002.arrow") as reader:
        assert reader.schema == arrow_schema()
        assert reader.num_record_batches == sum(1 for _ in scan(tmp_path / "live"))
        table = reader.read_all()
    table.validate(full=True)
    keys = list(zip(table.column("ledger_id").to_pylist(), table.column("entry_id").to_pylist(), strict=True))
    assert keys == sorted(keys) and len(keys) == 1341
    assert table.column("payload")[0].as_py() == b"00000000:payload"


def scan(directory: Path):
    return scan_rewritten(RealFileSystem(), str(directory / "logs/00000002.arrow"))


def test_blocks_have_up_to_256_entries_of_one_ledger(rewritten, tmp_path):
    found = [(block.ledger_id, block.entries) for block, _ in scan(tmp_path / "live")]
    assert found == [(5, 256), (5, 44), (6, 256), (6, 256), (6, 256), (6, 232), (7, 40), (8, 1)]
    assert BLOCK_ENTRIES_MAX == 256


def test_head_and_footer_are_the_bytes_of_pyarrow(tmp_path):
    options = pyarrow.ipc.IpcWriteOptions(compression=pyarrow.Codec("zstd", compression_level=1))
    path = tmp_path / "theirs.arrow"
    with pyarrow.ipc.new_file(path, arrow_schema(), options=options) as writer:
        for count in (100, 37):
            batch = EntryBatch(add_frame(5, 0, count - 1, payload=b"abc" * 50)).to_arrow()
            # With so much metadata its messages are as long as ours with the header.
            writer.write_batch(batch, custom_metadata={"as long": bytes(56)})
    content = path.read_bytes()
    places, at = [], len(HEAD)
    for _ in range(2):
        assert int.from_bytes(content[at + 4 : at + 8], "little") == BLOCK_PREFIX_BYTES - 8
        size = BLOCK_PREFIX_BYTES + int.from_bytes(content[at + 48 : at + 56], "little")
        places.append((at, size))
        at += size
    assert content[: len(HEAD)] == HEAD
    assert content[at:] == footer(places)


def test_reads_inside_blocks_and_at_gaps_are_exact(rewritten):
    assert [entry.entry_id for entry in rewritten.read(6, 250, 260)[0]] == list(range(250, 261))
    assert [entry.entry_id for entry in rewritten.read(7, 3, 5)[0]] == [3, 4]
    assert rewritten.read(7, 5, 5) == ([], NO_SUCH_ENTRY)
    assert rewritten.ids(7) == [i for i in range(60) if i % 3 != 2]


def test_clients_read_and_compare_entries_of_a_rewritten_log(rewritten, tmp_path):
    rewritten.storage.close()
    with serving(config(tmp_path / "live")) as (_, address):
        client = Client(address)
        found, end = client.read(5, 10, 299)
        assert [entry.entry_id for entry in found] == list(range(10, 300))
        assert (end.last_entry_id, end.status) == (299, Status.OK)
        found, end = client.read(7, 0, 59, flags=int(Flag.SPARSE))
        assert (len(found), end.last_entry_id) == (40, 59)
        assert client.add(5, 20, last_add_confirmed=19).status == Status.OK, (
            "a duplicate is compared with the rewritten one"
        )
        assert client.add(5, 20, payload=b"another").status == Status.CONFLICT
        client.close()


def test_answer_is_bounded_by_its_uncompressed_size(tmp_path):
    storage = Pumped(config(tmp_path))
    for first in range(0, 8000, 500):
        storage.add(5, first, first + 499, payload=bytes(2000))
    storage.seal()
    storage.reclaim()
    storage.storage.close()
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        found, end = client.read(5, 0, 7999)
        assert end.status == Status.OK
        assert found[-1].entry_id == end.last_entry_id < 4000, "16 MB make more than one answer"
        found, end = client.read(5, end.last_entry_id + 1, 7999)
        assert found and end.status == Status.OK
        client.close()


def test_ranges_list_the_new_locations(rewritten, tmp_path):
    ranges, _, _ = rewritten.storage.holdings.ranges(5, 0, 0, only=True)
    assert list(zip(ranges.first_entry_ids, ranges.last_entry_ids, ranges.logs, strict=True)) == [
        (0, 255, 2),
        (256, 299, 2),
    ]
    file = (tmp_path / "live/logs/00000002.arrow").read_bytes()
    for position, size in zip(ranges.positions, ranges.sizes, strict=True):
        assert file[position : position + 8] == bytes.fromhex("ffffffff20020000")
        assert file[position + size : position + size + 4] == b"\xff\xff\xff\xff"


def test_rewritten_log_survives_a_crash_and_a_stop(rewritten, tmp_path):
    before = contents(rewritten)
    dead = tmp_path / "dead"
    crash_image(tmp_path / "live", dead)
    again = Pumped(config(dead))
    assert contents(again) == before
    assert again.add(5, 300) is Status.OK
    again.storage.close()
    assert logs_of(dead) == ["00000002.arrow", "00000003.arrows", "00000003.synced"]
    assert Pumped(config(dead)).ids(5) == list(range(301))


def test_boot_without_a_checkpoint_restores_all_from_the_rewritten_log(rewritten, tmp_path):
    before = contents(rewritten)
    dead = tmp_path / "dead"
    crash_image(tmp_path / "live", dead)
    (dead / "checkpoint").unlink()
    again = Pumped(config(dead))
    assert contents(again) == before
    ledger = again.storage.holdings.ledger(5)
    assert (ledger.last_add_confirmed, ledger.master_key) == (298, KEY)
    assert not again.storage.holdings.damaged


def test_boot_removes_a_rewritten_log_missing_from_the_checkpoint(storage, tmp_path):
    storage.checkpoint()
    dead = tmp_path / "dead"
    crash_image(tmp_path / "live", dead)
    (dead / "logs/00000009.arrow").write_bytes(b"ARROW1")
    (dead / "logs/0000000a.arrow.new").write_bytes(b"ARR")
    again = Pumped(config(dead))
    assert contents(again) == contents(storage)
    assert logs_of(dead) == ["00000001.arrows", "00000001.synced"]


def test_entries_of_a_missing_rewritten_log_named_in_the_checkpoint_are_lost(rewritten, tmp_path):
    rewritten.checkpoint()
    for lose in (lambda path: path.unlink(), lambda path: path.write_bytes(path.read_bytes()[:-5])):
        dead = tmp_path / "dead"
        crash_image(tmp_path / "live", dead)
        lose(dead / "logs/00000002.arrow")
        again = Pumped(config(dead))
        assert again.read(5, 0, 5) == ([], ENTRY_LOST), "the checkpoint tells which entries it had"
        assert again.read(77, 0, 0)[1] == NO_SUCH_LEDGER and not again.storage.holdings.damaged
        assert again.storage.status().log_bytes == 0
        again.storage.close()
        shutil.rmtree(dead)


def test_the_old_log_is_not_removed_before_the_checkpoint_is_durable(storage, tmp_path):
    live = tmp_path / "live"
    storage.file_system = files = FaultyFileSystem(RealFileSystem())
    storage.storage.checkpoints._file_system = files
    files.add("rename */checkpoint.new 1.. io-error")
    storage.reclaim()
    assert logs_of(live) == ["00000001.arrows", "00000001.synced", "00000002.arrow"]
    files.clear()
    storage.reclaim()
    assert logs_of(live) == ["00000002.arrow"]


def test_checkpoint_taken_before_a_rewrite_is_not_written_after_it(storage, tmp_path):
    """Otherwise it would point into a log that is gone by then."""
    taken = storage.steps(storage.storage.checkpoint())
    storage.reclaim()
    storage.storage.write_checkpoints(taken)
    crash_image(tmp_path / "live", tmp_path / "dead")
    assert contents(Pumped(config(tmp_path / "dead"))) == contents(storage)


def test_rewrite_respects_adds_and_deletions_during_it(storage):
    def meanwhile() -> None:
        storage.submit(add_frame(5, 300))
        storage.steps(storage.storage.garbage_collection.forget([6]))

    storage.reclaim(before=meanwhile)
    assert storage.ids(5) == list(range(301))
    assert storage.storage.holdings.ledger(6) is None and storage.ids(6) == []
    assert [entry.entry_id for entry in storage.read(7, 0, 1)[0]] == [0, 1]


def test_read_planned_before_a_rewrite_has_to_be_planned_again(storage, tmp_path):
    plan = storage.storage.holdings.plan_read(5, 0, 9, 0, sparse=False)
    storage.reclaim()
    fetched = storage.storage.files.fetch(plan.pieces, cached_only=False)
    assert fetched.frames == [] and storage.storage.holdings.has_moved(plan.pieces[0])


@pytest.mark.parametrize("call", ["read */00000001.arrows 301", "open */00000001.arrows 1"])
def test_log_that_can_t_be_read_by_a_rewrite_stays(storage, tmp_path, call):
    files = FaultyFileSystem(RealFileSystem())
    # The reads of a rewrite: 300 entries of ledger 5, then the batch of ledger 6.
    files.add(f"{call} io-error")
    storage.steps(storage.storage.reclaiming.reclaim(LocalRewriter(files), 0.0, 1 << 20, unlimited, entry_logs=True))
    assert storage.storage.status().lost_copies == 0 and "00000001.arrows" in logs_of(tmp_path / "live")
    assert storage.ids(5) == list(range(300)) and storage.read(6, 0, 0)[0]


def test_damaged_entries_of_a_rewrite_are_lost_and_the_rest_moves(storage, tmp_path):
    """The whole log once stayed as it was, and its damaged entries counted as held."""
    path = tmp_path / "live/logs/00000001.arrows"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    storage.reclaim()
    assert isinstance(storage.read(6, 0, 0)[1], Unknown)
    assert not storage.storage.holdings.ranges(6, 0, 0, only=True)[0].ledger_ids, "it is not held"
    assert storage.storage.status().lost_copies == 1, "the status tells of it"
    storage.run(storage.storage.settle)
    storage.reclaim()
    assert "00000001.arrows" in logs_of(tmp_path / "live"), "its bytes may be the last copy"
    storage.storage.close()
    again = Pumped(config(tmp_path / "live"))
    assert again.ids(5) == list(range(300)) and len(again.ids(7)) == 40
    assert isinstance(again.read(6, 0, 0)[1], Unknown)
    assert again.read(5, 300, 300) == ([], NO_SUCH_ENTRY), "nothing else is unknown"
    again.storage.close()


def test_flip_in_any_byte_of_a_rewritten_log_is_detected(tmp_path):
    """The answer is right or an I/O error, and a scan reports the bad part."""
    storage = Pumped(config(tmp_path / "live"))
    for i in range(3):
        storage.add(5, i, payload=b"some text, some more text, and again some text: ")
    storage.add(6, 0, payload=b"z")
    storage.seal()
    storage.reclaim()
    expected = {5: storage.read(5, 0, 2), 6: storage.read(6, 0, 0)}
    storage.storage.close()
    path = tmp_path / "live/logs/00000002.arrow"
    whole = path.read_bytes()
    again = Pumped(config(tmp_path / "live"))
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        path.write_bytes(damaged)
        for ledger_id, (found, _) in expected.items():
            got, refusal = again.read(ledger_id, 0, len(found) - 1)
            assert got == found[: len(got)]
            assert (len(got) == len(found) and refusal is None) or refusal == "bad frame"
        assert any(isinstance(found, BadPart) for found in scan(tmp_path / "live")), f"byte {at}"
    path.write_bytes(whole)
    assert not any(isinstance(found, BadPart) for found in scan(tmp_path / "live"))


def test_rewriting_process_returns_the_same_entries(storage, tmp_path):
    before = contents(storage)
    process = RewritingProcess()
    try:
        storage.steps(storage.storage.reclaiming.reclaim(process, 0.0, 1 << 20, unlimited, entry_logs=True))
        assert logs_of(tmp_path / "live") == ["00000002.arrow"]
        assert contents(storage) == before
    finally:
        process.close()


def reclaim_with(rewriter, storage):
    storage.steps(storage.storage.reclaiming.reclaim(rewriter, 0.0, 1 << 20, unlimited, entry_logs=True))


def kill(pid: int) -> None:
    process = Process.of(pid)
    assert process is not None
    os.kill(pid, signal.SIGKILL)
    assert wait_for_end(process, 30)


def test_dead_rewriting_process_is_replaced_after_a_growing_pause(storage, tmp_path):
    now = 1000.0
    process = RewritingProcess(clock=lambda: now)
    try:
        pids = []
        for pause in (1.0, 2.0):
            pids.append(process.worker_pid())
            kill(pids[-1])
            reclaim_with(process, storage)
            with pytest.raises(OSError, match="not time yet"):
                process.worker_pid()
            now += pause - 0.01
            reclaim_with(process, storage)
            assert logs_of(tmp_path / "live") == ["00000001.arrows", "00000001.synced"]
            now += 0.01
        assert storage.ids(5) == list(range(300))
        reclaim_with(process, storage)
        assert logs_of(tmp_path / "live")[0].endswith(".arrow") and len(logs_of(tmp_path / "live")) == 1
        assert process.worker_pid() not in pids
        kill(process.worker_pid())
        reclaim_with(process, storage)  # without work the dead process is not noticed
        with pytest.raises(ConnectionError):
            process.rewrite(Job(str(tmp_path), 9, [], Ranges.empty().encode(), {}, 0))
        now += 1.0
        assert process.worker_pid(), "what was rewritten between makes it the first death again"
    finally:
        process.close()


def test_bookie_without_a_forker_rewrites_nothing_and_still_serves(storage, tmp_path):
    process = RewritingProcess()
    process.close()
    reclaim_with(process, storage)
    assert logs_of(tmp_path / "live") == ["00000001.arrows", "00000001.synced"]
    assert storage.ids(5) == list(range(300))


def test_rewriting_processes_end_with_the_bookie():
    program = (
        "import os, time; from bookspark.store.bookie.space.rewriting_process import RewritingProcess; "
        "rewriter = RewritingProcess(); print(rewriter._forker, rewriter.worker_pid(), flush=True); time.sleep(600)"
    )
    bookie = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    assert bookie.stdout is not None
    beside = [Process.of(int(pid)) for pid in bookie.stdout.readline().split()]
    bookie.kill()
    bookie.wait()
    bookie.stdout.close()
    assert len(beside) == 2
    for process in beside:
        assert process is None or wait_for_end(process, 30)


def test_rewriting_keeps_the_rate(storage, tmp_path):
    waits: list[float] = []
    rewriter = LocalRewriter(RealFileSystem(), wait=waits.append)
    storage.steps(
        storage.storage.reclaiming.reclaim(rewriter, 0.0, 1 << 20, lambda directory, left: 1_000_000, entry_logs=True)
    )
    size = (tmp_path / "live/logs/00000002.arrow").stat().st_size
    assert sum(waits) > (storage.storage.status().log_bytes + size) / 1_000_000


# -- choice of logs


class Log:
    def __init__(self, number: int, end: int) -> None:
        self.number, self.end = number, end


class Place:
    path = "/a"


def use(number: int, size: int, live: int) -> LogUse:
    return LogUse(Place(), RewrittenLog("/a", number, size), live)


def test_dead_logs_are_removed_and_the_emptiest_are_compacted_first():
    chosen = choose([use(1, 100, 0), use(2, 100, 90), use(3, 100, 15), use(4, 100, 5)], 0.2, 1000, entry_logs=True)
    assert [one.log.number for one in chosen.dead] == [1]
    assert [[one.log.number for one in job] for job in chosen.jobs] == [[4, 3]]


def test_job_is_about_as_long_as_one_log():
    chosen = choose([use(i, 100, 30) for i in range(5)], 0.5, 50, entry_logs=False)
    assert [[one.log.number for one in job] for job in chosen.jobs] == [[0, 1], [2, 3], [4]]


def test_small_logs_are_merged_from_eight_on():
    small = [use(i, 10, 10) for i in range(7)]
    assert choose([*small, use(7, 13, 13)], 0.2, 100, entry_logs=True).jobs == [], "seven, and one that is not small"
    [job] = choose([*small, use(9, 10, 10), use(8, 10, 1), use(7, 13, 13)], 0.0, 100, entry_logs=True).jobs
    assert [one.log.number for one in job] == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert choose([*small, use(8, 10, 10)], 0.2, 100, entry_logs=False).jobs == []
    seventeen = choose([use(i, 1, 1) for i in range(17)], 0.2, 100, entry_logs=True).jobs
    assert [len(job) for job in seventeen] == [16], "a job of one would only copy it"


def test_small_logs_of_many_passes_are_merged_into_one_log(tmp_path):
    storage = Pumped(config(tmp_path))
    for entry_id in range(8):
        storage.add(5, entry_id)
        storage.seal()
        storage.reclaim()
    assert len(logs_of(tmp_path)) == 8
    storage.reclaim()
    assert logs_of(tmp_path) == ["00000011.arrow"]
    assert storage.ids(5) == list(range(8))
    storage.reclaim()
    assert logs_of(tmp_path) == ["00000011.arrow"]
    storage.storage.close()
    assert Pumped(config(tmp_path)).ids(5) == list(range(8))


# -- the index


def test_index_moves_only_rows_still_held_in_the_old_logs():
    rows = ChangingRows.empty()
    for first, last, log in ((0, 4, 1), (5, 5, 2), (6, 9, 1), (12, 14, 1), (20, 29, 3)):
        rows.insert(first, last, location(log, 8 * first), 100)
    new = [Row(0, 9, location(4, 0), 50), Row(10, 13, location(4, 64), 60)]
    rows.move(frozenset({1}), new)
    assert [rows.row(i) for i in range(len(rows))] == [
        Row(0, 4, location(4, 0), 50),
        Row(5, 5, location(2, 40), 100),
        Row(6, 9, location(4, 0), 50),
        Row(12, 13, location(4, 64), 60),
        Row(14, 14, location(1, 96), 100),
        Row(20, 29, location(3, 160), 100),
    ]


def test_index_has_one_row_for_all_entries_of_a_block():
    rows = ChangingRows.empty()
    for i in range(10):
        rows.insert(i, i, location(1, 100 * i), 100)
    rows.move(frozenset({1}), [Row(0, 9, location(2, 0), 50)])
    assert [rows.row(i) for i in range(len(rows))] == [Row(0, 9, location(2, 0), 50)]


def test_storage_closes_in_the_middle_of_a_pass(storage, tmp_path):
    steps = storage.storage.reclaiming.reclaim(
        LocalRewriter(RealFileSystem()), 0.0, 1 << 20, unlimited, entry_logs=True
    )
    before = contents(storage)
    need = next(steps)
    for _ in range(6):
        need = steps.send(need() if callable(need) else None)
    steps.close()
    storage.storage.close()
    again = Storage(config(tmp_path / "live")).open()
    assert again.holdings.last_entry_id(5) == 299
    again.close()
    assert contents(Pumped(config(tmp_path / "live"))) == before
