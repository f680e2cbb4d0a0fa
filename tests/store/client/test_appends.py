"""Appends through a writer's handle: acknowledgement, failure, and the requests that reach the bookies.

A bookie answers STATUS after all earlier released answers of the same connection. So a client that has the STATUS answer has
processed them too; ``heard`` waits for it.
"""

from __future__ import annotations

import logging

import pyarrow
import pytest

from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    LedgerClosedError,
    LedgerFencedError,
    NotEnoughBookiesError,
    UnauthorizedAccessError,
)
from bookspark.store.wire.columns import Heads
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind, Status
from bookspark.store.wire.messages import Acks
from tests.awaiting import await_that
from tests.store.client.fake_bookie import SECONDS, hang_up, held, silence, told

KIB = 1024


@pytest.fixture
def trio(cluster):
    """Three bookies that hold their answers to adds."""
    bookies = cluster.start("b1", "b2", "b3")
    for bookie in bookies:
        bookie.answers[Kind.ADD] = held
    return bookies


def heard(client, *bookie_ids):
    for bookie_id in bookie_ids:
        client.bookie_status(bookie_id)


def release_all(bookies):
    for bookie in bookies:
        bookie.release_all()


def test_append_is_acknowledged_after_an_ack_quorum_and_not_before(cluster, trio):
    client = cluster.client()
    with client.create_ledger(3, 3, 2) as ledger:
        future = ledger.append_async(b"0")
        for bookie in trio:
            bookie.await_requests(Kind.ADD)
        trio[0].release()
        heard(client, "b1")
        assert not future.done()
        trio[1].release()
        assert future.result(SECONDS) == 0
        release_all(trio)


@pytest.mark.parametrize("ledger_type", ["PD_JOURNAL", "VD_JOURNAL"])
def test_repeated_acks_count_once_and_acks_of_unknown_requests_do_not_count(cluster, trio, ledger_type):
    client = cluster.client()
    with client.create_ledger(3, 3, 2, ledger_type=ledger_type) as ledger:
        future = ledger.append_async(b"0")
        header = trio[0].await_requests(Kind.ADD)[0]
        trio[1].await_requests(Kind.ADD)
        trio[0].release()
        trio[0].say(control_frame(Header(Kind.ACKS, 0), Acks.encode([header.request_id] * 2)))
        trio[0].say(told(header, incarnation=1))
        trio[1].say(control_frame(Header(Kind.ACKS, 0), Acks.encode([1 << 40])))
        trio[1].say(told(header._replace(request_id=1 << 40), incarnation=1))
        heard(client, "b1", "b2")
        assert not future.done()
        release_all(trio)
        assert future.result(SECONDS) == 0


def test_appends_are_acknowledged_in_the_order_of_their_ids(cluster, trio):
    client, called = cluster.client(), []
    with client.create_ledger(3, 3, 2) as ledger:
        futures = []
        for number in range(3):
            # One frame each: this append is sent before the next is made.
            futures.append(ledger.append_async(b"%d" % number))
            for bookie in trio:
                bookie.await_requests(Kind.ADD, number + 1)
        for future in (futures[1], futures[0], futures[2]):
            future.add_done_callback(lambda future: called.append(future.entry_id))
        for bookie in trio:
            bookie.release(2)
            bookie.release(1)
        heard(client, "b1", "b2", "b3")
        assert not any(future.done() for future in futures)
        assert ledger.last_add_confirmed == -1
        release_all(trio)
        assert [future.result(SECONDS) for future in futures] == [0, 1, 2]
        await_that(lambda: len(called) == 3)
        assert called == [0, 1, 2]


@pytest.mark.parametrize(
    ("answer", "error", "words"),
    [
        (Status.FENCED, LedgerFencedError, "was fenced at b[123] by another client"),
        (Status.UNAUTHORIZED, UnauthorizedAccessError, "b[123] refused the password"),
    ],
)
def test_refused_writer_fails_all_pending_and_later_appends(cluster, trio, answer, error, words):
    ledger = cluster.client(frames_in_flight_max=1).create_ledger(3, 3, 2)
    futures = [ledger.append_async(b"0")]
    trio[0].await_requests(Kind.ADD)
    futures.append(ledger.append_async(b"not sent yet"))
    # One fence is enough. A password is wrong if too many refuse it.
    refusing = trio[1:2] if answer is Status.FENCED else trio[1:]
    for bookie in refusing:
        bookie.await_requests(Kind.ADD)
    for bookie in trio:
        bookie.answers[Kind.ADD] = answer
    for bookie in refusing:
        bookie.say(told(bookie.came(Kind.ADD)[0], status=answer))
    for future in futures:
        with pytest.raises(error, match=words):
            future.result(SECONDS)
    assert ledger.closed
    for call in (lambda: ledger.append(b"2"), ledger.sync, ledger.flush_last_add_confirmed, ledger.close):
        with pytest.raises(error):
            call()


