"""A producer over in-memory ledgers: lost answers, changing owners and waiting rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import wait
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import AddTimeoutError, BookKeeperError, LedgerRecoveryError, NotEnoughBookiesError
from bookspark.logs import LogAddress, LogReader, LogRegistry, commits, producer_ledgers
from bookspark.logs.chain.maintenance import collect_orphans, collect_recent_orphans
from bookspark.logs.chain.reader import AT_THE_END
from bookspark.logs.chain.registry import RECORDS
from bookspark.logs.chain.stamps import stamp_of
from bookspark.logs.producer import Producer
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.logs.commits import Commit
from bookspark.protocol.logs.lanes import LaneId, lane_id, service_writer
from bookspark.protocol.logs.log_options import Compression, LogOptions
from bookspark.protocol.logs.log_record import LogTakenOverError, NoSuchLogError
from tests.awaiting import SECONDS_MAX, await_that
from tests.spark.memory_bookkeeper import MemoryBookKeeper, MemoryLedger
from tests.stories import seeds

SECONDS = SECONDS_MAX
SEEDS, ROWS = seeds(8), 60


class Cluster:
    def __init__(self, add_timeout_seconds: float = SECONDS, **options: Any) -> None:
        self.memory: Any = MemoryBookKeeper()
        self.memory.context = SimpleNamespace(config=SimpleNamespace(add_timeout_seconds=add_timeout_seconds))
        LogRegistry(self.memory.metadata).create("orders", LogOptions(**options), b"")

    def producer(self) -> Producer:
        return Producer(self.memory, LogAddress("memory", "orders"), "service")

    @property
    def lane(self) -> LaneId:
        return lane_id(LogRegistry(self.memory.metadata).get("orders@1"))

    def alter(self, **options: Any) -> None:
        self.changed(lambda registry: registry.alter("orders", **options))

    def changed(self, change: Callable[[LogRegistry], object]) -> None:
        """Change the record of the producer's lane and wait until its watchers are notified."""
        told = threading.Event()
        self.memory.metadata.watch_record(RECORDS, self.lane.key, told.set)
        change(LogRegistry(self.memory.metadata))
        assert told.wait(SECONDS)

    def rows(self) -> list[bytes]:
        """Values that a reader sees: committed rows and rows of the open ledger."""
        reader = LogReader(self.memory, "orders@1", b"")
        found = [
            (one.ledger_id, entry)
            for placed in reader.commits()
            for one in placed.commit.ranges
            for entry in range(one.first_entry_id, one.last_entry_id + 1)
        ]
        assert len(found) == reader.position.rows
        if reader.open_rows is not None:
            found += [(reader.open_rows.ledger_id, entry) for entry in range(reader.open_rows.look())]
        stamps = [stamp_of(self.memory.entries[ledger][entry], "here") for ledger, entry in found]
        assert [row.sequence for row in stamps] == sorted({row.sequence for row in stamps}), "each number once, upwards"
        assert [row.time_ms for row in stamps] == sorted(row.time_ms for row in stamps)
        return [row.value for row in stamps]


@pytest.mark.parametrize("seed", SEEDS)
def test_each_row_is_appended_once_despite_lost_answers_and_takeovers(seed: int) -> None:
    random, cluster = Random(seed), Cluster()
    memory = cluster.memory

    def perhaps_lost(ledger_id: int) -> None:
        if random.random() < 0.2:
            memory.lose_answers = random.choice([1, 1, 2, 12])
        memory.before_append.append(perhaps_lost)

    memory.before_append.append(perhaps_lost)
    current, earlier = cluster.producer(), []
    told: dict[int, int] = {}
    while current.last_sequence < ROWS - 1:
        number = current.last_sequence + 1
        try:
            if random.random() < 0.1:
                raise BookKeeperError("it is started anew")
            position = current.append(str(number).encode(), sequence=number)
            assert position is not None
            told[number] = position.position
        except BookKeeperError:
            earlier.append(current)
            memory.lose_answers = 0
            current = cluster.producer()
        if earlier and random.random() < 0.2:
            with pytest.raises(BookKeeperError):
                random.choice(earlier).append(b"of a zombie", sequence=ROWS)
    assert cluster.rows() == [str(number).encode() for number in range(ROWS)]
    assert all(number == position for number, position in told.items())
    for one in (current, *earlier):
        one.close(SECONDS)


