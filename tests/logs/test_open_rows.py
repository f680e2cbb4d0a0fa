"""Rows in an open ledger: they are read, listed, truncated and cleaned up like others, before and after settling."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from random import Random

import pyarrow
import pytest

from bookspark.errors import BookKeeperError, ConfigurationError, InvalidArgumentError, NoSuchLedgerError
from bookspark.logs import (
    Log,
    LogReader,
    Producer,
    collect_orphans,
    commits,
    create_log,
    producer_ledgers,
    truncate_log,
)
from bookspark.logs.chain import codec
from bookspark.logs.chain.commit_times import row_at, time_of
from bookspark.logs.chain.reader import AT_THE_END
from bookspark.logs.chain.stamps import plain_stamp, plain_stamps, stamp_of, stamped
from bookspark.logs.feeds.lane_feed import LaneFeed
from bookspark.logs.feeds.lost_rows import PassedOver
from bookspark.logs.readers.lag import readers_of
from bookspark.logs.rows.stamped_rows import split_stamps
from bookspark.protocol.logs.commits import Commit, CommitHeader
from bookspark.protocol.logs.log_options import Compression, LogOptions
from bookspark.store.client import BookKeeper
from tests.awaiting import await_that
from tests.clocks import show_time

SECONDS = 60
HOUR_MS = 3_600_000


def values(log: Log) -> list[bytes]:
    with log.reader() as reader:
        return [row.value for row in reader]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def set_to(ms: int) -> None:
        show_time(monkeypatch, lambda: ms)

    set_to(HOUR_MS)
    return set_to


def appended_by_the_hour(log: Log, set_clock: Callable[[int], None], count: int) -> Producer:
    """A producer that appended one row an hour."""
    producer = log.producer("service")
    for hour in range(count):
        set_clock(HOUR_MS * (hour + 1))
        producer.append(str(hour).encode())
    return producer


@pytest.mark.parametrize("settled", [False, True])
def test_time_is_located_among_rows_of_an_open_or_settled_ledger(
    bookkeeper: BookKeeper,
    log: Log,
    set_clock: Callable[[int], None],
    settled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_ledgers, "LEDGER_MS_MAX", 100 * HOUR_MS)
    producer = appended_by_the_hour(log, set_clock, 20)
    if settled:
        producer.close()
    for hour in range(20):
        assert row_at(bookkeeper, f"{log.name}@1", b"", HOUR_MS * (hour + 1)) == hour
        assert row_at(bookkeeper, f"{log.name}@1", b"", HOUR_MS * (hour + 1) + 1) == hour + 1
    with log.reader() as reader:
        reader.seek_to_time(datetime.fromtimestamp(3600 * 5, UTC))
        found = reader.read()
    assert [row.value for row in found] == [str(hour).encode() for hour in range(4, 20)]
    assert [row.time_ms for row in found] == [HOUR_MS * (hour + 1) for hour in range(4, 20)], "each row's own"
    producer.close()


def test_time_is_located_over_ledgers_of_several_producers(
    bookkeeper: BookKeeper, log: Log, set_clock: Callable[[int], None]
) -> None:
    """Ledgers roll after an hour here, and another producer takes over after every fifth row."""
    hours = 0
    for _ in range(4):
        producer = log.producer("service")
        for _ in range(5):
            hours += 1
            set_clock(HOUR_MS * hours)
            producer.append(str(hours).encode())
    for hour in range(1, hours + 1):
        assert row_at(bookkeeper, f"{log.name}@1", b"", HOUR_MS * hour) == hour - 1
        assert row_at(bookkeeper, f"{log.name}@1", b"", HOUR_MS * hour + 1) == hour
    assert len(list(commits(bookkeeper, f"{log.name}@1", b""))) == hours
    producer.close()


def test_row_times_do_not_go_back_when_the_clock_does(log: Log, set_clock: Callable[[int], None]) -> None:
    times = []
    for clock in (5 * HOUR_MS, 3 * HOUR_MS, 4 * HOUR_MS, 6 * HOUR_MS):
        set_clock(clock)
        with log.producer("service") as producer:
            producer.append_batch([b"a", b"b"])
    with log.reader() as reader:
        times = [row.time_ms for row in reader]
    assert times == [5 * HOUR_MS] * 6 + [6 * HOUR_MS] * 2


def test_keys_and_headers_come_back_and_wrong_types_are_refused(log: Log) -> None:
    with log.producer("service") as producer, log.reader() as reader:
        producer.append(b"value", key=b"key")
        producer.append(b"", headers=(("trace", b"\x00\xff"), ("trace", b"")))
        producer.append(b"both", key=b"", headers=(("a", b"b"),))
        producer.append(b"none")
        found = [(row.value, row.key, row.headers) for row in reader.read()]
        for headers in ({"a": b"b"}, (("a", "text"),), (("a",),)):
            with pytest.raises(InvalidArgumentError, match="headers"):
                producer.append(b"x", headers=headers)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgumentError, match="key"):
            producer.append(b"x", key="text")  # type: ignore[arg-type]
    assert found == [
        (b"value", b"key", ()),
        (b"", None, (("trace", b"\x00\xff"), ("trace", b""))),
        (b"both", b"", (("a", b"b"),)),
        (b"none", None, ()),
    ]


def test_open_rows_are_truncated_like_other_rows(bookkeeper: BookKeeper, log: Log) -> None:
    with log.producer("service") as producer:
        producer.append_batch([b"0", b"1", b"2", b"3"])
        with pytest.raises(ConfigurationError, match="has 4 rows"):
            truncate_log(bookkeeper, f"{log.name}@1", 5, b"")
        truncate_log(bookkeeper, f"{log.name}@1", 3, b"")
        assert values(log) == [b"3"]
        producer.append(b"4")
    assert values(log) == [b"3", b"4"]


def test_settled_ledger_with_all_rows_truncated_is_deleted(bookkeeper: BookKeeper, log: Log) -> None:
    with log.producer("service") as producer:
        producer.append_batch([b"0", b"1"])
    (settled,) = [one.ledger_id for placed in commits(bookkeeper, f"{log.name}@1", b"") for one in placed.commit.ranges]
    with log.producer("service") as producer:
        producer.append(b"2")
        truncate_log(bookkeeper, f"{log.name}@1", 2, b"")
        # The collection at the second producer's start may be faster than the truncation's.
        await_that(lambda: settled not in bookkeeper.list_ledgers(), what="the ledger is deleted")
        assert values(log) == [b"2"]


def test_open_ledger_of_a_dead_producer_is_no_orphan(bookkeeper: BookKeeper, log: Log) -> None:
    """Its epoch is over, and no commit names its rows yet."""
    died = log.producer("service")
    died.append_batch([b"0", b"1"])
    following = log.producer("service")
    assert following.position == 2
    collect_orphans(bookkeeper, log.name, b"")
    assert values(log) == [b"0", b"1"]
    following.append(b"2")
    assert values(log) == [b"0", b"1", b"2"]
    following.close()
    died.close()


def test_lane_end_counts_rows_and_bytes_of_the_open_ledger(bookkeeper: BookKeeper, log: Log) -> None:
    with log.producer("service") as producer:
        producer.append_batch([b"x" * 100] * 10)
        reader = LogReader(bookkeeper, f"{log.name}@1", b"")
        end = reader.end()
    assert (end.rows, end.size) == (10, 10 * (100 + 17))
    assert reader.end() == end._replace(batches=2), "settled"


def test_reader_continues_while_ledgers_are_settled_and_taken_over(
    bookkeeper: BookKeeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are drawn by seed: rows seen in an open ledger stay, and no row is missing or repeated."""
    for seed in range(2):
        random, sent, seen = Random(seed), 0, list[bytes]()
        name = f"service-{seed}"
        monkeypatch.setattr(producer_ledgers, "LEDGER_BYTES_MAX", random.choice([50, 200, 1 << 30]))
        producers = [log.producer(name)]
        lane = producers[0].lane
        with log.reader("latest") as reader:
            for _ in range(40):
                match random.randrange(6):
                    case 0:
                        producers[-1].close()
                        producers.append(log.producer(name))
                    case 1:
                        producers.append(log.producer(name))
                    case 2 | 3:
                        count = random.randint(1, 20)
                        rows = [str(number).encode() for number in range(sent, sent + count)]
                        assert producers[-1].append_batch(rows) == range(sent, sent + count)
                        sent += count
                    case _:
                        rows = [row for row in reader.read(rows_max=random.choice([3, 1000])) if row.lane == lane]
                        assert [row.position for row in rows] == list(range(len(seen), len(seen) + len(rows)))
                        seen += [row.value for row in rows]
            seen += [row.value for row in reader]
        assert seen == [str(number).encode() for number in range(sent)]
        for producer in producers:
            producer.close()


