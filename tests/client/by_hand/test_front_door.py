"""``BookKeeper`` hands on what it is asked, and the small parts behind it: options, quarantine, patience, calls and watches."""

from __future__ import annotations

import asyncio
import gc
from types import SimpleNamespace
from weakref import WeakMethod

import pytest

from bookspark import BookKeeper
from bookspark.client import bookkeeper as module
from bookspark.client.client_config import client_config
from bookspark.client.network import quarantine
from bookspark.client.network.patience import Patience
from bookspark.client.network.quarantine import Quarantine
from bookspark.client.reading.any_handle import AnyHandle
from bookspark.client.runtime import calls as calls_module
from bookspark.client.runtime.calls import AwaitableFuture, Calls, done_with
from bookspark.client.runtime.ledger_watches import LedgerWatches
from bookspark.client.writing.ledger_creation import NewLedger
from bookspark.client.writing.ledger_handle import LedgerHandle
from bookspark.client.writing.ledger_handle_adv import LedgerHandleAdv
from bookspark.errors import BookKeeperError, ConfigurationError, MetadataStoreError
from bookspark.metadata.records.versioned import Versioned
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerType, Replication
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from tests.client.by_hand.noted import Noted
from tests.metadata.kit import ledger

WHY = Unknown(UnknownReason.TIMEOUT)


# -- BookKeeper


@pytest.mark.parametrize("custom", [None, {"a": b"b"}])
@pytest.mark.parametrize("kind", [LedgerHandle, LedgerHandleAdv])
def test_a_ledger_is_created_with_each_choice_in_its_place(monkeypatch, kind, custom):
    made = []
    monkeypatch.setattr(module, "create_ledger", lambda *what: made.append(what) or "handle")
    client = BookKeeper("127.0.0.1:1")
    choices = {
        "ensemble_size": 7, "write_quorum": 5, "ack_quorum": 3, "digest_type": "HMAC_SHA256", "password": b"pw",
        "custom_metadata": custom, "ledger_type": "VD_JOURNAL", "replication": "guaranteed",
    }  # fmt: skip
    if "HMAC_SHA256" not in DigestType.__members__:
        choices["digest_type"] = next(iter(DigestType)).value
    own = {} if kind is LedgerHandle else {"ledger_id": 9}
    create = client.create_ledger if kind is LedgerHandle else client.create_ledger_adv
    assert create(**choices, **own) == "handle"
    ((context, new, given),) = made
    assert (context, given) == (client.context, kind)
    assert new == NewLedger(
        ensemble_size=7, write_quorum=5, ack_quorum=3, digest_type=DigestType(choices["digest_type"]), password=b"pw",
        custom_metadata=custom or {}, ledger_type=LedgerType.VD_JOURNAL, replication=Replication.GUARANTEED,
        ledger_id=own.get("ledger_id"),
    )  # fmt: skip


def test_what_is_asked_is_handed_on_as_it_is(monkeypatch):
    calls = []
    noted = Noted(calls)
    client = BookKeeper("127.0.0.1:1")
    monkeypatch.setattr(module, "ledger_opening", noted.opening)
    monkeypatch.setattr(module, "bookie_orders", noted.orders)
    monkeypatch.setattr(module, "bookie_questions", noted.questions)
    store = Noted(
        calls, "store", read_ledger=lambda ledger_id: Versioned(ledger(ledger_id), 3), list_ledgers=lambda: [4]
    )
    context = Noted(calls, "context", store=store, config=client.config)
    client.context, own = context, client.context
    client.open_ledger(5, b"pw", accept_loss_as="me", lost_bookies=("b1",))
    client.open_ledger_no_recovery(5, b"pw", confirmed=4)
    client.open_ledger_no_recovery(5, b"pw")
    client.delete_ledger(5)
    client.switch_read_only("b1", True)
    client.collect_now("b1", 7.0)
    assert client.get_ledger_metadata(5) == ledger(5) and client.list_ledgers() == [4]
    with client as entered:
        assert entered is client
    assert calls == [
        ("opening.open_with_recovery", context, 5, b"pw", "me", ["b1"]),
        ("opening.open_without_recovery", context, 5, b"pw", 4),
        ("opening.open_without_recovery", context, 5, b"pw", None),
        ("store.delete_ledger", 5),
        ("orders.switch_read_only", context, "b1", True),
        ("orders.collect_now", context, "b1", 7.0),
        ("context.close",),
    ]
    own.close()


