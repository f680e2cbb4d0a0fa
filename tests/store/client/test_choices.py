"""Choice of replacement bookies: many choices share a listing, which is renewed before it is too old."""

from __future__ import annotations

import queue

import pytest

from bookspark.protocol.ledger.actions import BookiesChosen, ChooseBookies, NoBookies
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.store.client.client_config import client_config
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from tests.store.client.test_runtime import SECONDS, Idle

ENSEMBLE = ("b1", "b2", "b3")
CHOICE = ChooseBookies(ENSEMBLE, ("b1",))


class Store(MemoryStore):
    """A store that counts the listings of its bookies."""

    def __init__(self):
        super().__init__()
        self.listed = 0

    def bookies(self):
        self.listed += 1
        return super().bookies()

    def add(self, bookie_id):
        self.register_bookie(BookieRegistration(bookie_id, "127.0.0.1:3181", incarnation=7))


class Deaf(Store):
    """A store that never notifies of changed bookies."""

    def watch_bookies(self, changed):
        pass


class Choices:
    """Choices of a client, for ledgers on b1, b2 and b3."""

    def __init__(self, store, bookies):
        self.store = store
        for bookie_id in bookies:
            store.add(bookie_id)
        self.context = ClientContext(lambda: store, client_config(quarantine_seconds=SECONDS))

    def choose(self):
        return self.context.answer_from_store(LedgerMetadata(1, 3, 3, 2, (Fragment(0, ENSEMBLE),)), CHOICE)

    def failed(self, bookie_id):
        self.context.runtime.connections.quarantine(bookie_id, Unknown(UnknownReason.TIMEOUT, "it is gone"))


class Clock:
    """Clock of the listings."""

    now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr("bookspark.store.client.runtime.runtime.time", made)
    return made


@pytest.fixture
def choices(clock):
    made = []

    def make(store, *bookies):
        made.append(Choices(store, bookies))
        return made[-1]

    yield make
    for each in made:
        each.context.close()


def test_many_choices_share_the_same_listing(choices):
    """After a bookie died, each of thousands of ledgers listed the bookies in ZooKeeper."""
    chosen = choices(Store(), *ENSEMBLE, "b4", "b5")
    assert {chosen.choose() for _ in range(100)} == {BookiesChosen(("b4",)), BookiesChosen(("b5",))}
    assert chosen.store.listed == 1


def test_writer_notified_of_changed_bookies_chooses_from_the_new_list(choices):
    """A choice without candidates is repeated when a bookie registers; it must see the new bookie."""
    chosen = choices(Store(), *ENSEMBLE, "b4")
    assert chosen.choose() == BookiesChosen(("b4",))
    told = queue.SimpleQueue()
    writer = Idle(told)
    writer.owes_lac = False
    chosen.context.runtime.add_writer(writer)
    chosen.store.add("b5")
    while told.get(timeout=SECONDS) != "bookies changed":
        pass
    assert {chosen.choose() for _ in range(100)} == {BookiesChosen(("b4",)), BookiesChosen(("b5",))}
    chosen.context.runtime.remove_writer(writer)


def test_bookies_are_listed_again_before_a_failed_bookie_is_chosen(choices):
    """A healthy bookie may have registered since. Without it the failed bookie is chosen."""
    chosen = choices(Deaf(), *ENSEMBLE, "b4")
    assert chosen.choose() == BookiesChosen(("b4",))
    chosen.failed("b4")
    assert chosen.choose() == BookiesChosen(("b4",))
    chosen.store.add("b5")
    assert {chosen.choose() for _ in range(20)} == {BookiesChosen(("b5",))}


def test_bookies_are_listed_again_before_no_bookie_is_chosen(choices):
    chosen = choices(Deaf(), *ENSEMBLE)
    assert isinstance(chosen.choose(), NoBookies)
    chosen.store.add("b4")
    assert chosen.choose() == BookiesChosen(("b4",))


def test_listing_of_bookies_expires(choices, clock):
    """A client may miss a change while it has no connection to ZooKeeper."""
    chosen = choices(Deaf(), *ENSEMBLE, "b4")
    assert chosen.choose() == BookiesChosen(("b4",))
    chosen.store.unregister_bookie("b4")
    chosen.store.add("b5")
    assert chosen.choose() == BookiesChosen(("b4",))
    clock.now += 1.0
    assert chosen.choose() == BookiesChosen(("b5",))
