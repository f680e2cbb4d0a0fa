"""Ledger handles in user programs: asyncio, repr, pickling, ids given by the caller, and limits of the client."""

from __future__ import annotations

import asyncio
import concurrent.futures
import copy
import inspect
import pickle
import threading

import msgspec
import pytest

import bookspark
from bookspark import errors
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.writing.given_ids import ENTRY_ID_MAX
from tests.awaiting import SECONDS_MAX

SECONDS = SECONDS_MAX


@pytest.fixture
def client(local_cluster):
    with local_cluster.bookkeeper() as made:
        yield made


# -- asyncio


def test_every_client_call_works_from_a_coroutine(local_cluster):
    async def use(client):
        ledger = await client.create_ledger_async(3, 3, 2, password=b"secret")
        assert ledger.ledger_id in await client.list_ledgers_async()
        assert await asyncio.gather(*(ledger.append_async(b"%d" % k) for k in range(100))) == list(range(100))
        assert await ledger.append_batch_async([b"100", b"101"]) == 101
        await ledger.drain_async()
        assert await ledger.sync_async() == 101
        tailing = await client.open_ledger_no_recovery_async(ledger.ledger_id, b"secret")
        polled = tailing.read_last_add_confirmed_and_entry_async(102, SECONDS)
        assert await ledger.append_async(b"102") == 102
        lac, entry = await polled
        assert (lac, entry.payload) == (102, b"102")
        await ledger.close_async()
        reader = await client.open_ledger_async(ledger.ledger_id, b"secret")
        assert await reader.read_last_add_confirmed_async() == 102
        assert [entry.payload for entry in await reader.read_async(99)] == [b"99", b"100", b"101", b"102"]
        assert len(await reader.read_unconfirmed_async(0, 1)) == 2
        with pytest.raises(errors.ReadError):
            await reader.read_async(0, 103)
        await client.delete_ledger_async(ledger.ledger_id)
        with pytest.raises(errors.NoSuchLedgerError):
            await client.get_ledger_metadata_async(ledger.ledger_id)

    with local_cluster.bookkeeper() as client:
        asyncio.run(use(client))


def test_futures_of_different_calls_can_be_awaited_together(client):
    with client.create_ledger() as ledger:
        futures = [ledger.append_async(b"0"), client.create_ledger_async(), client.list_ledgers_async()]
        done, not_done = concurrent.futures.wait(futures, SECONDS)
        assert (len(done), not_done) == (3, set())
        futures[1].result().close()


# -- repr and pickling


def test_repr_of_a_handle_shows_its_state_and_no_secret(client):
    ledger = client.create_ledger(password=b"secret-word")
    assert repr(ledger) == f"<LedgerHandle: ledger {ledger.ledger_id}, OPEN, last add confirmed -1>"
    assert not ledger.closed
    reader = client.open_ledger_no_recovery(ledger.ledger_id, b"secret-word")
    assert not reader.closed
    ledger.append(b"0")
    ledger.close()
    assert ledger.closed
    assert "CLOSED, last add confirmed 0" in repr(ledger)
    reader.read_last_add_confirmed()
    assert reader.closed
    key = ledger.metadata.master_key
    for shown in (repr(ledger), repr(reader), repr(client), str(ledger)):
        assert "secret-word" not in shown
        assert key.hex() not in shown
        assert repr(key)[2:-1] not in shown


def test_repr_of_a_fenced_writer_names_the_error(client):
    ledger = client.create_ledger()
    client.open_ledger(ledger.ledger_id)
    with pytest.raises(errors.LedgerFencedError):
        ledger.append(b"0")
    assert ledger.closed
    assert "ended by LedgerFencedError" in repr(ledger)


