"""Gaps: a reader that passes over unread rows reports which and why, and its report matches the damage done to the
log."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import BookKeeperError, DataLossError, NoSuchEntryError, NoSuchLedgerError, ReadError
from bookspark.local import LocalCluster
from bookspark.logs import (
    Committer,
    LogAddress,
    LogReader,
    LogRegistry,
    LogRow,
    LogRun,
    Producer,
    RowReader,
    create_log,
    producer_ledgers,
    truncate_log,
)
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.feeds.gaps import Gap, GapKind, joined, rows_and_gaps
from bookspark.logs.lane_ending import end_lane
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.lanes import lane_id, lane_name
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.spark.memory_bookkeeper import MemoryBookKeeper, MemoryReader
from tests.stories import seeds

# A story has three gaps on average.
SEEDS = seeds(40)
TRUNCATED, LOST, UNKNOWN = GapKind.TRUNCATED, GapKind.LOST, GapKind.NOT_YET_KNOWN


class DamagedReader(MemoryReader):
    def read(self, first: int, last: int) -> Iterator[Any]:
        for entry in super().read(first, last):
            bookkeeper = self._bookkeeper
            assert isinstance(bookkeeper, DamagedBookKeeper)
            place = entry.ledger_id, entry.entry_id
            if place == bookkeeper.delete_at:
                bookkeeper.delete_at = None
                bookkeeper.delete_ledger(self.ledger_id)
                if place not in bookkeeper.silent:
                    raise NoSuchLedgerError(f"{place}")
            if place in bookkeeper.denied:
                raise NoSuchEntryError(f"{place}")
            if place in bookkeeper.silent:
                raise ReadError(f"{place}")
            yield entry


class DamagedBookKeeper(MemoryBookKeeper):
    """A cluster that lost entries, with bookies that do not answer."""

    zookeeper = "memory"

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.denied: set[tuple[int, int]] = set()
        self.silent: set[tuple[int, int]] = set()
        self.delete_at: tuple[int, int] | None = None
        """A read of this entry finds its ledger deleted."""

    def _reader(self, ledger_id: int) -> DamagedReader:
        return DamagedReader(self, ledger_id)

    def accept_loss(self, ledger_id: int, first: int, last: int) -> None:
        metadata, version = self.metadata.read_ledger(ledger_id)
        losses = (*(metadata.accepted_loss.losses if metadata.accepted_loss else ()),)
        loss = AcceptedLoss("me", 1, (), (*losses, Loss(LossKind.ENTRIES, first, last, ("bookie-0",))))
        self.metadata.write_ledger(replace(metadata, accepted_loss=loss), version)
        self.silent |= {(ledger_id, entry) for entry in range(first, last + 1)}


class Story:
    """A log of several lanes, its rows, and the fate of each row: None, or why it can't be read."""

    def __init__(self, seed: int) -> None:
        self.random, self.bookkeeper = Random(seed), DamagedBookKeeper()
        self.client: Any = self.bookkeeper
        registry = LogRegistry(self.bookkeeper.metadata)
        log = lane_id(registry.ensure("orders", {}, b""))
        self.lanes = {0: "orders"}
        for number in range(1, self.random.randint(1, 4)):
            LaneIndex(self.bookkeeper.metadata, log).begin(NewLane(f"service:s{number}"))
            self.lanes[number] = lane_name("orders", number)
        # Ledger and entry of each row, by lane.
        self.places: dict[int, list[tuple[int, int]]] = {lane: [] for lane in self.lanes}
        # Commit time of each row in ms, by lane; None for producers' rows, which have times of their own.
        self.times: dict[int, list[int | None]] = {lane: [] for lane in self.lanes}
        self.producers: list[Producer] = []
        for lane, name in self.lanes.items():
            if lane and self.random.random() < 0.5:
                self._produce(lane, name)
            else:
                self._write(registry, lane, name)

    def _produce(self, lane: int, name: str) -> None:
        """Write rows like a service: the newest may be in an open ledger."""
        self.client.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(producer_ledgers, "LEDGER_BYTES_MAX", self.random.randint(20, 400))
            producer = Producer(self.client, LogAddress("memory", "orders"), f"s{lane}")
            for _ in range(self.random.randint(1, 30)):
                producer.append(b"%d" % lane)
            self.times[lane] += [None] * producer.position
        if self.random.random() < 0.5:
            producer.close()
        else:
            self.producers.append(producer)
        reader = LogReader(self.client, name, b"")
        for placed in reader.commits():
            for one in placed.commit.ranges:
                self.places[lane] += [(one.ledger_id, entry) for entry in range(one.rows)]
        if reader.open_rows is not None:
            self.places[lane] += [(reader.open_rows.ledger_id, entry) for entry in range(reader.open_rows.look())]
        assert len(self.places[lane]) == len(self.times[lane])

    def end_some(self) -> None:
        """End some lanes, whether or not their writers live."""
        for lane, name in self.lanes.items():
            if lane and self.random.random() < 0.2:
                end_lane(self.client, name)

    def _write(self, registry: LogRegistry, lane: int, name: str) -> None:
        run = LogRun.of(LogAddress("memory", name), registry.claim(name, "run"))
        committer = Committer(self.client, run)
        for number in range(self.random.randint(1, 6)):
            ranges = []
            for _ in range(self.random.randint(1, 3)):
                rows = self.random.randint(1, 12)
                with_it = run.create_ledger(self.client, LogOptions(), "data")
                with_it.append_batch([f"{lane}".encode()] * rows)
                with_it.close()
                ranges.append(EntryRange(with_it.ledger_id, 0, rows - 1, rows, rows))
                self.places[lane] += [(with_it.ledger_id, entry) for entry in range(rows)]
                self.times[lane] += [number + 1] * rows
            committer.commit(Commit("q", number, run.run, run.epoch, tuple(ranges), number + 1))
        committer.close()

    def damage(self) -> dict[int, list[GapKind | None]]:
        """Damage some rows; return the fate of each row of each lane."""
        done: dict[tuple[int, int], GapKind] = {}
        random, bookkeeper = self.random, self.bookkeeper
        for _ in range(random.randint(0, 6)):
            lane = random.choice(list(self.lanes))
            ledger, entry = random.choice(self.places[lane])
            last = max(one for held, one in self.places[lane] if held == ledger)
            end = random.randint(entry, last)
            entries = {(ledger, one) for one in range(entry, end + 1)}
            match random.choice(["deny", "accept", "silence", "delete"]):
                case "deny":
                    bookkeeper.denied |= entries
                    done |= dict.fromkeys(entries, LOST)
                case "accept" if all(place[0] != ledger for place in done) and self._is_closed(ledger):
                    bookkeeper.accept_loss(ledger, entry, end)
                    done |= dict.fromkeys(entries, LOST)
                case "silence":
                    bookkeeper.silent |= entries
                    done |= {place: UNKNOWN for place in entries if place not in done}
                case "delete" if all(place[0] != ledger for place in done) and self._is_closed(ledger):
                    bookkeeper.delete_ledger(ledger)
                    done |= dict.fromkeys([place for place in self.places[lane] if place[0] == ledger], LOST)
        truth = {lane: [done.get(place) for place in places] for lane, places in self.places.items()}
        for lane in self.lanes:
            if random.random() < 0.4:
                row = random.randint(0, len(self.places[lane]))
                truncate_log(self.client, f"orders@{lane}", row, b"")
                truth[lane][:row] = [TRUNCATED] * row
        return truth

    def _is_closed(self, ledger: int) -> bool:
        """Losses are accepted only for closed ledgers, and the row count of a deleted open ledger is unknown."""
        return self.bookkeeper.get_ledger_metadata(ledger).closed


