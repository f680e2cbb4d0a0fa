"""What the second door learns from a ledger's record, and what it notes there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from queue import Queue

from bookspark.protocol.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata
from bookspark.servers.bookkeeper import digest_types
from bookspark.servers.bookkeeper.digest_types import DigestTypes, read_and_note
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.digests import master_key
from bookspark.store.wire.header import Status
from tests.awaiting import SECONDS_MAX

OF_8_BYTES, OF_20_BYTES = DigestType.BOOKKEEPER_CRC32, DigestType.BOOKKEEPER_HMAC


def record(ledger_id: int) -> LedgerMetadata:
    key = master_key(b"", OF_8_BYTES)
    return LedgerMetadata(ledger_id, 1, 1, 1, (Fragment(0, ("a",)),), digest_type=OF_8_BYTES, master_key=key)


def test_an_id_that_was_given_to_a_ledger_of_theirs_is_noted_before_its_first_add() -> None:
    store = MemoryStore()
    drawn = store.new_ledger_id()
    for ledger_id in (drawn, 500, 400):
        store.create_ledger(record(ledger_id))
    read = read_and_note(store)
    assert read(drawn) is OF_8_BYTES and store.highest_ledger_id() == drawn
    assert read(500) is OF_8_BYTES and store.highest_ledger_id() == 500
    assert read(400) is OF_8_BYTES and store.highest_ledger_id() == 500


def test_the_digest_type_of_a_ledger_that_is_held_no_more_is_asked_for_again() -> None:
    """The id of a deleted ledger may be given to one with digests of another length."""
    posted: Queue[Callable[[], None]] = Queue()
    types, told = iter((OF_20_BYTES, OF_8_BYTES)), []
    with contextlib.closing(DigestTypes(lambda ledger_id: next(types), posted.put)) as known:
        for is_held in (False, True, False, True):
            known.when_known(7, is_held, 0, lambda found, status: told.append(found))
            if not is_held:
                posted.get(timeout=SECONDS_MAX)()
    assert told == [OF_20_BYTES, OF_20_BYTES, OF_8_BYTES, OF_8_BYTES]


def test_an_add_never_overtakes_one_that_waits_for_the_digest_type() -> None:
    posted: Queue[Callable[[], None]] = Queue()
    order: list[int] = []
    with contextlib.closing(DigestTypes(lambda ledger_id: OF_8_BYTES, posted.put)) as known:
        for number, is_held in enumerate((False, False)):
            known.when_known(7, is_held, 0, lambda found, status, number=number: order.append(number))
        posted.get(timeout=SECONDS_MAX)()
        known.when_known(7, False, 0, lambda found, status: order.append(2))
        known.when_known(7, True, 0, lambda found, status: order.append(3))
        posted.get(timeout=SECONDS_MAX)()
    assert order == [0, 1, 2, 3]


def test_adds_without_a_body_that_wait_are_bounded_too() -> None:
    go_on, told = threading.Event(), []
    limit = digest_types._WAITING_BYTES_MAX // digest_types._ADD_BYTES

    def slow(ledger_id: int) -> DigestType:
        go_on.wait(SECONDS_MAX)
        return OF_8_BYTES

    with contextlib.closing(DigestTypes(slow, lambda call: None)) as known:
        for _ in range(limit + 3):
            known.when_known(7, False, 0, lambda found, status: told.append(status))
        assert told == [Status.TOO_MANY_REQUESTS] * 3
        go_on.set()


def test_a_bookie_that_stops_sends_waiting_adds_to_other_bookies_and_is_not_shunned_for_it() -> None:
    """BookKeeper's ``TestBookieHealthCheck`` found that its client put a bookie into quarantine for half an hour, because an add
    that waited when the bookie was stopped was answered TOO_MANY_REQUESTS."""
    go_on, told = threading.Event(), []

    def slow(ledger_id: int) -> DigestType:
        go_on.wait(SECONDS_MAX)
        return OF_8_BYTES

    known = DigestTypes(slow, lambda call: None)
    known.when_known(7, False, 0, lambda found, status: told.append(status))
    known.close()
    known.when_known(8, False, 0, lambda found, status: told.append(status))
    go_on.set()
    assert told == [Status.READ_ONLY] * 2
