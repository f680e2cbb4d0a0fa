"""Requests that wait for a ledger's metadata: peers take turns, and what waits counts as memory of the peer that asked."""

from __future__ import annotations

import threading
import weakref
from functools import partial
from queue import SimpleQueue
from types import SimpleNamespace

import pytest

from bookspark.protocol.bookie.key_meeting import KEYS_UNDECIDED
from bookspark.protocol.ledger.responses import UNAUTHORIZED, Positive
from bookspark.store.bookie.ledgers import metadata_looks
from bookspark.store.bookie.ledgers.metadata_looks import MetadataLooks, Question
from bookspark.store.wire.header import Kind, Status
from tests.awaiting import SECONDS_MAX
from tests.store.bookie.kit import OTHER_KEY, Client, add_frame, config, serving


class Peer:
    def __init__(self, origin):
        self.origin, self.bytes = origin, 0

    def waits(self, more):
        self.bytes += more


class Loop:
    """Looks whose loop is the test. Each look waits for ``go_on``."""

    def __init__(self):
        self.looks, self._calls = MetadataLooks(), SimpleQueue()
        self.looked, self.answered, self.go_on = [], [], threading.Semaphore(0)
        self.looks.start(self._calls.put)

    def ask(self, peer, about, answer=UNAUTHORIZED):
        def look():
            assert self.go_on.acquire(timeout=SECONDS_MAX)
            self.looked.append(about)
            return answer

        def done(status):
            self.answered.append((peer, about, status))

        self.looks.asker = peer
        self.looks.ask(Question(about, look, KEYS_UNDECIDED), lambda: done("goes on"), done, 1000)

    def run_until(self, done):
        while not done():
            self._calls.get(timeout=SECONDS_MAX)()


@pytest.fixture
def loop():
    others = threading.enumerate()
    made = Loop()
    yield made
    made.looks.close()
    made.go_on.release(1000)
    # Else they rest in the next test.
    for thread in threading.enumerate():
        if thread not in others and thread.name.startswith("bookie metadata"):
            thread.join(SECONDS_MAX)


def test_peer_with_many_questions_delays_others_by_the_looks_under_way(loop):
    """At once a stranger's 900 questions stood before an owner's: its add ended in a time-out, at each bookie."""
    stranger, beside_him, owner = Peer("10.0.0.9"), Peer("10.0.0.9"), Peer("10.0.0.1")
    for number in range(900):
        loop.ask(stranger, number)
    loop.ask(owner, "the owner's", Positive())
    loop.ask(beside_him, "of his address", Positive())
    loop.go_on.release(12)
    loop.run_until(lambda: len(loop.answered) >= 12)
    assert {"the owner's", "of his address"} <= set(loop.looked)
    assert (owner, "the owner's", "goes on") in loop.answered
    assert stranger.bytes > 850 * 1000 and owner.bytes == beside_him.bytes == 0


def test_question_that_another_peer_asked_before_waits_in_nobodys_turn_but_its_own(loop):
    stranger, owner = Peer("10.0.0.9"), Peer("10.0.0.1")
    for number in range(100):
        loop.ask(stranger, number)
    loop.ask(stranger, "the same", Positive())
    loop.ask(owner, "the same", Positive())
    loop.go_on.release(6)
    loop.run_until(lambda: len(loop.answered) >= 7)
    assert loop.looked.count("the same") == 1
    assert {peer for peer, about, _ in loop.answered if about == "the same"} == {stranger, owner}


def test_thread_rests_after_a_look_that_granted_nothing_and_only_then(loop, monkeypatch):
    """A stranger's looks are few; an owner's cost no rest."""
    rests, rested = SimpleQueue(), threading.Semaphore(0)

    def rest(seconds):
        rests.put(seconds)
        assert rested.acquire(timeout=SECONDS_MAX)

    monkeypatch.setattr(metadata_looks, "time", SimpleNamespace(sleep=rest))
    loop.go_on.release(100)
    for number in range(20):
        loop.ask(Peer("10.0.0.1"), f"owner's {number}", Positive())
    loop.run_until(lambda: len(loop.answered) == 20)
    assert rests.empty()
    for number in range(20):
        loop.ask(Peer("10.0.0.9"), number)
    loop.run_until(lambda: len(loop.answered) == 24)
    assert [rests.get(timeout=SECONDS_MAX) for _ in range(4)] == [0.008] * 4
    assert len(loop.looked) == 24, "each thread rests"
    rested.release(100)
    loop.run_until(lambda: len(loop.answered) == 40)