def test_reader_seeks_back_to_rows_whose_commits_it_has_passed(bookkeeper: BookKeeper, log: Log) -> None:
    """Rows read from the ledger while it was open, and rows skipped by ``seek``."""
    rows = [str(number).encode() for number in range(60)]
    with log.reader() as reader:
        for first in range(0, 60, 10):
            with log.producer("service") as producer:
                producer.append_batch(rows[first : first + 10])
                assert [row.value for row in reader.read()] == rows[first : first + 10]
        for first in (45, 5, 25, 55, 15, 35):
            reader.seek({**reader.offset, "1": first})
            assert [row.value for row in reader.read(rows_max=7)] == rows[first : first + 7]
    with log.reader() as reader:
        for first in (45, 25, 5, 30):
            reader.seek({**reader.offset, "1": first})
            assert [row.value for row in reader.read(rows_max=7)] == rows[first : first + 7]


def test_commit_that_opens_no_ledger_keeps_its_bytes() -> None:
    data = codec.encode_commit(Commit("query", 3, "run", 1, (), 5))
    assert data == b'{"format":1,"commit":{"query":"query","batch":3,"run":"run","epoch":1,"ranges":[],"time_ms":5}}'
    assert b"open_ledger" not in codec.encode_header(CommitHeader(1, open_ledger=5).entering(2))


