"""A reader's place is behind the rows that it has returned: a commit saves no row that was only fetched, and no fetched row is
lost."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import ConfigurationError, LedgerClosedError, MetadataVersionError
from bookspark.local import LocalCluster
from bookspark.logs import Log, LogAddress, create_log, row_reader
from bookspark.logs.chain.registry import POSITIONS
from bookspark.logs.lane_ending import end_lane
from bookspark.logs.producer import Producer
from bookspark.logs.row_reader import LogRow, RowReader
from bookspark.store.metadata.records import versioned
from tests.docs.test_readme import blocks
from tests.logs.test_producer_faults import Cluster
from tests.stories import seeds

LOG, GROUP = "orders", "audit"
ROWS = 6
Row = tuple[int, int]


class Made:
    """A log of two producers' lanes, in memory."""

    def __init__(self) -> None:
        self.memory: Any = Cluster().memory
        self.memory.zookeeper = "memory"
        self.producers = [Producer(self.memory, LogAddress("memory", LOG), f"service-{number}") for number in range(2)]
        self.appended: Counter[int] = Counter()
        self.append(ROWS)

    def append(self, count: int) -> None:
        for producer in self.producers:
            for _ in range(count):
                producer.append(b"row")
                self.appended[producer.lane] += 1

    def reader(self, start: str = "earliest", share: bool = False) -> RowReader:
        return RowReader(self.memory, LogAddress("memory", LOG), start, GROUP, share)

    def left(self) -> list[Row]:
        """The rows for the group's next reader."""
        with self.reader() as reader:
            return places(list(reader))


def places(rows: list[LogRow]) -> list[Row]:
    return [(row.lane, row.position) for row in rows]


ALL = [(lane, position) for lane in (1, 2) for position in range(ROWS)]


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture(params=["once", "follow", "share"])
def each(request: pytest.FixtureRequest, made: Made) -> Iterator[tuple[RowReader, Callable[[], Iterator[LogRow]]]]:
    with made.reader(share=request.param == "share") as reader:
        yield reader, reader.follow if request.param == "follow" else reader.__iter__


def test_commit_in_a_loop_saves_the_place_behind_the_last_returned_row(
    made: Made, each: tuple[RowReader, Callable[[], Iterator[LogRow]]]
) -> None:
    """It saved the place behind all fetched rows: after a kill behind row 18 the group went on at row 1,000."""
    reader, rows = each
    for count, row in zip(range(1, len(ALL) + 1), rows(), strict=False):
        assert (row.lane, row.position) == ALL[count - 1]
        reader.commit()
        assert made.left() == ALL[count:]
        # Its report is its place.
        assert reader._registration.record.offset == reader.offset
        assert sum(rows for lane, rows in reader.offset.items() if lane.isdigit()) == count


def test_lag_covers_rows_that_were_returned_not_rows_that_were_fetched(made: Made) -> None:
    with made.reader() as reader:
        next(iter(reader))
        assert reader._registration.record.offset == reader.offset
        assert (reader.offset["1"], reader.offset.get("2", 0)) == (1, 0)