def test_unacknowledged_appends_time_out_and_the_error_names_the_bookies(cluster):
    for bookie in cluster.start("b1", "b2", "b3"):
        bookie.answers[Kind.ADD] = silence
    ledger = cluster.client(add_timeout_seconds=0.2).create_ledger(3, 3, 2)
    future = ledger.append_async(b"0")
    with pytest.raises(AddTimeoutError, match=r"entries 0..0 were not acknowledged in time by 2 bookies") as raised:
        future.result(SECONDS)
    assert all(bookie in str(raised.value) for bookie in ("b1", "b2", "b3"))
    with pytest.raises(AddTimeoutError) as raised:
        ledger.close()
    assert raised.value.unconfirmed == range(1)


def test_append_without_ack_quorum_or_spare_bookies_fails_and_closes_the_ledger(cluster):
    bookies = cluster.start("b1", "b2", "b3")
    ledger = cluster.client().create_ledger(3, 3, 2)
    ledger.append(b"0")
    for bookie in bookies[:2]:
        bookie.answers[Kind.ADD] = Status.READ_ONLY
    with pytest.raises(NotEnoughBookiesError, match="b1"):
        ledger.append(b"1")
    metadata = cluster.store.read_ledger(ledger.ledger_id).value
    assert (metadata.closed, metadata.last_entry_id) == (True, 0)


def test_appended_batch_is_sent_in_frames_of_the_configured_size(cluster):
    bookies = cluster.start("b1", "b2", "b3")
    ledger = cluster.client(frame_bytes=8 * KIB).create_ledger(3, 3, 3)
    payloads = [bytes([number]) * KIB for number in range(40)]
    assert ledger.append_batch(payloads) == range(40)
    for bookie in bookies:
        added = bookie.added()
        assert [first for first, _ in added] == [0, *(last + 1 for _, last in added[:-1])]
        assert len(added) >= 5
        assert all(last - first + 1 <= 8 for first, last in added)
        assert [bookie.entries[ledger.ledger_id][i].payload for i in range(40)] == payloads
    assert ledger.length == 40 * KIB
    ledger.close()
    assert ledger.metadata.length == ledger.length == 40 * KIB


def test_each_entry_of_a_striped_ledger_goes_to_its_write_set(cluster):
    cluster.start("b1", "b2", "b3")
    with cluster.client().create_ledger(3, 2, 2) as ledger:
        ledger.append_batch([b"%d" % number for number in range(6)])
        ensemble = ledger.metadata.last_fragment.ensemble
    for place, bookie_id in enumerate(ensemble):
        entries = cluster.bookies[bookie_id].entries[ledger.ledger_id]
        assert sorted(entries) == [i for i in range(6) if place in (i % 3, (i + 1) % 3)]


def test_frames_in_flight_are_bounded_and_waiting_entries_leave_together(cluster, trio):
    client = cluster.client(frames_in_flight_max=2)
    with client.create_ledger(3, 3, 3) as ledger:
        for number in range(2):
            ledger.append_async(b"%d" % number)
            for bookie in trio:
                bookie.await_requests(Kind.ADD, number + 1)
        for number in range(2, 6):
            ledger.append_async(b"%d" % number)
        heard(client, "b1", "b2", "b3")
        assert [bookie.added() for bookie in trio] == 3 * [[(0, 0), (1, 1)]]
        release_all(trio)
    assert [bookie.added() for bookie in trio] == 3 * [[(0, 0), (1, 1), (2, 5)]]


@pytest.mark.parametrize("kind", [pyarrow.binary(), pyarrow.large_binary(), pyarrow.string(), pyarrow.large_string()])
def test_arrow_array_of_any_binary_or_string_type_is_appended(cluster, kind):
    cluster.start("b1", "b2", "b3")
    values = [b"", b"one", b"more than one", "größer".encode()]
    array = pyarrow.array([value.decode() for value in values] if "string" in str(kind) else values, kind)
    with cluster.client(frame_bytes=16).create_ledger() as ledger:
        ledger.append_batch(array)
        ledger.append_batch(array.slice(1, 2))
        assert [entry.payload for entry in ledger.read()] == values + values[1:3]


# -- syncs of a ledger with volatile durability (VD)