@pytest.mark.parametrize("seed", SEEDS)
def test_reader_reports_exactly_the_gaps_that_were_made(seed: int) -> None:
    story = Story(seed)
    story.end_some()
    with RowReader(story.client, LogAddress("memory", "orders"), "earliest", "") as reader:
        story.end_some()
        truth = story.damage()
        story.end_some()
        found: dict[int, list[GapKind | None]] = {lane: [] for lane in truth}
        while items := reader.read_with_gaps(rows_max=story.random.randint(1, 40)):
            for item in items:
                rows = found[item.lane]
                if isinstance(item, Gap):
                    assert (item.first, item.rows > 0) == (len(rows), True)
                    rows += [item.kind] * item.rows
                else:
                    assert (item.position, item.value) == (len(rows), b"%d" % item.lane)
                    rows.append(None)
    assert found == truth


def test_unreadable_newest_row_of_an_open_ledger_stops_no_earlier_read() -> None:
    """The row size was learnt from the newest row; if that was unreadable, no row was read."""
    story = Story(0)
    story.client.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=60.0))
    LogRegistry(story.bookkeeper.metadata).ensure("newest", {}, b"")
    producer = Producer(story.client, LogAddress("memory", "newest"), "service")
    for _ in range(10):
        producer.append(b"x")
    reader = LogReader(story.client, "newest@1", b"")
    assert list(reader.commits()) and reader.open_rows is not None
    ledger = reader.open_rows.ledger_id
    for damaged, kind in ((story.bookkeeper.silent, UNKNOWN), (story.bookkeeper.denied, LOST)):
        damaged.add((ledger, 9))
        with RowReader(story.client, LogAddress("memory", "newest"), "earliest", "") as reader:
            assert [row.position for row in reader.read(rows_max=6)] == list(range(6))
            assert [row.position for row in reader.read(rows_max=3)] == list(range(6, 9))
            with pytest.raises(BookKeeperError):
                reader.read()
            assert reader.read_with_gaps() == [Gap(1, 9, 9, kind)]
        damaged.clear()