def test_the_session_has_the_clients_times(monkeypatch):
    made = []
    monkeypatch.setattr(module, "ZooKeeperStore", lambda *what, **named: made.append((what, named)) or "store")
    client = BookKeeper("127.0.0.1:1", metadata_timeout_seconds=3.0, metadata_session_timeout_seconds=5.0)
    assert client._connect() == "store" == client.context._connect()
    assert made == [(("127.0.0.1:1",), {"timeout_seconds": 3.0, "session_timeout_seconds": 5.0})] * 2
    assert (client.zookeeper, client.context.config) == ("127.0.0.1:1", client.config)


# -- options


@pytest.mark.parametrize(
    ("options", "good"),
    [
        ({"bookie_bytes_queued_max": 1000, "frame_bytes": 1000}, True),
        ({"bookie_bytes_queued_max": 999, "frame_bytes": 1000}, False),
        ({"bytes_in_flight_max": 2000, "sync_bytes": 1000}, True),
        ({"bytes_in_flight_max": 2000, "sync_bytes": 1001}, False),
        ({"answer_timeout_seconds": float("nan")}, False),
        ({"placement": 7}, False),
    ],
)
def test_options_that_contradict_each_other_are_refused(options, good):
    if good:
        client_config(**options)
    else:
        with pytest.raises(ConfigurationError):
            client_config(**options)


# -- quarantine and patience


