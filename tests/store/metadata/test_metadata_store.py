"""Behaviour of every metadata store: ZooKeeper with both ledger managers, and the store in memory."""

from __future__ import annotations

import os
import queue
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import msgspec
import pytest

from bookspark.errors import (
    ConfigurationError,
    InvalidArgumentError,
    InvalidCookieError,
    LedgerExistsError,
    MetadataStoreError,
    MetadataVersionError,
    NoSuchLedgerError,
    RecordFullError,
)
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.ledger.accepted_loss import LOSSES_MAX, AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.entry_ranges import NO_RANGES, with_ranges
from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX, Fragment, LedgerMetadata
from bookspark.store.metadata.lost_records import give_up_lost_records, note_lost_records, read_lost_records
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.records.versioned import RecordVersion
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.awaiting import SECONDS_MAX, Changes, await_that
from tests.store.metadata.kit import clients, ledger

BOOKIE = BookieRegistration("bookie-1", "127.0.0.1:3181", incarnation=7, host="here", pid=12)
COOKIE = Cookie("bookie-1", ("/disk-1", "/disk-2"), "instance", "nonce")
AWKWARD_NAMES = ["plain", "with/slash", ".", "..", "…", "100 %", "a%2Fb", "readonly"]


@pytest.fixture(params=["hierarchical", "flat", "memory"])
def stores(request: pytest.FixtureRequest) -> Iterator[Callable[[], MetadataStore]]:
    """Makes clients of the same cluster, each with its own session."""
    in_memory = request.param == "memory"
    with clients("") if in_memory else clients(request.getfixturevalue("chroot"), request.param) as new:
        yield new


@pytest.fixture
def store(stores: Callable[[], MetadataStore]) -> MetadataStore:
    return stores()


@pytest.fixture
def other(store: MetadataStore, stores: Callable[[], MetadataStore]) -> MetadataStore:
    """A second client of the same cluster."""
    return stores()


# -- cluster


def test_all_clients_see_the_same_instance_id(store: MetadataStore, other: MetadataStore) -> None:
    assert store.instance_id == other.instance_id != ""


def test_closed_store_raises_an_error_that_says_so(store: MetadataStore) -> None:
    store.close()
    store.close()
    with pytest.raises(MetadataStoreError, match="closed"):
        store.list_ledgers()


def test_store_is_refused_in_a_forked_child_and_still_works_in_its_parent(store: MetadataStore) -> None:
    store.create_ledger(ledger(1))
    child = os.fork()
    if child == 0:
        try:
            store.read_ledger(1)
        except MetadataStoreError as error:
            refused = "make a new one" in str(error)
            store.close()
            os._exit(0 if refused else 2)
        finally:
            os._exit(3)
    assert os.waitpid(child, 0)[1] == 0
    assert store.list_ledgers() == [1]


# -- ledgers


def test_ledger_ids_start_at_0_and_are_never_given_twice(store: MetadataStore, other: MetadataStore) -> None:
    assert store.last_ledger_id() == -1
    given = [client.new_ledger_id() for _ in range(3) for client in (store, other)]
    assert store.last_ledger_id() == other.last_ledger_id() == given[-1]
    assert given == [0, 1, 2, 3, 4, 5]


def test_highest_ledger_id_includes_given_ids_of_deleted_ledgers(store: MetadataStore, other: MetadataStore) -> None:
    assert store.highest_ledger_id() == -1
    assert [store.new_ledger_id(), store.highest_ledger_id()] == [0, 0]
    for given in (50, 7, LEDGER_ID_MAX):
        store.note_given_id(given)
        store.create_ledger(ledger(given))
        store.delete_ledger(given)
        assert other.highest_ledger_id() == max(given, 50)
        other.note_given_id(3)
        assert store.highest_ledger_id() == max(given, 50)
    assert store.last_ledger_id() == 0 and store.new_ledger_id() == 1


def test_highest_ledger_id_is_right_after_concurrent_given_ids(store: MetadataStore, other: MetadataStore) -> None:
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda given: (store, other)[given % 2].note_given_id(given), range(8)))
    assert store.highest_ledger_id() == other.highest_ledger_id() == 7


