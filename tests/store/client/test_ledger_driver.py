"""A ledger's driver with connections to stub bookies: repeated sends, failed ledgers, and LACs (last-add-confirmed)."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest

from bookspark.errors import LedgerFencedError, NotEnoughBookiesError
from bookspark.protocol.ledger.actions import BookiesChosen, ChooseBookies, MetadataWritten, NoBookies
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.writing.writer import State
from bookspark.store.client.client_config import client_config
from bookspark.store.client.runtime.runtime import Runtime
from bookspark.store.client.writing.ledger_driver import LedgerDriver
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Flag, Header, Kind, Status
from bookspark.store.wire.messages import Acks
from tests.awaiting import await_that
from tests.store.client.fake_bookie import SECONDS
from tests.store.client.test_connections import MIB, Bench

BOOKIES = ("b1", "b2", "b3")


def no_bookies(metadata, action):
    if isinstance(action, ChooseBookies):
        return NoBookies(NotEnoughBookiesError("there are no others"))
    return MetadataWritten(1)


PATIENT = dict.fromkeys(
    ("add_timeout_seconds", "answer_timeout_seconds", "bookie_stall_seconds", "connect_timeout_seconds"), SECONDS
)
"""Options under which no bookie times out on a busy machine."""


class DriverBench(Bench):
    """A ``Bench`` with a real client's drivers of ledgers on b1, b2 and b3; by default there are no spare bookies."""

    def open(self, **options):
        self.io.stop()
        self.config = client_config(**PATIENT | options)
        self.runtime = Runtime(lambda: self.store, self.config)
        self.io, self.connections = self.runtime.io, self.runtime.connections

    def driver(self, quorums=(3, 3, 2), answer_from_store=no_bookies, **choices):
        context = SimpleNamespace(
            config=self.config, runtime=self.runtime, answer_from_store=answer_from_store, closed=False
        )
        metadata = LedgerMetadata(1, *quorums, (Fragment(0, BOOKIES),), **choices)
        made = LedgerDriver(context, metadata, 0, b"")
        self.runtime.add_writer(made)
        self.in_loop(made.want_bookies)
        return made

    def append(self, driver, *payloads):
        for payload in payloads:
            driver.outgoing.put([payload])
        self.io.submit(driver.pump)

    def close(self):
        self.runtime.close()
        self.connections = None
        super().close()


@pytest.fixture
def bench():
    made = DriverBench()
    yield made
    made.close()


def test_returning_bookie_gets_missed_entries_as_fast_as_it_reads(bench):
    """More bytes were pending than the queue limit of a bookie: sent at once, they cut the bookie off again and again."""
    for bookie_id in BOOKIES[1:]:
        bench.bookie(bookie_id)
    bench.open(bytes_in_flight_max=64 * MIB)
    driver = bench.driver(replication=Replication.GUARANTEED)
    bench.append(driver, *[bytes(MIB)] * 60)
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 59, SECONDS)
    assert driver.cursors.last_add_fully_replicated == -1
    back = bench.bookie("b1", greets_only=True)
    greeted = bench.connection("b1")
    assert bench.queued_bytes("b1") <= 16 * MIB
    back.taking.set()
    assert driver.acknowledged.wait(lambda: driver.cursors.last_add_fully_replicated == 59, SECONDS)
    assert greeted.lost is None


def test_failed_ledger_is_dropped_without_a_close(bench):
    for bookie_id in BOOKIES:
        bench.bookie(bookie_id).statuses[Kind.ADD] = Status.FENCED
    bench.open()
    driver = bench.driver()
    bench.append(driver, b"0")
    assert driver.ended.wait(SECONDS)
    assert isinstance(driver.acknowledged.error, LedgerFencedError)
    assert bench.in_loop(lambda: list(bench.runtime._writers)) == []
    assert not any(bench.connections._wanted.values())


def test_many_appends_make_two_frames_if_idle_and_a_single_frame_if_busy(bench):
    """With a single frame, a user with at most a thousand unacknowledged appends waited for it, and then the bookies waited for
    the user."""
    (bookie, *_) = (bench.bookie(bookie_id) for bookie_id in BOOKIES)
    bench.open()
    driver = bench.driver()

    def append_at_once(*counts):
        for count in counts:
            driver.outgoing.put([b"x"] * count)
            driver.pump()

    for counts, frames in (((1000,), [500, 500]), ((255,), [255]), ((1001, 400), [501, 500, 400])):
        bench.in_loop(lambda counts=counts: append_at_once(*counts))
        for count in frames:
            header = added(bookie)
            assert header.last_entry_id - header.first_entry_id + 1 == count
        await_that(lambda: not driver._under_way)


