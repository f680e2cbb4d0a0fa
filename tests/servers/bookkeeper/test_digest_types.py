"""Digest types of ledgers at the BookKeeper port, read from the ledgers' records."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from queue import Queue

from bookspark.protocol.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata
from bookspark.servers.bookkeeper.digest_types import DigestTypes, read_and_note
from bookspark.store.bookie.ledgers.metadata_looks import NOBODY, MetadataLooks
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.digests import master_key
from bookspark.store.wire.header import Status
from tests.awaiting import SECONDS_MAX

OF_8_BYTES, OF_20_BYTES = DigestType.BOOKKEEPER_CRC32, DigestType.BOOKKEEPER_HMAC


def record(ledger_id: int) -> LedgerMetadata:
    key = master_key(b"", OF_8_BYTES)
    return LedgerMetadata(ledger_id, 1, 1, 1, (Fragment(0, ("a",)),), digest_type=OF_8_BYTES, master_key=key)


def test_given_ledger_id_is_noted_before_the_first_add() -> None:
    store = MemoryStore()
    drawn = store.new_ledger_id()
    for ledger_id in (drawn, 500, 400):
        store.create_ledger(record(ledger_id))
    read = read_and_note(store)
    assert read(drawn) is OF_8_BYTES and store.highest_ledger_id() == drawn
    assert read(500) is OF_8_BYTES and store.highest_ledger_id() == 500
    assert read(400) is OF_8_BYTES and store.highest_ledger_id() == 500


@contextlib.contextmanager
def digest_types(read: Callable[[int], DigestType]) -> Iterator[tuple[DigestTypes, Callable[[], None]]]:
    """Digest types whose loop is the test, and a function that waits for the next look's answer."""
    posted: Queue[Callable[[], None]] = Queue()
    looks = MetadataLooks()
    looks.start(posted.put)

    def look() -> None:
        # The answer, and the end of the thread's rest.
        for _ in range(2):
            posted.get(timeout=SECONDS_MAX)()

    with contextlib.closing(looks):
        yield DigestTypes(read, looks), look


def test_digest_type_of_a_ledger_no_longer_held_is_read_again() -> None:
    """The id of a deleted ledger may be reused for a ledger whose digests have another length."""
    types, told = iter((OF_20_BYTES, OF_8_BYTES)), []
    with digest_types(lambda ledger_id: next(types)) as (known, look):
        for is_held in (False, True, False, True):
            known.when_known(7, is_held, 0, NOBODY, lambda found, status: told.append(found))
            if not is_held:
                look()
    assert told == [OF_20_BYTES, OF_20_BYTES, OF_8_BYTES, OF_8_BYTES]


def test_an_add_never_overtakes_an_add_that_waits_for_the_digest_type() -> None:
    order: list[int] = []
    with digest_types(lambda ledger_id: OF_8_BYTES) as (known, look):
        for number, is_held in enumerate((False, False)):
            known.when_known(7, is_held, 0, NOBODY, lambda found, status, number=number: order.append(number))
        look()
        known.when_known(7, False, 0, NOBODY, lambda found, status: order.append(2))
        known.when_known(7, True, 0, NOBODY, lambda found, status: order.append(3))
        look()
    assert order == [0, 1, 2, 3]


def test_stopping_bookie_answers_read_only_to_waiting_adds() -> None:
    """BookKeeper's ``TestBookieHealthCheck`` showed that its client quarantined a bookie for half an hour, because a bookie that
    was stopped answered TOO_MANY_REQUESTS to a waiting add."""
    go_on, told = threading.Event(), []

    def slow(ledger_id: int) -> DigestType:
        go_on.wait(SECONDS_MAX)
        return OF_8_BYTES

    with digest_types(slow) as (known, _):
        for ledger_id in range(9):
            known.when_known(ledger_id, False, 0, NOBODY, lambda found, status: told.append(status))
        known.close()
        known.when_known(9, False, 0, NOBODY, lambda found, status: told.append(status))
        go_on.set()
    assert told == [Status.READ_ONLY] * 10