def test_a_bookie_is_in_quarantine_for_its_time_or_until_it_is_back(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(quarantine, "time", SimpleNamespace(monotonic=lambda: now[0]))
    held = Quarantine(10.0)
    assert held.now() == {}
    held.failed("b1", WHY)
    now[0] += 4.0
    held.failed("b2", WHY)
    assert held.now() == {
        "b1": f"in quarantine for 6.0 s more: {WHY}", "b2": f"in quarantine for 10.0 s more: {WHY}",
    }  # fmt: skip
    held.is_back("b2")
    held.is_back("b3")
    assert list(held.now()) == ["b1"]
    now[0] += 6.1
    assert held.now() == {}


@pytest.mark.parametrize(
    ("times", "spent"),
    [
        ((0.0, 0.25, 0.5), 0.5),
        ((0.0, 0.26), 0.0),
        ((0.0, 0.2, 0.4, 2.4), 0.3),
        ((0.0, 0.2, 0.4, 100.0), 0.0),
        ((*(n / 4 for n in range(6)),), 1.0),
    ],
)
def test_patience_is_spent_while_a_bookie_holds_up_and_comes_back_slowly(times, spent):
    patience = Patience(1.0)
    for now in times:
        patience.spend(("b1",), now)
    assert patience._noted["b1"] == (pytest.approx(spent), times[-1])
    assert patience.is_spent("b1") is (spent == 1.0) and not patience.is_spent("b2")


# -- calls


def test_reads_that_are_begun_are_of_the_range_that_was_asked_for():
    begun = []

    class Handle(AnyHandle):
        metadata, last_add_confirmed = ledger(1), 4
        _context = SimpleNamespace(calls=SimpleNamespace(begin=lambda call: begun.append(call())))

        def read(self, first=0, last=None):
            return iter([("read", first, last)])

        def read_unconfirmed(self, first, last):
            return iter([("unconfirmed", first, last)])

    handle = Handle()
    handle.read_async(2, 3)
    handle.read_unconfirmed_async(5, 7)
    assert begun == [[("read", 2, 3)], [("unconfirmed", 5, 7)]] and handle.closed is False
    assert repr(handle) == "<Handle: ledger 1, open, last add confirmed 4>".replace("open", handle.metadata.state.value)


class Posts:
    """Threads of which the test is the one."""

    def __init__(self, count, name):
        self.posted, self.stopped = [], []

    def post(self, call):
        self.posted.append(call)

    def stop(self, seconds):
        self.stopped.append((seconds, calls_of.closed()))


class calls_of:
    """The calls under test, for ``Posts``."""

    closed = staticmethod(lambda: None)


def test_a_call_that_was_begun_is_made_once_unless_it_was_cancelled_or_the_client_closed(monkeypatch):
    monkeypatch.setattr(calls_module, "Threads", Posts)
    calls, ran = Calls(), []
    calls_of.closed = lambda: calls._closed
    futures = [calls.begin(lambda n=n: ran.append(n) or n) for n in range(2)]
    broken = calls.begin(divmod, 1, 0)
    cancelled, late = calls.begin(ran.append, "cancelled"), calls.begin(ran.append, "late")
    assert ran == [] and cancelled.cancel()
    first, second, third, fourth, fifth = calls._threads.posted
    for call in (first, second, third, fourth):
        call()
    assert [future.result(0) for future in futures] == [0, 1] == ran
    assert isinstance(broken.exception(0), ZeroDivisionError)
    calls.close()
    assert calls._threads.stopped == [(0.0, True)], "who posts later is refused, and not kept"
    fifth()
    with pytest.raises(BookKeeperError, match="before this call began"):
        late.result(0)
    with pytest.raises(BookKeeperError, match="no call can be begun any more"):
        calls.begin(ran.append, "too late")
    assert ran == [0, 1] and len(calls._threads.posted) == 5


def test_a_future_that_is_done_is_awaited_at_once_and_another_one_when_it_is(caplog):
    told = []

    async def of_coroutine():
        assert await done_with(7) == 7
        pending = AwaitableFuture()
        asyncio.get_running_loop().call_soon(pending.set_result, 8)
        return await pending

    assert asyncio.run(of_coroutine()) == 8

    def broken(future):
        raise SystemExit("of a callback")

    future = AwaitableFuture()
    future.add_done_callback(broken)
    future.add_done_callback(told.append)
    future.set_result(1)
    assert told == [future] and "a callback of" in caplog.text
    with pytest.raises(SystemExit):
        future.add_done_callback(broken)


# -- watches


class Store:
    """Reads tell the next of ``records``, or raise it; watches are kept for the test to fire."""

    def __init__(self, *records):
        self.records, self.watches, self.order = list(records), [], []

    def watch_ledger(self, ledger_id, changed):
        self.order.append("watch")
        self.watches.append(changed)

    def read_ledger(self, ledger_id):
        self.order.append("read")
        record = self.records.pop(0)
        if isinstance(record, Exception):
            raise record
        return record


class Listener:
    def __init__(self):
        self.seen = []

    def changed(self, found):
        self.seen.append(found)


OPEN, LATER = Versioned(ledger(1), 1), Versioned(ledger(1).in_recovery(), 2)
CLOSED = Versioned(ledger(1).in_recovery().close_at(9, 90), 3)


def test_the_first_listener_sets_the_watch_and_those_of_meanwhile_are_told_the_record():
    store, first, second = Store(LATER), Listener(), Listener()
    watches = LedgerWatches(store)
    watches.listen(1, first.changed)
    watches.listen(1, second.changed)
    watches.listen(1, first.changed)
    assert store.order == ["watch"] and first.seen == second.seen == []
    meanwhile = Store(LATER)
    watches = LedgerWatches(meanwhile)
    watch = meanwhile.watch_ledger
    meanwhile.watch_ledger = lambda *what: (watches.listen(1, second.changed), watch(*what))
    watches.listen(1, first.changed)
    assert second.seen == [LATER] and first.seen == [] and meanwhile.order == ["watch", "read"]


@pytest.mark.parametrize(
    ("records", "told", "order", "listens"),
    [
        ((OPEN, LATER), LATER, ["read", "watch", "read"], True),
        ((CLOSED,), CLOSED, ["read"], False),
        ((OPEN, CLOSED), CLOSED, ["read", "watch", "read"], False),
        ((MetadataStoreError("deaf"),), None, ["read"], False),
        ((OPEN, MetadataStoreError("deaf")), None, ["read", "watch", "read"], False),
    ],
)
def test_a_change_is_told_as_it_is_after_the_next_watch_and_a_close_ends_the_watches(
    records, told, order, listens, caplog
):
    store, listener, gone = Store(*records), Listener(), Listener()
    watches = LedgerWatches(store)

    class Broken(Listener):
        def changed(self, found):
            raise SystemExit("of a listener")

    broken = Broken()
    for each in (gone, broken, listener):
        watches.listen(1, each.changed)
    del gone, each
    gc.collect()
    del store.order[:]
    store.watches[0]()
    assert listener.seen == [told] and store.order == order and (1 in watches._listeners) is listens
    assert caplog.text.count(" failed") == 1 and len(watches._listeners.get(1, ())) == 2 * listens


def test_a_listener_that_went_meanwhile_is_not_told(caplog):
    listener = Listener()
    reference = WeakMethod(listener.changed)
    del listener
    gc.collect()
    LedgerWatches._tell([reference], OPEN)
    assert caplog.text == ""


def test_a_ledger_whose_listeners_are_all_gone_is_not_read_any_more():
    store, listener = Store(), Listener()
    watches = LedgerWatches(store)
    watches.listen(1, listener.changed)
    del listener
    gc.collect()
    store.watches[0]()
    assert store.order == ["watch"] and watches._listeners == {}


@pytest.mark.parametrize("error", [MetadataStoreError("deaf"), KeyboardInterrupt()])
def test_a_watch_that_can_not_be_set_leaves_nobody_who_relies_on_it(error):
    store, first, second = Store(), Listener(), Listener()
    watches = LedgerWatches(store)

    def fails(*what):
        watches.listen(1, second.changed)
        raise error

    store.watch_ledger = fails
    with pytest.raises(type(error)):
        watches.listen(1, first.changed)
    assert second.seen == [None] and watches._listeners == {}