def test_append_does_not_time_out_because_the_client_slept(bench, monkeypatch):
    bookies = [bench.bookie(bookie_id) for bookie_id in BOOKIES]
    bench.open()
    driver = bench.driver()
    bench.append(driver, b"0")
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 0, SECONDS)
    for bookie in bookies:
        bookie.asked(Kind.ADD)
        bookie.answering = False
    bench.append(driver, b"1")
    answers = [bookie.asked(Kind.ADD) for bookie in bookies]
    bench.sleep(monkeypatch, lambda: [answer() for answer in answers])
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 1, SECONDS)
    assert driver.acknowledged.error is None


def test_unexpected_error_from_the_metadata_store_ends_the_ledger(bench, caplog):
    """The exception was lost: the ledger waited for an answer, a guaranteed ledger forever."""

    def broken(metadata, action):
        raise ZeroDivisionError("a defect")

    for bookie_id in BOOKIES:
        bench.bookie(bookie_id).statuses[Kind.ADD] = Status.READ_ONLY
    bench.open()
    driver = bench.driver(answer_from_store=broken)
    bench.append(driver, b"0")
    assert driver.ended.wait(SECONDS)
    assert "ran into a defect" in str(driver.acknowledged.error)
    assert driver.writer.state is State.FAILED
    assert "ChooseBookies" in caplog.text


def test_ensemble_changes_of_many_ledgers_run_in_parallel(bench):
    """After a bookie died, 1,262 of 2,000 appends failed: records were changed two at a time, 90 a second."""
    for bookie_id in (*BOOKIES[1:], "b4"):
        bench.bookie(bookie_id)
    bench.bookie("b1").statuses[Kind.ADD] = Status.READ_ONLY
    together = threading.Barrier(16)

    def change_together(metadata, action):
        if isinstance(action, ChooseBookies):
            return BookiesChosen(("b4",))
        together.wait(SECONDS)
        return MetadataWritten(1)

    bench.open()
    drivers = [bench.driver((3, 3, 3), change_together) for _ in range(16)]
    for driver in drivers:
        bench.append(driver, b"0")
    for driver in drivers:
        assert driver.acknowledged.wait(lambda driver=driver: driver.acknowledged.value == 0, SECONDS)
        assert driver.writer.metadata.last_fragment.ensemble == ("b4", "b2", "b3")


def test_unexpected_event_ends_the_ledger_with_an_error(bench, caplog):
    """The writer rejects an illegal event, and could then wait forever for the answer to its request."""
    for bookie_id in BOOKIES:
        bench.bookie(bookie_id)
    bench.open()
    driver = bench.driver()
    bench.append(driver, b"0")
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 0, SECONDS)
    bench.in_loop(driver._step, MetadataWritten(1))
    assert driver.ended.wait(SECONDS)
    assert "ran into a defect (IllegalEventError(" in str(driver.acknowledged.error)
    assert driver.writer.state is State.FAILED
    assert "MetadataWritten while Asked is NOTHING" in caplog.text


@pytest.mark.parametrize("kind", [Kind.ADD, Kind.SYNC])
def test_ack_of_a_volatile_ledger_without_synced_entry_id_is_ignored(bench, kind):
    """Such an ack comes from a broken bookie: it is no defect of the client and acknowledges nothing."""
    others, broken = [bench.bookie(bookie_id) for bookie_id in BOOKIES[1:]], bench.bookie("b1")
    for bookie in (*others, broken):
        bookie.statuses[Kind.SYNC] = Status.OK
    for bookie in others:
        bookie.last_add_synced = 0
    del broken.statuses[kind]
    bench.open()
    driver = bench.driver(ledger_type=LedgerType.VD_JOURNAL, replication=Replication.GUARANTEED)
    bench.append(driver, b"0")
    bench.in_loop(driver.sync, 0)
    request_id = broken.asked(kind).args[1].request_id
    broken._sockets[-1].sendall(control_frame(Header(Kind.ACKS, 0), Acks.encode([request_id])))
    answer_again = broken.asked(kind)
    assert driver.writer.state is State.OPEN
    assert driver.cursors.last_add_fully_replicated == -1
    broken.last_add_synced, broken.statuses[kind] = 0, Status.OK
    answer_again()
    await_that(lambda: driver.cursors.last_add_fully_replicated == 0, SECONDS)