def test_stamp_round_trips_and_damage_raises_only_bookkeeper_errors() -> None:
    random, rows = Random(1), []
    for _ in range(300):
        key = random.choice([None, b"", random.randbytes(random.randrange(50))])
        headers = tuple((f"h{n}", random.randbytes(random.randrange(20))) for n in range(random.randrange(3)))
        rows.append(
            (random.getrandbits(47), random.getrandbits(62), key, headers, random.randbytes(random.randrange(60)))
        )
    payloads = [stamped(time_ms, number, value, key, headers) for time_ms, number, key, headers, value in rows]
    assert [stamp_of(payload, "here") for payload in payloads] == rows
    for payload in payloads:
        for cut in range(len(payload)):
            with suppress(BookKeeperError):
                stamp_of(payload[:cut], "ledger 5")
    for flags in range(4, 256):
        with pytest.raises(BookKeeperError, match="no row"):
            stamp_of(plain_stamp(1, 1, flags) + bytes(100), "here")


@pytest.mark.parametrize("with_keys", [False, True])
@pytest.mark.parametrize("first", [0, 3])
def test_array_of_stamped_rows_splits_into_their_stamps_and_values(with_keys: bool, first: int) -> None:
    rows = [stamped(n * 1000, n, b"v" * n, b"k" if with_keys and n % 2 else None) for n in range(20)]
    columns, found = split_stamps(pyarrow.array(rows, pyarrow.binary())[first:], "here")
    assert found.to_pylist() == [b"v" * n for n in range(first, 20)]
    assert columns["timestamp"].cast(pyarrow.int64()).to_pylist() == [n * 1_000_000 for n in range(first, 20)]
    with pytest.raises(BookKeeperError, match="no row"):
        split_stamps(pyarrow.array([*rows, b"short"], pyarrow.binary()), "here")