@pytest.mark.parametrize("seed", seeds(10))
def test_rows_come_once_and_in_order_however_loops_and_reads_alternate(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, made, found = Random(seed), Made(), list[Row]()
    monkeypatch.setattr(row_reader, "_ROWS_AHEAD_MAX", random.choice([1, 3, 5, 10_000]))
    end_lane_at = random.randrange(30)
    with made.reader(share=random.random() < 0.5) as reader:
        left = iter(reader)
        for step in range(40):
            if step == end_lane_at:
                made.producers.pop().close()
                end_lane(made.memory, f"{LOG}@2")
            if random.random() < 0.2:
                made.append(random.randrange(3))
            match random.randrange(5):
                case 0:
                    rows = reader.read(random.randint(1, 4))
                case 1:
                    rows = [row for row in reader.read_with_gaps(random.randint(1, 4)) if isinstance(row, LogRow)]
                case 2:
                    rows = list(islice(iter(reader), random.randrange(4)))
                case _:
                    # A loop goes on after reads and other loops.
                    rows = list(islice(left, 1))
                    left = left if rows else iter(reader)
            found += places(rows)
            if random.random() < 0.3:
                reader.commit()
                with made.reader() as other:
                    assert other.offset == reader.offset
        found += places(list(reader))
    for lane in (1, 2):
        assert [position for of, position in found if of == lane] == list(range(made.appended[lane]))


def test_commit_of_a_row_saves_that_row_and_the_returned_rows_of_other_lanes(made: Made) -> None:
    with made.reader() as reader:
        rows = list(islice(reader, ROWS + 4))
        reader.commit(rows[2])
        assert made.left() == [(1, 3), (1, 4), (1, 5), (2, 4), (2, 5)]
        reader.commit(rows[2])
        assert made.left() == [(1, 3), (1, 4), (1, 5), (2, 4), (2, 5)], "again"
        rows += reader.read()
        reader.commit(rows[-2])
        assert made.left() == [(2, 5)], "lane 1 as far as its rows were returned"


def test_commit_of_a_row_that_is_older_or_was_not_returned_raises(made: Made) -> None:
    with made.reader() as other:
        (later, *_) = other.read()[3:]
    with made.reader() as reader:
        rows = list(islice(reader, 3))
        with pytest.raises(
            ConfigurationError, match=r"row 3 of lane 1 .* was not returned by this reader, which is at row 3"
        ):
            reader.commit(later)
        reader.commit()
        with pytest.raises(
            ConfigurationError, match=r"row 0 of lane 1 .* is older than the last commit or seek, at row 3"
        ):
            reader.commit(rows[0])
        # After a seek rows may be committed again.
        reader.seek({**reader.offset, "1": 0})
        assert made.left() == ALL[3:]
        (first,) = islice(reader, 1)
        reader.commit(first)
        assert made.left() == ALL[1:]


def test_commit_of_a_row_of_an_ended_lane_saves_the_place_in_that_lane(made: Made) -> None:
    made.producers.pop().close()
    end_lane(made.memory, f"{LOG}@2")
    with made.reader() as reader:
        rows = [*reader.read(), *reader.read(2)]
        assert places(rows) == [*ALL[ROWS:], *ALL[:2]] and reader.offset["ended"] == 1
        reader.commit(rows[1])
        assert made.left() == [*ALL[ROWS + 2 :], *ALL[2:ROWS]]
        reader.commit(rows[ROWS - 1])
        assert made.left() == ALL[2:ROWS]


def test_seek_drops_fetched_rows(made: Made) -> None:
    with made.reader() as reader:
        rows = iter(reader)
        next(rows)
        reader.seek({**reader.offset, "1": 4})
        assert places([next(rows)]) == [(1, 4)]


def test_closed_reader_raises_instead_of_reading_or_committing(made: Made) -> None:
    for share in (False, True):
        reader = made.reader(share=share)
        rows = iter(reader)
        next(rows)
        reader.close()
        reader.close()
        for does in (reader.read, reader.read_with_gaps, reader.commit, lambda: next(rows), lambda: next(iter(reader))):  # noqa: B023
            with pytest.raises(LedgerClosedError, match="closed"):
                does()
        assert made.left() == ALL


def test_closed_readers_leave_no_watch(made: Made) -> None:
    watches = made.memory.metadata._world.watches
    before = {key: len(each) for key, each in watches.items()}
    for share in (False, True):
        for _ in range(5):
            with made.reader(share=share) as reader:
                reader.read()
                reader.read(timeout=0.01)
    assert {key: len(each) for key, each in watches.items()} == before


@pytest.mark.parametrize("share", [False, True])
def test_group_that_starts_at_the_end_begins_there_although_nothing_was_committed(made: Made, share: bool) -> None:
    """After a restart before its first commit it began at the new end."""
    made.reader("latest", share=share).close()
    made.append(1)
    with made.reader("latest", share=share) as reader:
        assert places(reader.read()) == [(1, ROWS), (2, ROWS)]


def test_second_reader_at_the_end_takes_over_the_groups_start(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both found no saved place."""
    write = made.memory.metadata.write_record

    def later(kind: str, name: str, value: bytes, version: int | None) -> int:
        if kind == POSITIONS:
            monkeypatch.undo()
            made.reader("latest").close()
            made.append(1)
        return write(kind, name, value, version)

    monkeypatch.setattr(made.memory.metadata, "write_record", later)
    with made.reader("latest") as reader:
        assert places(reader.read()) == [(1, ROWS), (2, ROWS)]


def test_read_waits_its_time_although_a_lane_without_rows_is_made(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    with made.reader() as reader:
        reader.read()
        steps: list[Callable[[], object]] = [
            lambda: made.producers.append(Producer(made.memory, LogAddress("memory", LOG), "new")),
            lambda: made.producers[-1].append(b"new"),
        ]
        wait = reader._feed.wait

        def later(seconds: float) -> bool:
            if steps:
                steps.pop(0)()
            return wait(seconds)

        monkeypatch.setattr(reader._feed, "wait", later)
        assert [row.value for row in reader.read(timeout=100.0)] == [b"new"]


def test_commit_that_loses_many_times_is_repeated(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """It failed after ten attempts, when many readers saved at the same moment."""
    monkeypatch.setattr(versioned, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None))
    write, left = made.memory.metadata.write_record, [50]

    def loses(kind: str, name: str, value: bytes, version: int | None) -> int:
        left[0] -= kind == POSITIONS
        if kind == POSITIONS and left[0] > 0:
            raise MetadataVersionError("another reader was faster")
        return write(kind, name, value, version)

    with made.reader(share=True) as reader:
        rows = list(islice(reader, 3))
        monkeypatch.setattr(made.memory.metadata, "write_record", loses)
        reader.commit(rows[-1])
    assert left == [0] and made.left() == ALL[3:]


# -- on real bookies

_KILLED = """
import os, signal, sys
left = int(sys.argv[1])
def trace(frame, event, _):
    global left
    if frame.f_code.co_filename != "example":
        return None
    left -= event == "line"
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return trace
code = compile(sys.argv[2], "example", "exec")
sys.settrace(trace)
exec(code, {"__name__": "__main__"})
"""


def test_example_of_the_readme_that_is_killed_at_any_line_misses_no_row(new_chroot: Callable[[], str]) -> None:
    tail = blocks("python")[-1]
    assert "reader.follow()" in tail and 'open_log(bookkeeper, "payments").reader(group="mailing")' in tail
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster, cluster.bookkeeper() as bookkeeper:
        log: Log = create_log(bookkeeper, "payments")
        with log.producer("shop-1") as producer:
            producer.append_batch([b"payment %d" % number for number in range(100)])
        told: list[list[int]] = []
        for line in range(1, 17):
            process = subprocess.run(
                [sys.executable, "-c", _KILLED, str(line), tail],
                env={"BOOKSPARK_ZOOKEEPER": cluster.zookeeper, "PYTHONPATH": ":".join(sys.path)},
                stdout=subprocess.PIPE,
                timeout=300,
                check=False,
            )
            assert process.returncode == -signal.SIGKILL
            told.append([int(row.split()[0]) for row in process.stdout.splitlines()])
        with log.reader(group="mailing") as reader:
            told.append([row.position for row in reader.read()])
    assert sorted({row for rows in told for row in rows}) == list(range(100)), "a row is missing"
    assert max(map(len, told[:-1])) >= 3
    for number, rows in enumerate(told[:-1]):
        again = set(rows) & set[int]().union(*told[number + 1 :])
        assert again <= set(rows[-1:]), "more than the row in hand came again"