def test_append_error_ends_the_producer() -> None:
    cluster = Cluster()
    one = cluster.producer()
    one.append(b"0")
    cluster.memory.lose_answers = 1
    future = one.append_async(b"1")
    with pytest.raises(AddTimeoutError):
        future.result(SECONDS)
    with pytest.raises(AddTimeoutError):
        one.append_async(b"later")
    assert cluster.rows() == [b"0", b"1"]
    one.close(SECONDS)
    with cluster.producer() as other:
        assert (other.position, other.last_sequence) == (2, 1)


@pytest.mark.parametrize("closes", [True, False])
def test_ledger_is_settled_before_the_next_ledger_is_opened(closes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each roll, and however a producer ends: commits cover the rows that a reader saw in the open ledger."""
    monkeypatch.setattr(producer_ledgers, "LEDGER_BYTES_MAX", 60)
    cluster, seen = Cluster(), 0
    for _ in range(3):
        one = cluster.producer()
        assert one.position == seen
        for _ in range(5):
            one.append(str(seen).encode())
            seen += 1
            assert cluster.rows() == [str(number).encode() for number in range(seen)]
        if closes:
            one.close(SECONDS)
            assert cluster.memory.open_ledgers() == []
    assert cluster.producer().position == seen


def test_commit_of_unknown_outcome_ends_the_producer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second try could take the first try's ledger for its own, and rows would go where no commit points."""
    cluster = Cluster()
    one = cluster.producer()
    cluster.memory.lose_answers = 1_000
    with pytest.raises(BookKeeperError):
        one.append(b"a")
    cluster.memory.lose_answers = 0
    with pytest.raises(BookKeeperError):
        one.append(b"b")
    assert cluster.rows() == []
    with cluster.producer() as other:
        other.append(b"c")
    assert cluster.rows() == [b"c"]


def test_producer_never_reuses_positions_of_a_ledger_deleted_by_hand() -> None:
    cluster = Cluster()
    cluster.producer().append(b"a")
    ledger = commits_of(cluster)[-1].open_ledger
    cluster.memory.delete_ledger(ledger)
    with pytest.raises(LedgerRecoveryError, match=f"ledger {ledger} with its newest rows was deleted"):
        cluster.producer()


def commits_of(cluster: Cluster) -> list[Commit]:
    return [placed.commit for placed in commits(cluster.memory, "orders@1", b"")]


def test_row_in_flight_at_a_takeover_fails_and_is_not_in_the_log() -> None:
    cluster = Cluster()
    one, positions = cluster.producer(), []
    one.append(b"0")
    cluster.memory.before_append.append(lambda ledger_id: positions.append(cluster.producer().position))
    with pytest.raises(LogTakenOverError):
        one.append(b"1")
    assert (positions, cluster.rows()) == ([1], [b"0"])
    one.close(SECONDS)


def test_reader_counts_settled_rows_although_the_commit_ledgers_lac_is_unknown() -> None:
    cluster = Cluster()
    first = cluster.producer()
    for number in range(3):
        first.append(str(number).encode())
    reader = LogReader(cluster.memory, "orders@1", b"")
    assert reader.newest() == 3
    following = cluster.producer()
    following.append(b"3")
    chain = LogRegistry(cluster.memory.metadata).get("orders@1").commit_ledgers
    cluster.memory.untold.add(chain[-1].ledger_id)
    assert reader.newest() == 4


def test_producer_syncs_rows_before_acknowledgement_even_in_a_vd_journal_log() -> None:
    """No commit follows that could wait for the sync."""
    cluster = Cluster(ledger_type=LedgerType.VD_JOURNAL)
    cluster.producer().append(b"0")
    ledger = commits_of(cluster)[-1].open_ledger
    assert cluster.memory.get_ledger_metadata(ledger).ledger_type is LedgerType.PD_JOURNAL


def test_guaranteed_ledger_takes_rows_until_it_can_be_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It can't be closed while a missing bookie is not replaced, and appends would wait for that."""
    monkeypatch.setattr(producer_ledgers, "LEDGER_BYTES_MAX", 1)
    monkeypatch.setattr(MemoryLedger, "last_add_fully_replicated", -1, raising=False)
    cluster = Cluster(replication=Replication.GUARANTEED)
    one = cluster.producer()
    for _ in range(3):
        one.append(b"x")
    assert len(commits_of(cluster)) == 1
    monkeypatch.setattr(MemoryLedger, "last_add_fully_replicated", 2)
    one.append(b"x")
    assert [commit.rows for commit in commits_of(cluster)] == [0, 3]


def test_producer_of_a_deleted_log_has_ended() -> None:
    """The first append was refused, but the next ones were acknowledged and no reader would ever see their rows."""
    cluster = Cluster()
    one = cluster.producer()
    one.append(b"0")

    def delete(registry: LogRegistry) -> None:
        cluster.memory.metadata.delete_record(RECORDS, cluster.lane.key)

    cluster.changed(delete)
    for _ in range(3):
        with pytest.raises(NoSuchLogError, match="log 'orders' has no lane 1"):
            one.append(b"nobody's")
    assert one.closed
    one.close(SECONDS)


def test_producer_of_a_claimed_lane_ends_even_if_the_claimer_never_fenced() -> None:
    cluster = Cluster()
    one = cluster.producer()
    one.append(b"0")
    cluster.changed(lambda registry: registry.claim("orders@1", "another", service_writer("service")))
    for _ in range(3):
        with pytest.raises(LogTakenOverError, match="another producer of this name was made"):
            one.append(b"later")
    assert one.closed
    one.close(SECONDS)
    with cluster.producer() as other:
        assert (other.position, other.last_sequence) == (1, 0)
    assert cluster.rows() == [b"0"]


def test_options_altered_before_the_first_row_apply_to_it() -> None:
    cluster = Cluster()
    one = cluster.producer()
    cluster.alter(ack_quorum=3, compression=Compression.ZSTD)
    one.append(b"x")
    (commit,) = commits_of(cluster)
    ledger = cluster.memory.get_ledger_metadata(commit.open_ledger)
    assert (ledger.ack_quorum, ledger.custom_metadata["bookspark.encoding"]) == (3, b"stamped_zstd")


def test_options_altered_while_a_ledger_is_opened_apply_to_the_next_ledger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, altered = Cluster(), False
    made, one = cluster.memory.create_ledger, cluster.producer()

    def create_ledger(**options: Any) -> Any:
        nonlocal altered
        if not altered:
            altered = True
            cluster.alter(ack_quorum=3)
        return made(**options)

    monkeypatch.setattr(cluster.memory, "create_ledger", create_ledger)
    one.append(b"x")
    one.append(b"y")
    next_is_made(one)
    one.append(b"z")
    assert [cluster.memory.get_ledger_metadata(commit.open_ledger).ack_quorum for commit in commits_of(cluster)] == [
        2,
        3,
    ]


def test_rows_are_compressed_only_in_ledgers_labelled_as_compressed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A guaranteed ledger that lacks copies stays open after compression is altered, and takes rows uncompressed."""
    monkeypatch.setattr(MemoryLedger, "last_add_fully_replicated", -1, raising=False)
    cluster = Cluster(replication=Replication.GUARANTEED)
    one = cluster.producer()
    one.append(b"x")
    cluster.alter(compression=Compression.ZSTD)
    one.append(b"y")
    # After another change of the record, the next ledger is still due.
    cluster.changed(lambda registry: registry.update("orders@1", lambda record: record.with_dictionary(b"d" * 100)))
    one.append(b"z")
    next_is_made(one)
    assert cluster.rows() == [b"x", b"y", b"z"]
    monkeypatch.setattr(MemoryLedger, "last_add_fully_replicated", 2)
    one.append(b"compressed")
    first, second = commits_of(cluster)
    labels = [cluster.memory.get_ledger_metadata(commit.open_ledger).custom_metadata for commit in (first, second)]
    assert [label["bookspark.encoding"] for label in labels] == [b"stamped", b"stamped_zstd"]
    assert cluster.rows()[3] != b"compressed"


def next_is_made(producer: Producer) -> None:
    """Wait until the next ledger has been made in the background."""
    made = producer._ledgers._ahead
    if made is not None:
        wait((made,), SECONDS)


class Held:
    """Holds ledger creation until ``goes_on`` is set."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.goes_on, self.failures = threading.Event(), 0
        self._make = cluster.memory.create_ledger
        monkeypatch.setattr(cluster.memory, "create_ledger", self._made)

    def _made(self, **options: Any) -> Any:
        assert self.goes_on.wait(SECONDS)
        self.failures -= 1
        if self.failures >= 0:
            raise NotEnoughBookiesError("too few")
        return self._make(**options)


def test_appends_continue_while_the_next_ledger_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    one = cluster.producer()
    one.append(b"0")
    held = Held(cluster, monkeypatch)
    cluster.alter(ack_quorum=3)
    for number in range(1, 10):
        one.append(b"%d" % number)
    assert len(commits_of(cluster)) == 1
    # Options altered now apply to the ledger after the next.
    cluster.alter(ack_quorum=1)
    one.append(b"10")
    held.goes_on.set()
    for number in range(11, 14):
        next_is_made(one)
        one.append(b"%d" % number)
    ledgers = [cluster.memory.get_ledger_metadata(commit.open_ledger) for commit in commits_of(cluster)]
    assert [ledger.ack_quorum for ledger in ledgers] == [2, 3, 1]
    assert cluster.rows() == [b"%d" % number for number in range(14)]
    one.close(SECONDS)
    assert not cluster.memory.open_ledgers()


@pytest.mark.parametrize("leaves", [False, True])
def test_unneeded_next_ledger_is_deleted(leaves: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster()
    one = cluster.producer()
    one.append(b"0")
    held, before = Held(cluster, monkeypatch), set(cluster.memory.list_ledgers())
    cluster.alter(ack_quorum=3)
    one.append(b"1")
    made = one._ledgers._ahead
    assert made is not None
    if leaves:
        cluster.changed(lambda registry: registry.claim("orders@1", "another", service_writer("service")))
        with pytest.raises(LogTakenOverError):
            one.append(b"later")
    held.goes_on.set()
    wait((made,), SECONDS)
    one.close(SECONDS)
    await_that(lambda: set(cluster.memory.list_ledgers()) == before)


def test_failed_creation_of_the_next_ledger_is_retried_before_the_producer_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = Cluster()
    one = cluster.producer()
    one.append(b"0")
    # Each creation tries ensembles of three, two and one bookies if one may acknowledge.
    for failures, ack_quorum in ((1, 3), (6, 1)):
        held = Held(cluster, monkeypatch)
        held.failures = failures
        cluster.alter(ack_quorum=ack_quorum)
        one.append(b"of the old ledger")
        held.goes_on.set()
        next_is_made(one)
        if failures == 1:
            one.append(b"of the new ledger")
            assert len(commits_of(cluster)) == 2
        else:
            with pytest.raises(NotEnoughBookiesError):
                one.append(b"nowhere")
    assert one.closed
    assert cluster.rows() == [b"0", b"of the old ledger", b"of the new ledger", b"of the old ledger"]
    one.close(SECONDS)


@pytest.mark.parametrize("collect", [collect_orphans, collect_recent_orphans])
def test_taken_over_rows_are_no_orphans_while_their_commit_is_unknown_to_bookies(
    collect: Callable[..., list[int]],
) -> None:
    """The first commit of a chain's newest ledger counted as absent until readers learnt that it was confirmed. The
    collection at each new producer's start deleted the acknowledged rows of its predecessor."""
    cluster = Cluster()
    before = cluster.producer()
    before.append(b"acknowledged")
    with cluster.producer() as producer:
        producer.append(b"more")
        tending = producer._tending
        assert tending is not None
        tending.join(SECONDS)
        newest = LogRegistry(cluster.memory.metadata).get("orders@1").commit_ledgers[-1].ledger_id
        cluster.memory.untold.add(newest)
        assert collect(cluster.memory, "orders@1", b"") == []
        assert LogReader(cluster.memory, "orders@1", b"", AT_THE_END).newest() == 2
        assert cluster.rows() == [b"acknowledged", b"more"]