@pytest.mark.parametrize("kind", [Kind.ADD, Kind.SYNC])
def test_bookie_that_reports_unsent_entries_as_synced_is_not_believed(bench, kind, caplog):
    """The bookie may report on another stay in the ensemble, or be broken. The writer's handle failed as if the client had a
    defect."""
    others, broken = [bench.bookie(bookie_id) for bookie_id in BOOKIES[1:]], bench.bookie("b1")
    for bookie in (*others, broken):
        bookie.statuses[Kind.SYNC] = Status.OK
    for bookie in others:
        bookie.last_add_synced = 0
    del broken.statuses[kind]
    bench.open()
    driver = bench.driver(ledger_type=LedgerType.VD_JOURNAL, replication=Replication.GUARANTEED)
    bench.append(driver, b"0")
    bench.in_loop(driver.sync, 0)
    answer = broken.asked(kind)
    broken.last_add_synced, broken.statuses[kind] = 7, Status.OK
    answer()
    await_that(lambda: "b1 is not believed" in caplog.text, SECONDS)
    assert driver.writer.state is State.OPEN
    assert driver.cursors.last_add_fully_replicated == -1
    broken.last_add_synced = 0
    await_that(lambda: driver.cursors.last_add_fully_replicated == 0, SECONDS)


def told_lac(bookie):
    """The next explicit LAC that the bookie receives."""
    while (header := bookie.headers.get(timeout=SECONDS)).kind != Kind.WRITE_LAC:
        pass
    return header.last_add_confirmed


def test_id_of_an_entry_that_failed_to_encode_is_not_reused(bench, monkeypatch, caplog):
    """The next entry took the id: the lost append was reported as acknowledged."""
    for bookie_id in BOOKIES:
        bench.bookie(bookie_id)
    bench.open()
    driver = bench.driver()
    encode = driver.outgoing.encode

    def short_of_memory(header, run, length):
        if b"1" in run.pieces:
            raise MemoryError
        return encode(header, run, length)

    monkeypatch.setattr(driver.outgoing, "encode", short_of_memory)
    for payload in (b"0", b"1", b"2"):
        bench.append(driver, payload)
        driver.acknowledged.wait(lambda entry_id=int(payload): driver.acknowledged.value == entry_id, SECONDS)
    assert driver.acknowledged.value == 0
    assert "ran into a defect (MemoryError()" in str(driver.acknowledged.error)
    assert "sending appends failed" in caplog.text


def test_idle_writer_rests_after_all_bookies_have_its_lac(bench):
    """A thousand idle open ledgers took a tenth of a core."""
    bookies = [bench.bookie(bookie_id) for bookie_id in BOOKIES]
    for bookie in bookies:
        bookie.statuses[Kind.WRITE_LAC] = Status.OK
    bench.open(explicit_lac_interval_seconds=0.01)
    driver = bench.driver()
    for entry_id, payload in enumerate((b"0", b"1")):
        bench.append(driver, payload)
        assert [told_lac(bookie) for bookie in bookies] == [entry_id] * 3
        await_that(lambda: driver not in bench.runtime._awake and driver not in bench.runtime._owing)


def test_append_of_a_resting_writer_is_sent_when_its_bookie_catches_up(bench):
    bookies = [bench.bookie(bookie_id) for bookie_id in BOOKIES]
    for bookie in bookies:
        bookie.statuses[Kind.WRITE_LAC] = Status.OK
    bench.open(bytes_in_flight_max=64 * MIB, bookie_stall_seconds=1000, explicit_lac_interval_seconds=0.01)
    driver = bench.driver()
    bench.append(driver, b"0")
    await_that(lambda: driver.cursors.last_add_confirmed == 0 and driver not in bench.runtime._awake)
    bookies[0].taking.clear()
    bench.send("b1", *[bytes(MIB)] * 14)
    await_that(lambda: bench.in_loop(bench.connections.any_is_behind, ["b1"]))
    bench.append(driver, b"1")
    bench.in_loop(lambda: None)  # the driver has seen the append, which has to wait
    assert driver.cursors.last_add_pushed == 0
    bookies[0].taking.set()
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 1, SECONDS)


def test_sync_after_a_long_pause_gets_its_full_timeout(bench):
    for bookie_id in BOOKIES:
        bench.bookie(bookie_id)
    bench.open()
    driver = bench.driver(ledger_type=LedgerType.VD_JOURNAL)
    bench.append(driver, b"0")
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 0, SECONDS)

    def sync():
        driver._progress_at = -3600.0
        driver.sync(0)
        driver.tick(time.monotonic())
        return driver.acknowledged.error

    assert bench.in_loop(sync) is None