def test_request_that_waits_again_waits_for_the_peer_that_asked(loop):
    """Else the end of another connection dropped it, and its peer got no answer."""
    owner, other = Peer("10.0.0.1"), Peer("10.0.0.2")
    loop.looks.asker, begun = owner, []

    def look():
        assert loop.go_on.acquire(timeout=SECONDS_MAX)
        return Positive()

    def again():
        begun.append("second")
        loop.ask(loop.looks.asker, "second", Positive())

    loop.looks.ask(Question("first", look, KEYS_UNDECIDED), again, lambda status: None)
    for number in range(5):
        loop.ask(other, number)
    loop.go_on.release(4)
    loop.run_until(lambda: begun)
    loop.looks.forget(other)
    loop.go_on.release(100)
    loop.run_until(lambda: (owner, "second", "goes on") in loop.answered)


def test_questions_go_with_the_connection_of_their_only_asker(loop):
    stranger, owner = Peer("10.0.0.9"), Peer("10.0.0.1")
    for number in range(20):
        loop.ask(stranger, number)
    loop.ask(owner, 19)
    loop.looks.forget(stranger)
    loop.go_on.release(100)
    loop.run_until(lambda: any(peer is owner for peer, _, _ in loop.answered))
    assert set(loop.looked) <= {0, 1, 2, 3, 19}, "those under way, and the owner's"
    assert (owner, 19, Status.UNAUTHORIZED) in loop.answered and (stranger, 19) not in {
        one[:2] for one in loop.answered
    }
    assert loop.looks.asker is not stranger


def test_requests_that_joined_a_look_under_way_go_with_their_connection(loop):
    """A peer that came again and again made the bookie hold any number of frames for one slow look."""
    stranger, owner = Peer("10.0.0.9"), Peer("10.0.0.1")
    loop.ask(owner, "the same")
    for _ in range(5):
        held = partial(print, bytearray(1000))
        loop.looks.asker = stranger
        loop.looks.ask(Question("the same", print, KEYS_UNDECIDED), held, print, 1000)
        freed, held = weakref.ref(held), None
        loop.looks.forget(stranger)
        assert freed() is None
    loop.go_on.release(100)
    loop.run_until(lambda: loop.answered)
    assert loop.answered == [(owner, "the same", Status.UNAUTHORIZED)]


def test_answered_requests_are_kept_by_no_turn_of_another_asker(loop):
    first, second = Peer("10.0.0.1"), Peer("10.0.0.9")
    for number in range(4):
        loop.ask(first, number)
    held = partial(print, bytearray(1000))
    loop.looks.asker = first
    loop.looks.ask(Question("the same", Positive, KEYS_UNDECIDED), held, print, 1000)
    for number in range(10, 30):
        loop.ask(second, number)
    loop.ask(second, "the same")
    freed, held = weakref.ref(held), None
    loop.go_on.release(6)
    loop.run_until(lambda: first.bytes == 0)
    assert freed() is None and "the same" not in loop.looked


def test_connection_may_end_after_the_bookies_looks(loop):
    """The end of the bookie raised KeyError for each connection that waited."""
    peer = Peer("10.0.0.1")
    for number in range(9):
        loop.ask(peer, number)
    loop.looks.close()
    assert [status for _, _, status in loop.answered] == [Status.LIMBO] * 9
    loop.looks.forget(peer)


def test_adds_that_wait_for_metadata_are_in_the_budget_and_end_their_connections(tmp_path):
    """Adds with another key, while ZooKeeper does not answer. Once 16 MiB of them refused all others': one
    such add was enough."""
    answers = threading.Event()

    def check(ledger_id, key):
        assert answers.wait(SECONDS_MAX)
        return UNAUTHORIZED

    settings = config(tmp_path, unfinished_bytes_max=64 << 20)
    with serving(settings, checks={"check_key": check}) as (_, address):
        owner = Client(address)
        assert owner.add(7, 0).status == Status.OK
        strangers = [Client(address) for _ in range(5)]
        for number, stranger in enumerate(strangers):
            stranger.send(add_frame(7, 1, payload=bytes(15 << 20), master_key=bytes([number]) * 16))
        refusal = strangers[0].receive()
        assert refusal.header.kind == Kind.REFUSAL and b"held 67108864 bytes" in bytes(refusal.body)
        assert owner.add(7, 1).status == Status.OK, "equal keys wait for nothing"
        late = Client(address)
        late.send(add_frame(7, 2, payload=bytes(1 << 20), master_key=OTHER_KEY))
        answers.set()
        assert [one.receive().header.status for one in (strangers[-1], late)] == [Status.UNAUTHORIZED] * 2
        for client in (owner, late, *strangers):
            client.close()