def test_values_are_read_with_and_without_compression(bookkeeper: BookKeeper) -> None:
    for compression in ("none", "zstd"):
        log = create_log(
            bookkeeper, f"log-{uuid.uuid4().hex[:8]}", options=LogOptions(compression=Compression(compression))
        )
        with log.producer("service") as producer:
            producer.append_batch([b"", b"a" * 1000])
            assert values(log) == [b"", b"a" * 1000]


def test_time_of_a_row_is_its_own_in_open_and_settled_ledgers(
    bookkeeper: BookKeeper, log: Log, set_clock: Callable[[int], None]
) -> None:
    """Ledgers roll after an hour, so some rows are settled and the last row is not."""
    producer = appended_by_the_hour(log, set_clock, 4)
    times = [time_of(bookkeeper, f"{log.name}@1", b"", row) for row in range(5)]
    assert times == [HOUR_MS, 2 * HOUR_MS, 3 * HOUR_MS, 4 * HOUR_MS, None]
    producer.close()
    assert [time_of(bookkeeper, f"{log.name}@1", b"", row) for row in range(5)] == times


def test_reader_lag_counts_open_rows(bookkeeper: BookKeeper, log: Log) -> None:
    with log.producer("service") as producer, log.reader(group="audit") as reader:
        producer.append_batch([b"x"] * 10)
        reader.read(rows_max=4)
        reader.commit()
        (lag,) = await_that(lambda: [one for one in readers_of(bookkeeper, log.name) if one.lag_rows == 6])
        assert lag.lag_seconds is not None and 0 <= lag.lag_seconds < SECONDS


def test_reader_locates_times_of_rows_appended_since_its_last_look(
    log: Log, bookkeeper: BookKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It knows the open ledger as of its last look."""
    now = [4 * 10**18]
    show_time(monkeypatch, lambda: now[0] // 1_000_000)
    with log.producer("service") as service:
        service.append(b"0")
        lane = LaneFeed(bookkeeper, f"{log.name}@1", b"", PassedOver(True))
        assert lane.newest() == 1
        for number in range(1, 40):
            now[0] += 10**9
            service.append(b"%d" % number)
        # The last row first: reading rows tells how many there are.
        for number in range(40)[::-1]:
            assert lane.row_at(4 * 10**12 + 1000 * number) == number
        assert lane.row_at(now[0] // 10**6 + 1) == 40


def test_reader_that_looked_at_an_empty_open_ledger_locates_times_of_later_rows(
    log: Log, bookkeeper: BookKeeper, set_clock: Callable[[int], None]
) -> None:
    """As far as it has seen, the lane ends there; no row count prompts another look."""
    set_clock(HOUR_MS)
    with log.producer("service") as service:
        service._open_next()
        lane = LaneFeed(bookkeeper, f"{log.name}@1", b"", PassedOver(True))
        assert lane.newest() == 0
        service.append(b"0")
        set_clock(HOUR_MS + 1)
        service.append(b"1")
        assert [lane.row_at(HOUR_MS + more) for more in (0, 1, 2)] == [0, 1, 2]


def test_look_at_a_deleted_open_ledger_raises(log: Log, bookkeeper: BookKeeper) -> None:
    """The row count that the reader saw last is not returned again."""
    with log.producer("service") as service:
        service.append(b"0")
        head = LogReader(bookkeeper, f"{log.name}@1", b"", AT_THE_END)
        assert head.newest() == 1 and head.opened is not None
        bookkeeper.delete_ledger(head.opened)
        with pytest.raises(NoSuchLedgerError):
            head.newest()


@pytest.mark.parametrize("count", [0, 1, 63, 64, 65, 1000])
def test_stamps_made_in_bulk_equal_stamps_made_singly(count: int) -> None:
    for time_ms, first in ((0, 0), (1_795_000_000_000, 1 << 62), (1, 255)):
        together = list(plain_stamps(time_ms, first, count).each())
        assert together == [plain_stamp(time_ms, first + n, 0) for n in range(count)]