def test_entries_skipped_for_a_slow_bookie_leave_no_gap_in_its_synced_range(bench):
    """The bookie never got the entries confirmed while it was behind, and its cursor waited for them forever."""
    others = [bench.bookie(bookie_id) for bookie_id in BOOKIES[:2]]
    bench.open(bytes_in_flight_max=128 * MIB, bookie_stall_seconds=SECONDS, sync_bytes=32 * MIB)
    driver = bench.driver(ledger_type=LedgerType.VD_JOURNAL)
    bench.append(driver, *[bytes(MIB)] * 30)
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 29, SECONDS)
    back = bench.bookie("b3", greets_only=True)
    await_that(lambda: bench.in_loop(lambda: "b3" in driver._held_back), SECONDS)
    for bookie in others:
        bookie.statuses[Kind.SYNC], bookie.last_add_synced = Status.OK, 29
    bench.in_loop(driver.sync, 29)
    assert driver.confirmed.wait(lambda: driver.confirmed.value == 29, SECONDS)
    back.taking.set()
    await_that(lambda: bench.in_loop(lambda: not driver._held_back), SECONDS)
    bench.append(driver, b"30")
    came = {}
    while 30 not in came:
        header = added(back)
        came[header.first_entry_id] = header.assignment()
    # The skipped entries depend on the requests that waited for a connection when the bookie came back.
    assert set(range(30)) - came.keys()
    assert came[30].first_entry_id == 30


def added(bookie):
    """The next add that the bookie receives."""
    while (header := bookie.headers.get(timeout=SECONDS)).kind != Kind.ADD:
        pass
    return header


def test_add_answer_of_an_earlier_stay_does_not_advance_the_lac(bench):
    """Adds of both stays had the same request id. A bookie of a striped VD ledger left the ensemble and came back at another
    position; entries that it never got were counted as synced, and the LAC covered them."""

    def answer(bookie, header, **outcome):
        bookie._sockets[-1].sendall(control_frame(header._replace(flags=int(Flag.RESPONSE), incarnation=1, **outcome)))

    replacements = iter(("b4", "b1"))

    def store(metadata, action):
        return BookiesChosen((next(replacements),)) if isinstance(action, ChooseBookies) else MetadataWritten(1)

    b1, b2, _, b4 = bookies = [bench.bookie(f"b{i}") for i in (1, 2, 3, 4)]
    for bookie in bookies:
        del bookie.statuses[Kind.ADD]
    bench.open()
    driver = bench.driver(quorums=(3, 2, 1), answer_from_store=store, ledger_type=LedgerType.VD_JOURNAL)
    bench.append(driver, b"0", b"1", b"2")
    first, third = added(b1), added(b1)
    assert (first.first_entry_id, third.first_entry_id) == (0, 2)
    answer(b1, third, status=Status.IO_ERROR)
    assert added(b4).first_entry_id == 0
    answer(b2, added(b2), status=Status.IO_ERROR)
    assert [added(b1).first_entry_id for _ in range(2)] == [0, 1]
    answer(b1, first, last_add_synced=1)  # its entries up to 1 in the earlier stay: only entry 0
    bench.ask("b1")
    assert (driver.cursors.last_add_acknowledged, driver.cursors.last_add_confirmed) == (0, -1)


# -- copies that the writer could not make


def lacking(bench):
    task = bench.store.underreplication.task(1)
    return {} if task is None else {bookie: reason.value for bookie, reason in task.bookies.items()}


def closed(bench, driver, *payloads):
    bench.append(driver, *payloads)
    assert driver.acknowledged.wait(lambda: not driver.outgoing and not driver.cursors.pending, SECONDS)
    driver.closing = True
    bench.io.submit(driver.pump)
    assert driver.ended.wait(SECONDS) and driver.writer.state is State.CLOSED


def test_close_marks_the_entries_that_a_bookie_did_not_get(bench):
    """The cluster was well and had nothing to do, and each entry had two of three copies, until the next exact check."""
    for bookie_id in BOOKIES[1:]:
        bench.bookie(bookie_id)
    bench.open()
    driver = bench.driver()
    bench.append(driver, b"0")
    await_that(lambda: bench.in_loop(lambda: bool(driver._lacking)))
    closed(bench, driver, b"1", b"2")
    assert lacking(bench) == {"b1": "lacks"}
    assert "lacks 0" in bench.store.underreplication.task(1).detail


def test_close_marks_nothing_if_all_bookies_have_all(bench):
    for bookie_id in BOOKIES:
        bench.bookie(bookie_id)
    bench.open()
    closed(bench, bench.driver((3, 3, 3)), b"0", b"1")
    assert lacking(bench) == {}


def test_adds_that_fail_after_the_close_are_marked_too(bench):
    late, *_ = [bench.bookie(bookie_id) for bookie_id in BOOKIES]
    del late.statuses[Kind.ADD]
    bench.open()
    closed(bench, bench.driver(), b"0", b"1")
    assert lacking(bench) == {}
    late.end()
    await_that(lambda: lacking(bench) == {"b1": "lacks"})