@pytest.mark.parametrize("synced_by", ["a call", "time", "bytes"])
def test_volatile_ledger_is_confirmed_only_after_a_sync_by_call_time_or_bytes(cluster, synced_by):
    bookies = cluster.start("b1", "b2", "b3")
    for bookie in bookies:
        bookie.answers[Kind.SYNC] = held
    client = cluster.client(
        sync_interval_seconds=0.05 if synced_by == "time" else 0.0,
        sync_bytes=KIB if synced_by == "bytes" else KIB * KIB,
    )
    with client.create_ledger(3, 3, 2, ledger_type="VD_JOURNAL") as ledger:
        ledger.append(bytes(2 * KIB))
        if synced_by == "a call":
            assert not bookies[0].came(Kind.SYNC)
            synced = ledger.sync_async()
        for bookie in bookies:
            bookie.await_requests(Kind.SYNC)
        bookies[0].release()
        heard(client, "b1")
        assert ledger.last_add_confirmed == -1
        if synced_by == "a call":
            assert not synced.done()
        release_all(bookies)
        await_that(lambda: ledger.last_add_synced == 0)
        if synced_by == "a call":
            assert synced.result(SECONDS) == 0


def test_sync_without_an_ack_quorum_times_out(cluster):
    for bookie in cluster.start("b1", "b2", "b3"):
        bookie.answers[Kind.SYNC] = silence
    ledger = cluster.client(add_timeout_seconds=0.2).create_ledger(3, 3, 2, ledger_type="VD_JOURNAL")
    ledger.append_async(b"0")
    with pytest.raises(AddTimeoutError):
        ledger.sync()


# -- last-add-confirmed (LAC)


def test_each_append_carries_the_current_lac(cluster, trio):
    """A LAC that is too low leaves readers behind; a LAC that is too high shows them entries that may be lost."""
    with cluster.client().create_ledger(3, 3, 3) as ledger:
        futures = []
        for entry_id in range(3):
            futures.append(ledger.append_async(b"%d" % entry_id))
            for bookie in trio:
                bookie.await_requests(Kind.ADD, entry_id + 1)
                if entry_id == 0:
                    bookie.release()
            futures[0].result(SECONDS)
        release_all(trio)
        futures[2].result(SECONDS)
        ledger.append(b"3")
    for bookie in trio:
        assert [header.last_add_confirmed for header in bookie.came(Kind.ADD)] == [-1, 0, 0, 2]


def test_idle_writer_repeats_its_lac_until_each_bookie_accepts_it(cluster):
    """Otherwise a reader never sees the last entry. A bookie gets the LAC again after its connection ended."""
    b1, b2, b3 = cluster.start("b1", "b2", "b3")
    b1.answers_once[Kind.WRITE_LAC] += [Status.IO_ERROR] * 2
    with cluster.client(explicit_lac_interval_seconds=0.01).create_ledger() as ledger:
        ledger.append(b"0")
        assert [header.last_add_confirmed for header in b1.await_requests(Kind.WRITE_LAC, 3)] == [0, 0, 0]
        b2.await_requests(Kind.WRITE_LAC)
        heard_of = len(b3.await_requests(Kind.WRITE_LAC))
        b3.cut()
        assert b3.await_requests(Kind.WRITE_LAC, heard_of + 1)[-1].last_add_confirmed == 0


def test_lac_flush_waits_for_an_ack_quorum_and_its_error_counts_bookies(cluster):
    bookies = cluster.start("b1", "b2", "b3")
    ledger = cluster.client().create_ledger(3, 3, 2)
    ledger.append(b"0")
    bookies[2].answers[Kind.WRITE_LAC] = Status.IO_ERROR
    assert ledger.flush_last_add_confirmed() == 0
    assert all(bookie.confirmed[ledger.ledger_id] == 0 for bookie in bookies[:2])
    bookies[1].answers[Kind.WRITE_LAC] = Status.IO_ERROR
    with pytest.raises(AddTimeoutError, match="only 1 bookies"):
        ledger.flush_last_add_confirmed()


def test_eager_writer_sends_each_new_lac_without_a_further_entry(cluster):
    bookies = cluster.start("b1", "b2", "b3")
    with cluster.client().create_ledger() as ledger:
        ledger.append(b"0")
        assert not bookies[0].came(Kind.WRITE_LAC)
        ledger.tell_last_add_confirmed_soon()
        ledger.append(b"1")
        for bookie in bookies:
            assert bookie.await_requests(Kind.WRITE_LAC)[-1].last_add_confirmed == 1


# -- closing