def test_entries_metadata_and_clients_can_be_pickled_and_handles_refuse(client):
    with client.create_ledger() as ledger:
        ledger.append(b"0")
        handles = ledger, client.open_ledger_no_recovery(ledger.ledger_id)
        for handle in handles:
            for send in (pickle.dumps, copy.copy):
                with pytest.raises(TypeError, match="can't be pickled: it belongs to a client"):
                    send(handle)
        (entry,) = ledger.read()
        for value in (entry, ledger.metadata):
            assert pickle.loads(pickle.dumps(value)) == value
        again = pickle.loads(pickle.dumps(client))
        assert again.get_ledger_metadata(ledger.ledger_id) == ledger.metadata
        again.close()


@pytest.mark.parametrize(
    "kind",
    [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, errors.BookKeeperError)],
)
def test_pickled_error_keeps_its_type_message_and_attributes(kind):
    error = kind("what happened")
    error.unconfirmed = range(3, 7)
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.unconfirmed) == (kind, "what happened", range(3, 7))
    assert vars(again) == vars(error)


# -- ids given by the caller


def test_entries_with_given_ids_are_acknowledged_in_order_and_read_back(client):
    with client.create_ledger_adv() as ledger:
        futures = {k: ledger.append_at_async(k, b"%d" % k) for k in (3, 1, 2)}
        assert not any(future.done() for future in futures.values())
        assert ledger.last_add_pushed == -1
        assert ledger.append_at(0, b"0") == 0
        assert [futures[k].result(SECONDS) for k in (1, 2, 3)] == [1, 2, 3]
        assert ledger.append_at(4, b"4") == 4
    reader = client.open_ledger(ledger.ledger_id)
    assert [(entry.entry_id, entry.payload, entry.length) for entry in reader.read()] == [
        (k, b"%d" % k, k + 1) for k in range(5)
    ]


def test_threads_that_append_ids_in_any_order_lose_no_entry(client):
    count, threads = 2000, 4
    with client.create_ledger_adv(None, 3, 3, 2) as ledger:

        def append(k):
            return [ledger.append_at_async(entry_id, b"%d" % entry_id) for entry_id in range(k, count, threads)]

        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            futures = [future for each in pool.map(append, range(threads)) for future in each]
        done, not_done = concurrent.futures.wait(futures, SECONDS)
        assert (len(done), not_done) == (count, set())
        assert sorted(future.result() for future in done) == list(range(count))


@pytest.mark.parametrize("payload", [b"the same", b"other bytes"])
def test_duplicate_entry_id_is_refused_and_the_first_payload_is_kept(client, payload):
    with client.create_ledger_adv() as ledger:
        ledger.append_at(0, b"the same")
        waiting = ledger.append_at_async(2, b"the same")
        for entry_id in (0, 2):
            with pytest.raises(errors.DuplicateEntryIdError):
                ledger.append_at(entry_id, payload)
        ledger.append_at(1, b"")
        assert waiting.result(SECONDS) == 2
    assert [entry.payload for entry in client.open_ledger(ledger.ledger_id).read()] == [b"the same", b"", b"the same"]


def test_close_with_a_gap_ends_the_ledger_before_it_and_fails_later_appends(client):
    ledger = client.create_ledger_adv()
    before, behind = ledger.append_at_async(0, b"0"), ledger.append_at_async(2, b"2")
    ledger.close()
    assert before.result(SECONDS) == 0
    with pytest.raises(errors.LedgerClosedError, match="closed before entry 1 was appended"):
        behind.result(SECONDS)
    with pytest.raises(errors.LedgerClosedError):
        ledger.append_at(1, b"1")
    assert ledger.metadata.state is LedgerState.CLOSED
    assert client.open_ledger(ledger.ledger_id).last_add_confirmed == 0
    ledger.close()


def test_append_behind_an_unfilled_gap_fails_after_the_add_timeout(client, monkeypatch):
    ledger = client.create_ledger_adv()
    ledger.append_at(0, b"0")
    # Only now: bookies may take longer for an entry.
    impatient = msgspec.structs.replace(ledger._driver._config, add_timeout_seconds=0.5)
    monkeypatch.setattr(ledger._driver, "_config", impatient)
    with pytest.raises(errors.AddTimeoutError, match=r"entry 1 was not appended in 0\.5 s"):
        ledger.append_at(2, b"2")
    assert client.open_ledger(ledger.ledger_id).last_add_confirmed == 0


