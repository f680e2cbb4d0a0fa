"""The view of a cluster's bookies: registered, known by cookie, and answering."""

from __future__ import annotations

from types import SimpleNamespace

from bookspark.errors import ReadError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.store.cluster_view import answering_bookies, known_bookies, learn_time, with_homes
from bookspark.store.metadata.bookie_homes import BookieHome, note_home
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.wire.messages import BookieStatus

YEAR_2000_MS = 946_684_800_000


def cluster() -> SimpleNamespace:
    """``a`` answers, ``b`` is silent, ``c`` is registered without a cookie and answers, ``d`` is down."""
    store = MemoryStore()
    for name in "dba":
        store.write_cookie(Cookie(name, ("/d",), store.instance_id, "nonce"), None)
    for name in "cab":
        store.register_bookie(BookieRegistration(name, f"{name}:1", 1, host=f"host-{name}"))
    for name in "bd":
        note_home(store, name, BookieHome(f"home-{name}"))

    def bookie_status(name: str) -> BookieStatus:
        if name == "b":
            raise ReadError("no answer in time")
        return BookieStatus(name, 1, 1, ["/d"], 0, 0, 0, store_ms=YEAR_2000_MS if name == "c" else 0)

    return SimpleNamespace(metadata=store, bookie_status=bookie_status)


def test_bookies_are_known_by_registration_or_cookie() -> None:
    view = known_bookies(cluster().metadata)
    assert list(view.bookies) == ["a", "b", "c", "d"]
    assert list(view.registered()) == ["a", "b", "c"] and view.down() == ["d"]
    assert [name for name, one in view.bookies.items() if not one.has_cookie] == ["c"]
    assert not view.statuses and not view.problems


def test_silent_bookie_keeps_the_reason_and_has_no_status() -> None:
    view = answering_bookies(cluster())
    assert list(view.bookies) == ["a", "b", "c", "d"] and list(view.statuses) == ["a", "c"]
    assert view.problems == {"b": "does not answer (no answer in time)"}


def test_who_only_looks_learns_the_stores_time_from_a_bookie_that_knows_it() -> None:
    """The host's own clock is 25 years ahead then."""
    for look in (answering_bookies, learn_time):
        bookkeeper = cluster()
        clock = bookkeeper.metadata.clock
        assert clock.store_ms() == 0
        look(bookkeeper)
        assert 0 <= clock.known_ms() - YEAR_2000_MS < 3_600_000
        assert clock.host_ahead_ms() > 20 * 365 * 86_400_000


def test_bookies_without_an_answer_have_their_last_known_host() -> None:
    bookkeeper = cluster()
    view = with_homes(answering_bookies(bookkeeper), bookkeeper.metadata)
    assert {name: one.host for name, one in view.bookies.items()} == {
        "a": "host-a",
        "b": "host-b",
        "c": "host-c",
        "d": "home-d",
    }
    assert view.home("d") == BookieHome("home-d") and view.home("a") is None and view.home("x") is None