def test_close_of_a_guaranteed_ledger_waits_for_the_write_quorum_of_each_entry(cluster, caplog):
    bookies = cluster.start("b1", "b2", "b3")
    bookies[2].answers[Kind.ADD] = held
    ledger = cluster.client(add_timeout_seconds=3.0).create_ledger(3, 3, 2, replication="guaranteed")
    assert ledger.append(b"0") == 0
    with caplog.at_level(logging.WARNING):
        closed = ledger.close_async()
        await_that(lambda: "goes on trying, for entries from 0 on are not on 3 bookies yet" in caplog.text)
        assert not closed.done()
        release_all(bookies)
        closed.result(SECONDS)
    assert ledger.metadata.closed
    assert ledger.last_add_fully_replicated == 0


def test_close_of_a_guaranteed_ledger_times_out_and_names_missing_bookies(cluster):
    bookies = cluster.start("b1", "b2", "b3")
    bookies[2].answers[Kind.ADD] = silence
    ledger = cluster.client().create_ledger(3, 3, 2, replication="guaranteed")
    ledger.append(b"0")
    with pytest.raises(AddTimeoutError, match=r"not yet synced on 3 bookies \(waiting for b3"):
        ledger.close(timeout=0.1)


def test_append_during_a_close_is_refused(cluster, trio):
    ledger = cluster.client().create_ledger()
    future = ledger.append_async(b"0")
    closed = ledger.close_async()
    await_that(lambda: ledger.closed)
    for call in (lambda: ledger.append(b"1"), lambda: ledger.append_batch_async([b"1"])):
        with pytest.raises(LedgerClosedError):
            call()
    assert not closed.done()
    release_all(trio)
    closed.result(SECONDS)
    assert (future.result(), ledger.metadata.last_entry_id) == (0, 0)


def test_sole_appender_of_a_closed_or_fenced_ledger_appends_nothing(cluster):
    bookies = cluster.start("b1", "b2", "b3")
    client = cluster.client()
    closed, fenced = client.create_ledger(), client.create_ledger()
    appenders = [ledger.sole_appender() for ledger in (closed, fenced)]
    closed.close()
    for bookie in bookies:
        bookie.fenced.add(fenced.ledger_id)
    with pytest.raises(LedgerFencedError):
        fenced.append(b"0")
    for ledger, appender in zip((closed, fenced), appenders, strict=True):
        pushed = ledger.last_add_pushed
        for call in (lambda: appender.append(b"0"), lambda: appender.append_all([b"0"], Heads((), 0))):  # noqa: B023
            with pytest.raises(LedgerClosedError if ledger is closed else LedgerFencedError):
                call()
        assert ledger.last_add_pushed == pushed


# -- given entry ids


def test_entries_with_given_ids_are_sent_in_order_and_never_behind_a_gap(cluster):
    bookies = cluster.start("b1", "b2", "b3")
    client = cluster.client()
    ledger = client.create_ledger_adv()
    late = [ledger.append_at_async(i, b"%d" % i) for i in (3, 1)]
    assert ledger.append_at(0, b"0") == 0
    assert late[1].result(SECONDS) == 1
    heard(client, "b1", "b2", "b3")
    assert all(sorted(bookie.entries[ledger.ledger_id]) == [0, 1] for bookie in bookies)
    assert not late[0].done()
    assert ledger.append_at(2, b"2") == 2
    assert late[0].result(SECONDS) == 3
    ledger.close()
    assert [(entry.entry_id, entry.payload) for entry in ledger.read()] == [(i, b"%d" % i) for i in range(4)]


# -- faults of bookies and users


def test_append_whose_connection_ends_is_sent_again_on_the_next_connection(cluster):
    bookies = cluster.start("b1", "b2", "b3")
    with cluster.client().create_ledger(3, 3, 2, replication="guaranteed") as ledger:
        ledger.append(b"0")
        bookies[0].answers_once[Kind.ADD].append(hang_up)
        assert ledger.append(b"1") == 1
    assert sorted(bookies[0].entries[ledger.ledger_id]) == [0, 1]


def test_ledger_that_may_lose_acknowledged_entries_logs_a_warning(cluster, caplog):
    cluster.start("b1", "b2", "b3", journal_write_data=False)
    client = cluster.client()
    with caplog.at_level(logging.WARNING):
        client.create_ledger(1, 1, 1).close()
    assert "a ledger is created with" in caplog.text


def test_append_from_the_clients_own_thread_is_refused_without_an_entry_id(cluster):
    """That thread would wait for itself."""
    cluster.start("b1", "b2", "b3")
    raised, unopened = [], cluster.client()
    with cluster.client().create_ledger() as ledger:

        def append_too(future):
            with pytest.raises(BookKeeperError) as refused:
                ledger.append(b"from the I/O thread")
            with pytest.raises(BookKeeperError):
                unopened.list_ledgers()
            raised.append(refused.value)

        ledger.append_async(b"0").tell_at_once(append_too)
        await_that(lambda: raised)
        assert ledger.last_add_pushed == 0