@pytest.mark.parametrize("silent", [False, True], ids=["answers", "silent"])
@pytest.mark.parametrize("rows", [0, 4], ids=["at first", "later"])
def test_ledger_deleted_under_a_read_with_gaps_is_a_gap_of_its_unread_rows(rows: int, silent: bool) -> None:
    """The read raised DataLossError, whose message tells to read with gaps."""
    bookkeeper = DamagedBookKeeper()
    client: Any = bookkeeper
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure("orders", {}, b"")
    run = LogRun.of(LogAddress("memory", "orders"), registry.claim("orders", "run"))
    committer, ledgers = Committer(client, run), [run.create_ledger(client, LogOptions(), "data") for _ in range(2)]
    for number, ledger in enumerate(ledgers):
        ledger.append_batch([b"%d" % number] * 10)
        ledger.close()
    ranges = tuple(EntryRange(ledger.ledger_id, 0, 9, 10, 10) for ledger in ledgers)
    committer.commit(Commit("q", 0, run.run, run.epoch, ranges, 1))
    deleted = ledgers[0].ledger_id
    if silent:
        bookkeeper.silent.add((deleted, rows))
    bookkeeper.delete_at = (deleted, rows)
    with RowReader(client, LogAddress("memory", "orders"), "earliest", "") as reader:
        found = reader.read_with_gaps(100)
    assert found[rows] == Gap(0, rows, 9, LOST)
    assert [one.position for one in found if isinstance(one, LogRow)] == [*range(rows), *range(10, 20)]


# -- the parts


def test_adjacent_gaps_of_a_kind_are_joined() -> None:
    row = LogRow(0, 4, b"", 0)
    gaps = [
        Gap(0, 0, 1, LOST),
        Gap(0, 2, 3, LOST),
        row,
        Gap(0, 5, 5, LOST),
        Gap(0, 6, 6, UNKNOWN),
        Gap(1, 7, 7, UNKNOWN),
    ]
    assert list(joined(gaps)) == [Gap(0, 0, 3, LOST), *gaps[2:]]
    assert list(joined([])) == []
    assert str(gaps[4]) == "rows 6 to 6 of lane 0 are not yet known"


def test_unreadable_entry_of_many_rows_is_a_single_gap() -> None:
    # Rows 5 to 29 of a lane, in entries 2 to 4 of ten rows each: the piece begins within entry 2.
    piece = Piece(7, 2, 5, 25, rows_each=10, skip=5, lane=3)

    def read(part: Piece) -> list[int]:
        if part.first_entry_id <= 3 <= part.last_entry_id:
            raise ReadError("entry 3")
        return list(range(part.position, part.position + part.rows))

    def kind(error: BookKeeperError, part: Piece) -> GapKind:
        assert part.entries == 1
        return UNKNOWN

    assert list(rows_and_gaps(piece, read, kind)) == [*range(5, 10), Gap(3, 10, 19, UNKNOWN), *range(20, 30)]


# -- real bookies


def test_gaps_on_real_bookies_cover_truncation_a_stopped_bookie_and_deleted_ledgers(cluster: LocalCluster) -> None:
    options = LogOptions(ensemble_size=3, write_quorum=1, ack_quorum=1)
    with cluster.bookkeeper(answer_timeout_seconds=60.0, connect_timeout_seconds=60.0) as bookkeeper:
        log = create_log(bookkeeper, "striped", options=options)
        with log.producer("service") as producer:
            producer.append_batch([str(number).encode() for number in range(30)])
        with log.reader() as reader:
            truncate_log(bookkeeper, "striped@1", 3, b"")
            with pytest.raises(DataLossError, match=r"truncated.*RowReader.read_with_gaps"):
                reader.read()
            assert reader.offset.get("1", 0) == 0, "it has passed nothing"
            first = reader.read_with_gaps(rows_max=10)
            assert first[0] == Gap(1, 0, 2, TRUNCATED)
            assert [row.value for row in first[1:] if isinstance(row, LogRow)] == [b"%d" % n for n in range(3, 13)]
            place = reader.offset
            ensemble = _ensemble(bookkeeper, "striped@1")
            stopped = next(one for one in cluster.bookies if one.bookie_id == ensemble[0])
            stopped.stop()
            try:
                with pytest.raises(ReadError):
                    reader.read()
                told = reader.read_with_gaps()
            finally:
                stopped.start()
            # Every third entry is only on the stopped bookie.
            gaps = [item for item in told if isinstance(item, Gap)]
            assert {gap.kind for gap in gaps} == {UNKNOWN} and {gap.rows for gap in gaps} == {1}
            assert len(gaps) + sum(isinstance(item, LogRow) for item in told) == 17
            assert len({gap.first % 3 for gap in gaps}) == 1
            reader.seek(place)
            assert [row.position for row in reader.read()] == list(range(13, 30))
            reader.seek(place)
            for ledger_id in _data_ledgers(bookkeeper, "striped@1"):
                bookkeeper.delete_ledger(ledger_id)
            assert reader.read_with_gaps() == [Gap(1, 13, 29, LOST)]


def _data_ledgers(bookkeeper: BookKeeper, lane: str) -> list[int]:
    from bookspark.logs import commits

    return sorted({one.ledger_id for placed in commits(bookkeeper, lane, b"") for one in placed.commit.ranges})


def _ensemble(bookkeeper: BookKeeper, lane: str) -> tuple[str, ...]:
    (ledger_id,) = _data_ledgers(bookkeeper, lane)
    return bookkeeper.get_ledger_metadata(ledger_id).last_fragment.ensemble
