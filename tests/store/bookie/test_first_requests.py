"""Requests that would make a ledger known without an entry, and the metadata's permission for them (docs/security.md)."""

from __future__ import annotations

import threading

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.protocol.bookie.first_request import answer_first_request
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.ledger.responses import UNAUTHORIZED, Positive, Unknown, UnknownReason
from bookspark.servers.daemon.bookie_process import first_request_check
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.header import Status
from tests.store.bookie.kit import KEY, OTHER_KEY, Pumped, config

ME = "bookie-test"


def metadata(ledger_id=7, *ensembles, key=KEY):
    ensembles = ensembles or ((ME, "b2"),)
    fragments = tuple(Fragment(10 * number, ensemble) for number, ensemble in enumerate(ensembles))
    return LedgerMetadata(ledger_id, 2, 2, 1, fragments, master_key=key)


@pytest.fixture
def store():
    made = MemoryStore()
    made.create_ledger(metadata())
    made.create_ledger(metadata(8, ("b2", "b3")))
    return made


@pytest.fixture
def storage(tmp_path, store):
    pumped = Pumped(config(tmp_path), check_first=first_request_check(store, ME))
    yield pumped
    pumped.storage.close()


def test_first_request_needs_the_password_and_a_fragment_naming_the_bookie():
    assert answer_first_request(ME, metadata(), KEY) == Positive()
    assert answer_first_request(ME, metadata(7, (ME, "b2"), ("b2", "b3")), KEY) == Positive(), "any fragment will do"
    assert answer_first_request(ME, metadata(), OTHER_KEY) == UNAUTHORIZED
    for none in (None, metadata(7, ("b2", "b3"))):
        answer = answer_first_request(ME, none, KEY)
        assert isinstance(answer, Unknown) and answer.reason is UnknownReason.LIMBO


def fence(storage, ledger_id, key):
    return storage.fence(ledger_id, key)


def write_lac(storage, ledger_id, key):
    return storage.run(storage.storage.write_last_add_confirmed, ledger_id, key, 3)


@pytest.mark.parametrize("request_of", [fence, write_lac])
def test_requests_with_guessed_ids_make_no_ledger_known(storage, request_of):
    """With a packet for each of the next ids, a stranger could make every new ledger unwritable."""
    assert request_of(storage, 7, OTHER_KEY) is Status.UNAUTHORIZED
    assert request_of(storage, 8, KEY) is Status.LIMBO, "its metadata names other bookies"
    assert request_of(storage, 9, KEY) is Status.LIMBO, "there is no such ledger"
    assert not len(storage.storage.holdings.ledgers)
    assert [storage.add(ledger_id, 0) for ledger_id in (7, 8, 9)] == [Status.OK] * 3


def test_correct_password_fences_a_ledger_without_entries(storage, store):
    assert fence(storage, 7, KEY) is Status.OK
    assert storage.add(7, 0) is Status.FENCED
    store.delete_ledger(7)
    assert fence(storage, 7, KEY) is Status.OK, "it is known by now"


def test_requests_to_a_ledger_with_entries_need_no_metadata(storage, store):
    assert storage.add(9, 0) is Status.OK
    assert write_lac(storage, 9, KEY) is Status.OK
    assert fence(storage, 9, OTHER_KEY) is Status.UNAUTHORIZED
    assert fence(storage, 9, KEY) is Status.OK


def test_entry_added_during_the_metadata_read_is_seen_by_the_fence(tmp_path):
    asked, answer = threading.Event(), threading.Event()

    def check(ledger_id, key):
        asked.set()
        assert answer.wait(60)
        return Positive()

    storage = Pumped(config(tmp_path), check_first=check)
    statuses = []
    storage.storage.fence(7, OTHER_KEY, statuses.append)
    assert asked.wait(60)
    assert storage.add(7, 0) is Status.OK
    answer.set()
    storage.wait(lambda: bool(statuses))
    assert statuses == [Status.UNAUTHORIZED], "the entry's key is the ledger's by now"
    storage.storage.close()


def test_unreadable_metadata_grants_no_first_request(tmp_path):
    def check(ledger_id, key):
        raise MetadataStoreError("ZooKeeper does not answer")

    storage = Pumped(config(tmp_path), check_first=check)
    assert fence(storage, 7, KEY) is Status.LIMBO
    assert not len(storage.storage.holdings.ledgers)
    storage.storage.close()


def test_waiting_first_requests_share_lookups_and_end_with_close(tmp_path):
    asked, answer, looks = threading.Event(), threading.Event(), []

    def check(ledger_id, key):
        looks.append(ledger_id)
        asked.set()
        assert answer.wait(60)
        return Positive()

    storage = Pumped(config(tmp_path), check_first=check)
    statuses = []
    for _ in range(3):
        storage.storage.fence(7, KEY, statuses.append)
    assert asked.wait(60), "a stop takes back what no thread has begun"
    storage.storage.close()
    assert statuses == 3 * [Status.LIMBO]
    answer.set()
    assert looks == [7]