def test_skipped_ledger_ids_are_never_given(store: MetadataStore, other: MetadataStore) -> None:
    assert store.new_ledger_id() == 0
    store.skip_ledger_ids(1_234)
    assert other.last_ledger_id() == store.highest_ledger_id() == 1_234
    other.skip_ledger_ids(7)
    assert other.new_ledger_id() == 1_235


def test_lost_records_noted_concurrently_are_merged(store: MetadataStore, other: MetadataStore) -> None:
    with ThreadPoolExecutor(4) as threads:
        noted = [LostRecords(10 * number, 10 * number + 8 + number % 2) for number in range(8)]
        list(threads.map(lambda one: note_lost_records((store, other)[one.first // 10 % 2], one), noted))
    lost = read_lost_records(store)
    assert lost == read_lost_records(other) == tuple(LostRecords(*one) for one in with_ranges(NO_RANGES, noted))
    assert len(lost) == 5
    with pytest.raises(MetadataVersionError):
        give_up_lost_records(store, lost[:3])
    give_up_lost_records(other, lost)
    assert read_lost_records(store) == ()
    give_up_lost_records(other, lost)


def test_ledger_ids_are_unique_over_threads(store: MetadataStore) -> None:
    given: list[int] = []
    threads = [
        threading.Thread(target=lambda: given.extend(store.new_ledger_id() for _ in range(10))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(given) == list(range(40))


def test_created_ledger_reads_the_same_for_every_client(store: MetadataStore, other: MetadataStore) -> None:
    metadata = ledger(5, master_key=b"\0\xff", custom_metadata={"ö": b"\x80"}, ctime_ms=17, c_token=2**62)
    assert store.create_ledger(metadata) == 0
    assert other.read_ledger(5) == (metadata, 0)


def test_a_second_ledger_of_the_same_id_is_refused(store: MetadataStore, other: MetadataStore) -> None:
    store.create_ledger(ledger(5, c_token=1))
    with pytest.raises(LedgerExistsError, match="ledger 5"):
        other.create_ledger(ledger(5, c_token=2))


def test_repeated_create_recognises_its_record_by_its_token(store: MetadataStore) -> None:
    assert store.create_ledger(ledger(5, c_token=1)) == 0
    assert store.create_ledger(ledger(5, c_token=1)) == 0


def test_create_with_token_0_never_recognises_its_record(store: MetadataStore) -> None:
    store.create_ledger(ledger(5))
    with pytest.raises(LedgerExistsError):
        store.create_ledger(ledger(5))


def test_repeated_create_does_not_hide_a_change_by_another_client(store: MetadataStore, other: MetadataStore) -> None:
    metadata = ledger(5, c_token=1)
    store.create_ledger(metadata)
    other.write_ledger(metadata.in_recovery(), 0)
    with pytest.raises(MetadataVersionError):
        store.write_ledger(metadata.close_at(9, 90), store.create_ledger(metadata))


def test_operations_on_a_missing_ledger_raise(store: MetadataStore) -> None:
    for operation in (store.read_ledger, store.delete_ledger, lambda i: store.write_ledger(ledger(i), 0)):
        with pytest.raises(NoSuchLedgerError, match="ledger 5"):
            operation(5)


def test_second_of_two_writes_over_the_same_version_fails(store: MetadataStore, other: MetadataStore) -> None:
    metadata = ledger(5)
    version = store.create_ledger(metadata)
    assert store.write_ledger(metadata.in_recovery(), version) == 1
    with pytest.raises(MetadataVersionError, match=r"ledger 5.*version 0"):
        other.write_ledger(metadata.close_at(3, 30), version)
    assert other.write_ledger(metadata.in_recovery().close_at(3, 30), 1) == 2
    assert store.read_ledger(5) == (metadata.in_recovery().close_at(3, 30), 2)


def test_write_that_depends_on_a_record_fails_once_that_record_has_changed(
    store: MetadataStore, other: MetadataStore
) -> None:
    metadata = ledger(5)
    version, cookie = store.create_ledger(metadata), store.write_cookie(COOKIE, None)
    before = RecordVersion("changes", "cluster", store.write_record("changes", "cluster", b"1", None))
    assert store.write_ledger(metadata.in_recovery(), version, before) == version + 1
    now = before._replace(version=other.write_record("changes", "cluster", b"2", before.version))
    for write in (
        lambda: store.write_ledger(metadata, version + 1, before),
        lambda: store.delete_cookie("bookie-1", cookie, before),
    ):
        with pytest.raises(MetadataVersionError):
            write()
    assert store.read_ledger(5) == (metadata.in_recovery(), version + 1)
    assert store.read_cookie("bookie-1") is not None
    store.delete_cookie("bookie-1", cookie, now)
    assert store.read_cookie("bookie-1") is None


def test_deleted_ledger_is_gone_and_its_id_can_be_used_again(store: MetadataStore, other: MetadataStore) -> None:
    store.create_ledger(ledger(5))
    other.delete_ledger(5)
    with pytest.raises(NoSuchLedgerError):
        store.read_ledger(5)
    assert store.create_ledger(ledger(5)) == 0


def test_list_of_ledgers_is_complete_and_ascending(store: MetadataStore, other: MetadataStore) -> None:
    assert store.list_ledgers() == []
    ids = [0, 1, 9_999, 10_000, 10_001, 99_999_999, 100_000_000, 2**31 - 1, 9_999_999_999]
    for ledger_id in reversed(ids):
        store.create_ledger(ledger(ledger_id))
    store.register_bookie(BOOKIE)
    assert other.list_ledgers() == ids
    for ledger_id in ids[1::2]:
        store.delete_ledger(ledger_id)
    assert other.list_ledgers() == ids[::2]


def test_ledgers_can_be_listed_in_spans_of_ids(store: MetadataStore, other: MetadataStore) -> None:
    assert store.ledger_spans() == [] and list(store.list_ledgers_between(0, 9_999_999_999)) == []
    ids = [0, 1, 9_999, 10_000, 10_001, 99_999_999, 100_000_000, 2**31 - 1, 9_999_999_999]
    for ledger_id in ids:
        store.create_ledger(ledger(ledger_id))
    store.register_bookie(BOOKIE)
    assert other.ledger_spans() == [
        (0, 3), (10_000, 2), (99_990_000, 1), (100_000_000, 1), (2_147_480_000, 1), (9_999_990_000, 1),
    ]  # fmt: skip
    for first, last in ((0, 9_999_999_999), (1, 10_000), (9_999, 9_999), (10_002, 99_999_998), (99_999_999, 10**9)):
        assert list(other.list_ledgers_between(first, last)) == [one for one in ids if first <= one <= last]
    for ledger_id in ids[:3]:
        store.delete_ledger(ledger_id)
    assert other.ledger_spans()[0] == (10_000, 2), "a span without ledgers is none"
    assert next(other.list_ledgers_between(0, 10**9)) == 10_000


@pytest.mark.parametrize("ledger_id", [-1, 10_000_000_000])
def test_ledger_id_out_of_range_is_refused(store: MetadataStore, ledger_id: int) -> None:
    with pytest.raises(ConfigurationError, match=str(ledger_id)):
        store.create_ledger(ledger(ledger_id))


def test_too_large_record_is_refused_and_the_store_still_works(store: MetadataStore) -> None:
    with pytest.raises(ConfigurationError, match="make it smaller"):
        store.write_record("logs", "big", bytes(1_000_001), None)
    assert store.write_record("logs", "fits", bytes(1_000_000), None) == 0


def changed_until_full(store: MetadataStore, record: LedgerMetadata) -> tuple[LedgerMetadata, int, RecordFullError]:
    """The record, its version, and the error of the change for which it had no room."""
    version = 0
    while True:
        changed, first = record, len(record.fragments)
        for count in range(first, first + 10):
            changed = changed.with_ensemble(count, ("b1", f"b{2 + count % 2}", "b4"))
        try:
            version = store.write_ledger(changed, version)
        except RecordFullError as error:
            return record, version, error
        record = changed


def test_new_ledger_keeps_room_for_its_later_changes(store: MetadataStore) -> None:
    """The largest ledger lives through ensemble changes until its record is full, then a recovery with replaced bookies and
    accepted losses, and a repair onto bookies with longer names."""
    with pytest.raises(InvalidArgumentError) as refused:
        store.create_ledger(ledger(5, custom_metadata={"big": bytes(749_694)}))
    assert refused.value.argument == "custom_metadata"
    told = re.search("at most ([0-9,]+) bytes are allowed", str(refused.value))
    assert told is not None
    allowed = int(told[1].replace(",", ""))
    with pytest.raises(InvalidArgumentError):
        store.create_ledger(ledger(5, custom_metadata={"big": bytes(allowed + 10)}))
    record = ledger(5, custom_metadata={"big": bytes(allowed)})
    assert store.create_ledger(record) == 0
    record, version, error = changed_until_full(store, record)
    assert "no room for another fragment" in str(error) and len(record.fragments) > 300
    assert store.read_ledger(5).value == record
    version = store.write_ledger(record.in_recovery(), version)
    losses = tuple(Loss(LossKind.ENTRIES, 2 * i, 2 * i, ("bookie-1", "bookie-2", "bookie-3")) for i in range(1000))
    end = 5000
    target = record.in_recovery()
    for count in range(50):
        target = target.with_ensemble(end - 50 + count, ("b7", f"b{8 + count % 2}", "b1"))
    closed = replace(target.close_at(end, 1 << 40), accepted_loss=AcceptedLoss("operator", 5, losses=losses))
    long_names = tuple(f"bookie-{number}-of-a-cluster-with-long-names.example:3181" for number in range(3))
    many = tuple(Loss(LossKind.ENTRIES, 2 * i, 2 * i, long_names) for i in range(LOSSES_MAX))
    too_many = replace(closed, last_entry_id=2 * LOSSES_MAX, accepted_loss=AcceptedLoss("operator", 5, losses=many))
    with pytest.raises(
        RecordFullError, match=r"no room for 4,000 separate accepted losses.*while more of its bookies are up"
    ):
        store.write_ledger(too_many, version)
    version = store.write_ledger(closed, version)
    repaired = closed
    for fragment in closed.fragments:
        repaired = repaired.re_replicated(
            fragment.first_entry_id, {"b1": "bookie-of-a-cluster-with-long-names.example:3181"}
        )
    store.write_ledger(repaired, version)
    assert store.read_ledger(5).value == repaired


def test_ensemble_without_room_for_its_changes_is_refused(store: MetadataStore) -> None:
    bookies = tuple(f"bookie-{number}" for number in range(2000))
    with pytest.raises(InvalidArgumentError, match="choose a smaller ensemble_size"):
        store.create_ledger(LedgerMetadata(5, 2000, 3, 2, (Fragment(0, bookies),)))


def test_concurrent_creates_and_deletes_lose_no_ledger(store: MetadataStore, other: MetadataStore) -> None:
    """A delete also removes empty parent nodes; a concurrent create below them must not fail."""
    for ledger_id in (1, 2):
        store.create_ledger(ledger(ledger_id))

    def churn(client: MetadataStore, ledger_id: int) -> None:
        for _ in range(30):
            client.delete_ledger(ledger_id)
            client.create_ledger(ledger(ledger_id))

    threads = [threading.Thread(target=churn, args=pair) for pair in ((store, 1), (other, 2))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.list_ledgers() == [1, 2]


@pytest.mark.parametrize("change", ["write", "delete"])
def test_a_ledgers_watcher_is_called_once(store: MetadataStore, other: MetadataStore, change: str) -> None:
    metadata, calls, later = ledger(5), Changes(), Changes()
    store.create_ledger(metadata)
    store.watch_ledger(5, calls)
    assert calls.count == 0
    if change == "write":
        other.write_ledger(metadata.in_recovery(), 0)
        calls.wait()
        store.watch_ledger(5, later)
    other.delete_ledger(5)
    calls.wait()
    if change == "write":
        later.wait()
    assert calls.count == 1


def test_watcher_of_a_missing_ledger_is_called_at_once(store: MetadataStore) -> None:
    calls = Changes()
    store.watch_ledger(5, calls)
    calls.wait()


def test_watcher_can_use_the_store_and_can_fail(store: MetadataStore) -> None:
    metadata, read, calls = ledger(5), [], Changes()
    store.create_ledger(metadata)

    def look() -> None:
        read.append(store.read_ledger(5).version)
        calls()
        raise ValueError("a watcher's own mistake")

    store.watch_ledger(5, look)
    store.watch_ledger(5, calls)
    store.write_ledger(metadata.in_recovery(), 0)
    calls.wait(2)
    assert read == [1]


# -- bookies


def test_registered_bookie_is_listed_until_it_unregisters(store: MetadataStore, other: MetadataStore) -> None:
    assert other.bookies() == {}
    store.register_bookie(BOOKIE)
    assert other.bookies() == {"bookie-1": BOOKIE}
    store.unregister_bookie("bookie-1")
    store.unregister_bookie("bookie-1")
    assert other.bookies() == {}


def test_registration_ends_with_its_session(store: MetadataStore, other: MetadataStore) -> None:
    store.register_bookie(BOOKIE)
    store.close()
    assert other.bookies() == {}


def test_bookie_can_change_to_read_only_and_back(store: MetadataStore, other: MetadataStore) -> None:
    read_only = BookieRegistration("bookie-1", "127.0.0.1:3181", incarnation=7, read_only=True)
    for registration in (BOOKIE, read_only, BOOKIE, BOOKIE):
        store.register_bookie(registration)
        assert other.bookies() == {"bookie-1": registration}


def test_bookie_that_changes_its_mode_is_in_every_listing(store: MetadataStore, other: MetadataStore) -> None:
    read_only = BookieRegistration("bookie-1", "127.0.0.1:3181", incarnation=7, read_only=True)
    store.register_bookie(BOOKIE)
    done = threading.Event()

    def change() -> None:
        for turn in range(30):
            store.register_bookie((read_only, BOOKIE)[turn % 2])
        done.set()

    thread = threading.Thread(target=change)
    thread.start()
    while not done.is_set():
        assert set(other.bookies()) == {"bookie-1"}
    thread.join()
    assert other.bookies() == {"bookie-1": BOOKIE}


def test_registration_left_by_another_session_is_replaced(store: MetadataStore, other: MetadataStore) -> None:
    again = BookieRegistration("bookie-1", "127.0.0.1:4000", incarnation=8)
    store.register_bookie(BOOKIE)
    other.register_bookie(again)
    assert other.bookies() == {"bookie-1": again}
    store.unregister_bookie("bookie-1")
    assert other.bookies() == {"bookie-1": again}, "it was not the old session's any more"
    store.close()
    assert other.bookies() == {"bookie-1": again}


@pytest.mark.parametrize(
    "recorded",
    [replace(COOKIE, nonce="other"), replace(COOKIE, directories=("/disk-3",)), None],
    ids=["nonce", "directories", "none"],
)
def test_bookie_registers_only_with_its_recorded_cookie(
    store: MetadataStore, other: MetadataStore, recorded: Cookie | None
) -> None:
    """A host that stood still during its start took the place of the one that had become the bookie meanwhile."""
    if recorded is not None:
        store.write_cookie(recorded, None)
    other.register_bookie(BOOKIE)
    with pytest.raises(InvalidCookieError, match="bookspark cookie"):
        store.register_bookie(msgspec.structs.replace(BOOKIE, incarnation=8), COOKIE)
    assert other.bookies() == {"bookie-1": BOOKIE}


def test_registered_bookie_learns_that_another_host_became_it(store: MetadataStore, other: MetadataStore) -> None:
    replaced: queue.SimpleQueue[InvalidCookieError] = queue.SimpleQueue()
    store.write_cookie(COOKIE, None)
    store.register_bookie(BOOKIE, COOKIE, replaced.put)
    other.write_cookie(COOKIE, 0)
    other.write_cookie(replace(COOKIE, nonce="other"), 1)
    error = str(replaced.get(timeout=SECONDS_MAX))
    assert "have become bookie-1 since" in error and "`bookspark cookie fix`" in error
    successor = msgspec.structs.replace(BOOKIE, incarnation=8)
    other.register_bookie(successor, replace(COOKIE, nonce="other"), replaced.put)
    store.unregister_bookie("bookie-1")
    assert other.bookies() == {"bookie-1": successor}
    other.delete_cookie("bookie-1", 2)
    assert "`bookspark cookie delete`" in str(replaced.get(timeout=SECONDS_MAX))
    assert replaced.empty()


def test_bookie_restarted_on_its_host_replaces_its_earlier_registration(
    store: MetadataStore, other: MetadataStore
) -> None:
    """Also if BookKeeper's tools, which know no nonce, wrote the cookie."""
    again = msgspec.structs.replace(BOOKIE, incarnation=8)
    store.write_cookie(replace(COOKIE, nonce=""), None)
    store.register_bookie(BOOKIE, COOKIE)
    other.register_bookie(again, COOKIE)
    assert store.bookies() == {"bookie-1": again}


def test_watchers_of_bookies_are_called_for_every_change(store: MetadataStore, other: MetadataStore) -> None:
    calls = Changes()
    store.watch_bookies(calls)
    for read_only in (False, True, False):
        registration = BookieRegistration("bookie-1", "a:1", 1, read_only=read_only)
        other.register_bookie(registration)
        calls.await_that(lambda: store.bookies().get("bookie-1") == registration)  # noqa: B023
    moved = BookieRegistration("bookie-1", "a:2", 2)
    other.register_bookie(moved)
    calls.await_that(lambda: store.bookies().get("bookie-1") == moved)
    other.close()
    calls.await_that(lambda: store.bookies() == {})


@pytest.mark.parametrize("bookie_id", ["", "readonly", "a/b", "..", "ä"])
def test_bookie_id_that_is_no_valid_node_name_is_refused(store: MetadataStore, bookie_id: str) -> None:
    with pytest.raises(ConfigurationError, match="bookie id"):
        store.register_bookie(BookieRegistration(bookie_id, "a:1", 1))
    with pytest.raises(ConfigurationError, match="bookie id"):
        store.read_cookie(bookie_id)


# -- cookies


def test_cookie_is_created_changed_and_deleted_by_compare_and_set(store: MetadataStore, other: MetadataStore) -> None:
    assert store.read_cookie("bookie-1") is None
    assert store.write_cookie(COOKIE, None) == 0
    with pytest.raises(MetadataVersionError, match="bookie-1 is there already"):
        other.write_cookie(COOKIE, None)
    assert other.read_cookie("bookie-1") == (COOKIE, 0)
    moved = Cookie("bookie-1", ("/disk-3",), "instance", "nonce")
    assert other.write_cookie(moved, 0) == 1
    with pytest.raises(MetadataVersionError):
        store.write_cookie(COOKIE, 0)
    assert store.list_cookies() == ["bookie-1"]
    with pytest.raises(MetadataVersionError):
        store.delete_cookie("bookie-1", 0)
    store.delete_cookie("bookie-1", 1)
    assert store.list_cookies() == []
    with pytest.raises(InvalidCookieError, match="bookie-1 has no cookie"):
        store.delete_cookie("bookie-1", 1)
    with pytest.raises(MetadataVersionError):
        store.write_cookie(COOKIE, 1)


# -- records


def test_many_records_are_read_in_the_given_order_with_none_for_missing_records(store: MetadataStore) -> None:
    # More records than a single request reads.
    names = [f"orders@{number}" for number in range(1100)]
    for name in (names[3], *names[::50]):
        store.write_record("logs", name, name.encode(), None)
    store.write_record("logs", names[3], b"newer", 0)
    found = list(store.read_records("logs", iter(names[::-1])))
    assert found == [store.read_record("logs", name) for name in names[::-1]]
    newer = found[-4]
    assert newer is not None and newer[:2] == (b"newer", 1) and found[-2] is None
    assert list(store.read_records("logs", [])) == []


@pytest.mark.parametrize("name", AWKWARD_NAMES)
def test_a_record_of_any_name_is_changed_by_compare_and_set(store: MetadataStore, name: str) -> None:
    assert store.list_records("logs") == []
    assert store.read_record("logs", name) is None
    assert store.write_record("logs", name, b"1", None) == 0
    with pytest.raises(MetadataVersionError, match="is there already"):
        store.write_record("logs", name, b"2", None)
    assert store.write_record("logs", name, b"2", 0) == 1
    with pytest.raises(MetadataVersionError, match="version 0"):
        store.write_record("logs", name, b"3", 0)
    found = store.read_record("logs", name)
    assert found is not None and found[:2] == (b"2", 1)
    assert store.list_records("logs") == [name]
    assert store.list_records("services") == []
    with pytest.raises(MetadataVersionError):
        store.delete_record("logs", name, 0)
    store.delete_record("logs", name, 1)
    store.delete_record("logs", name, 1)
    assert store.list_records("logs") == []
    with pytest.raises(MetadataVersionError):
        store.write_record("logs", name, b"3", 1)


def test_compare_and_set_fails_on_a_record_deleted_and_created_again(
    store: MetadataStore, other: MetadataStore
) -> None:
    """Versions started again with a new record: a client that paused over the deletion overwrote or deleted the new record."""
    store.write_record("logs", "orders", b"old", None)
    found = store.read_record("logs", "orders")
    (together,) = store.read_records("logs", ["orders"])
    assert found is not None and together == found
    other.delete_record("logs", "orders")
    assert other.write_record("logs", "orders", b"new", None) != found.version
    for late in (
        lambda: store.write_record("logs", "orders", b"late", found.version),
        lambda: store.delete_record("logs", "orders", found.version),
    ):
        with pytest.raises(MetadataVersionError):
            late()
    kept = other.read_record("logs", "orders")
    assert kept is not None and kept.value == b"new"
    # Its creator, and a client that has read it since, can change it.
    assert store.write_record("logs", "orders", b"newer", kept.version) == kept.version + 1
    other.delete_record("logs", "orders", kept.version + 1)
    made = store.write_record("logs", "orders", b"third", None)
    assert other.write_record("logs", "orders", b"third again", made) == made + 1
    assert made not in (found.version, kept.version)


def test_a_record_shows_when_it_was_changed_by_the_stores_clock(store: MetadataStore, other: MetadataStore) -> None:
    store.write_record("logs", "orders", b"1", None)
    store.write_record("logs", "later", b"1", None)
    first, later = store.read_records("logs", ["orders", "later"])
    assert first is not None and later is not None and first.changed_ms <= later.changed_ms
    await_that(lambda: time.time_ns() // 1_000_000 > later.changed_ms + 5)
    other.write_record("logs", "orders", b"2", 0)
    changed = store.read_record("logs", "orders")
    assert changed is not None and changed.changed_ms > later.changed_ms
    assert abs(changed.changed_ms - time.time_ns() // 1_000_000) < 60_000


def test_records_with_awkward_names_coexist(store: MetadataStore, other: MetadataStore) -> None:
    for name in AWKWARD_NAMES:
        store.write_record("logs", name, name.encode(), None)
    assert other.list_records("logs") == sorted(AWKWARD_NAMES)
    store.delete_record("logs", "plain")
    assert "plain" not in other.list_records("logs")


def test_record_without_a_name_or_with_an_invalid_kind_is_refused(store: MetadataStore) -> None:
    with pytest.raises(ConfigurationError, match="name that is not empty"):
        store.write_record("logs", "", b"", None)
    with pytest.raises(ConfigurationError, match="record kind"):
        store.list_records("a/b")


def test_watcher_of_a_record_sees_its_creation_change_and_deletion(store: MetadataStore, other: MetadataStore) -> None:
    def made() -> None:
        other.write_record("logs", "a", b"1", None)

    def changed() -> None:
        other.write_record("logs", "a", b"2", 0)

    def deleted() -> None:
        other.delete_record("logs", "a")

    for change in (made, changed, deleted):
        calls = Changes()
        store.watch_record("logs", "a", calls)
        assert calls.count == 0
        change()
        calls.wait()
        assert calls.count == 1


def test_ended_watch_of_a_record_calls_nobody_and_leaves_other_watches(
    store: MetadataStore, other: MetadataStore
) -> None:
    ended, left = Changes(), Changes()
    for name in ("a", "b"):
        end = store.watch_record("logs", name, ended)
        store.watch_record("logs", name, left)
        end()
        end()
        other.write_record("logs", name, b"1", None)
        left.wait(1 if name == "a" else 2)
    store.watch_record("logs", "a", ended)()
    assert ended.count == 0 and left.count == 2


def test_watches_that_were_ended_leave_at_most_one_watch_in_the_store(store: MetadataStore) -> None:
    """A process kept a watch for each reader that it had made and closed."""
    for _ in range(20):
        store.watch_record("logs", "a", lambda: None)()
    if isinstance(store, MemoryStore):
        assert not store._world.watches
    else:
        assert isinstance(store, ZooKeeperStore)
        (watches,) = store.client._data_watchers.values()
        (watchers,) = watches
        assert not watchers._all


def test_watch_ended_after_the_close_of_its_store_raises_nothing(store: MetadataStore) -> None:
    end = store.watch_record("logs", "a", lambda: None)
    store.close()
    end()