def test_appends_behind_a_gap_are_bounded_and_never_block_the_missing_entry(local_cluster):
    """The missing entry got no room, because the appends that waited for it had taken it."""
    payload = bytes(1 << 10)
    with local_cluster.bookkeeper(bytes_in_flight_max=64 << 10, sync_bytes=1 << 10) as client:
        ledger = client.create_ledger_adv()
        appended = []

        def append():
            appended.extend(ledger.append_at_async(entry_id, payload) for entry_id in range(1, 200))

        thread = threading.Thread(target=append)
        thread.start()
        thread.join(1.0)
        assert thread.is_alive()
        assert client.context.runtime.room.held <= 33 << 10
        assert ledger.append_at(0, payload) == 0
        thread.join(SECONDS)
        assert [future.result(SECONDS) for future in appended] == list(range(1, 200))
        ledger.close()


@pytest.mark.parametrize("entry_id", [-1, ENTRY_ID_MAX + 1])
def test_an_entry_id_out_of_range_is_refused(client, entry_id):
    with client.create_ledger_adv() as ledger, pytest.raises(errors.ConfigurationError, match="can't be used"):
        ledger.append_at(entry_id, b"")


def test_ledger_with_given_ids_refuses_appends_without_an_id(client):
    with client.create_ledger_adv() as ledger:
        for append in (ledger.append, ledger.append_async):
            with pytest.raises(errors.BookKeeperError, match="append_at"):
                append(b"0")
        for append in (ledger.append_batch, ledger.append_batch_async):
            with pytest.raises(errors.BookKeeperError, match="append_at"):
                append([b"0"])


def test_given_ledger_id_is_used_and_never_assigned_again(client):
    taken = client.create_ledger()
    next_id = taken.ledger_id + 1
    ledger = client.create_ledger_adv(next_id)
    assert ledger.ledger_id == next_id == client.metadata.highest_ledger_id()
    for exists in (taken.ledger_id, next_id):
        with pytest.raises(errors.LedgerExistsError, match="exists already"):
            client.create_ledger_adv(exists)
    after = client.create_ledger()
    assert after.ledger_id > next_id, "it was given out by a user"
    for out_of_range in (-1, 10**10):
        with pytest.raises(errors.ConfigurationError, match="can't be used"):
            client.create_ledger_adv(out_of_range)
    for each in (taken, ledger, after):
        each.close()


# -- limits of the client


def test_ledgers_of_a_client_share_its_limit_of_bytes_in_flight(local_cluster):
    bound, payload = 1 << 20, bytes(16 << 10)
    with local_cluster.bookkeeper(bytes_in_flight_max=bound, sync_bytes=bound // 2) as client:
        ledgers = [client.create_ledger() for _ in range(4)]
        room, largest = client.context.runtime.room, 0

        def append(ledger):
            nonlocal largest
            for _ in range(200):
                ledger.append_async(payload)
                largest = max(largest, room.held)

        with concurrent.futures.ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(append, ledger) for ledger in ledgers]:
                done.result(SECONDS)
        for ledger in ledgers:
            ledger.close()
            assert ledger.last_add_confirmed == 199
        assert largest <= bound + 4 * len(payload)
        assert room.held == 0


def test_volatile_ledgers_are_synced_when_they_hold_all_the_memory(local_cluster):
    """Each ledger keeps its unsynced entries and syncs after ``sync_bytes``, which none of them would ever reach."""
    bound = 1 << 20
    kind = {"ledger_type": bookspark.LedgerType.VD_JOURNAL}
    with local_cluster.bookkeeper(
        bytes_in_flight_max=bound, sync_bytes=bound // 2, add_timeout_seconds=SECONDS
    ) as client:
        ledgers = [client.create_ledger(**kind) for _ in range(3)]
        for _ in range(64):
            for ledger in ledgers:
                ledger.append_async(bytes(16 << 10))
        for ledger in ledgers:
            ledger.close()
            assert ledger.last_add_confirmed == 63
