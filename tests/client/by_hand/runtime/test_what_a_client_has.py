"""A client's context and runtime over stand-ins: what each process has, what is closed, and how writers are looked after."""

from __future__ import annotations

import os
import sys
import warnings
from itertools import product
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.placement.placement import Topology
from bookspark.client.runtime import client_context
from bookspark.client.runtime.client_context import ClientContext
from bookspark.client.runtime.machine_driver import MachineDriver
from bookspark.client.runtime.store_actions import answer_from_store
from bookspark.errors import (
    BookKeeperError,
    MetadataStoreError,
    MetadataVersionError,
    NotEnoughBookiesError,
    ReadError,
)
from bookspark.metadata.records.bookie_registration import BookieRegistration
from bookspark.metadata.records.versioned import Versioned
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import DigestType, Fragment
from bookspark.threads import mark_own_thread
from bookspark.wire.digests import digester, digester_without_password
from tests.client.by_hand.noted import Noted
from tests.metadata.kit import ledger

WHOSE = ("none", "mine", "a parent's")


def pid_of(whose):
    return {"none": None, "mine": os.getpid(), "a parent's": -1}[whose]


def bookies(*names, **fields):
    return {name: BookieRegistration(name, "here:1", 1, **fields) for name in names}


@pytest.fixture
def parents(monkeypatch):
    kept = []
    monkeypatch.setattr(client_context, "_of_parents", kept)
    return kept


_made = []


def context_of(**options):
    _made.append(ClientContext(None, ClientConfig(**options)))
    return _made[-1]


@pytest.fixture(autouse=True)
def _no_client_is_closed_by_its_finalizer():
    yield
    while _made:
        context = _made.pop()
        context._runtime = context._calls = None


# -- a process's runtime


@pytest.mark.parametrize("had", WHOSE)
@pytest.mark.parametrize("meanwhile", ["nothing", "made", "closed"])
def test_a_runtime_is_made_once_in_each_process_whatever_a_signal_handler_does_meanwhile(
    monkeypatch, parents, had, meanwhile
):
    closed, context = [], context_of()
    other = SimpleNamespace(pid=os.getpid())
    before = None if pid_of(had) is None else SimpleNamespace(pid=pid_of(had))
    context._runtime = before

    def make(connect, config):
        assert config is context.config
        if meanwhile == "made":
            context._runtime = other
        context._closed = meanwhile == "closed"
        return SimpleNamespace(pid=os.getpid(), close=lambda: closed.append(1))

    monkeypatch.setattr(client_context, "Runtime", make)
    if had == "mine":
        assert context.runtime is before and context.running is before
    elif meanwhile == "closed":
        with pytest.raises(BookKeeperError, match="was closed"):
            context.runtime  # noqa: B018
        assert closed == [1]
    else:
        assert context.running is None
        runtime = context.runtime
        assert (runtime is other) is (meanwhile == "made") and closed == [1] * (meanwhile == "made")
        assert context.runtime is runtime and context.running is runtime
        assert parents == ([before] if before and meanwhile == "nothing" else [])


def test_a_closed_client_says_so_whatever_thread_asks():
    context = context_of()
    context._closed = True
    mark_own_thread("of the test")
    try:
        with pytest.raises(BookKeeperError, match="was closed"):
            context.runtime  # noqa: B018
        with pytest.raises(BookKeeperError, match="was closed"):
            context.calls  # noqa: B018
        with pytest.raises(BookKeeperError, match="of the test"):
            context.close()
    finally:
        mark_own_thread("")
    assert context.closed


@pytest.mark.parametrize("had", WHOSE)
def test_a_process_has_calls_of_its_own(monkeypatch, had):
    context, made = context_of(), SimpleNamespace(pid=os.getpid())
    monkeypatch.setattr(client_context, "Calls", lambda: made)
    before = context._calls = None if pid_of(had) is None else SimpleNamespace(pid=pid_of(had))
    assert context.calls is (before if had == "mine" else made)
    assert context.calls is context._calls


@pytest.mark.parametrize("runtime", WHOSE)
@pytest.mark.parametrize("calls", WHOSE)
def test_a_close_ends_what_is_this_processs_and_keeps_what_is_a_parents(parents, runtime, calls):
    context, noted = context_of(), []
    mine = None if pid_of(runtime) is None else Noted(noted, "runtime", pid=pid_of(runtime))
    context._runtime = mine
    context._calls = None if pid_of(calls) is None else Noted(noted, "calls", pid=pid_of(calls))
    context.close()
    assert noted == [("calls.close",)] * (calls == "mine") + [("runtime.close",)] * (runtime == "mine")
    assert parents == [mine] * (runtime == "a parent's")
    assert context._runtime is None and context._calls is None and context.closed
    context.close()


@pytest.mark.parametrize("runtime", WHOSE)
@pytest.mark.parametrize("calls", WHOSE)
@pytest.mark.parametrize("finalizing", [True, False])
def test_a_client_that_is_dropped_is_closed_without_waiting_and_its_user_warned(
    monkeypatch, parents, runtime, calls, finalizing
):
    context, noted = context_of(), []
    mine = None if pid_of(runtime) is None else Noted(noted, "runtime", pid=pid_of(runtime))
    context._runtime = mine
    context._calls = None if pid_of(calls) is None else Noted(noted, "calls", pid=pid_of(calls))
    with monkeypatch.context() as patch, warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        patch.setattr(sys, "is_finalizing", lambda: finalizing)
        context.__del__()
    here = not finalizing
    assert [call[0] for call in noted] == ["calls.close"] * (here and calls == "mine") + ["runtime.callbacks.post"] * (
        here and runtime == "mine"
    )
    if here and runtime == "mine":
        noted[-1][1]()
        assert noted[-1] == ("runtime.close",)
    assert parents == [mine] * (here and runtime == "a parent's")
    assert [str(one.message)[:36] for one in told if one.category is ResourceWarning] == [
        "a BookKeeper client was not closed; "
    ] * (here and runtime == "mine")


def test_each_process_has_a_lock_of_its_own(monkeypatch):
    context = context_of()
    lock = context._lock
    assert context._lock is lock
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert context._lock is not lock
    monkeypatch.undo()


# -- what handles ask of it


class Running:
    """A runtime of this process, with bookies."""

    def __init__(self, found, quarantined=()):
        self.pid, self.asked, self.found = os.getpid(), [], found
        self.connections = SimpleNamespace(quarantined=lambda: dict.fromkeys(quarantined, "why"))
        self.free_space = SimpleNamespace(of=lambda ids: dict.fromkeys(ids, 7))
        self.io, self.store = "io", "store"

    def bookies(self, seconds):
        self.asked.append(seconds)
        return self.found

    def bookies_on_this_host(self):
        return frozenset(("b3",))


@pytest.mark.parametrize("kind", [DigestType.CRC32C, DigestType.HMAC])
@pytest.mark.parametrize("password", [None, b"pw"])
def test_requests_have_the_ledgers_key_the_digests_that_can_be_checked_and_a_deadline(password, kind):
    context = context_of(answer_timeout_seconds=7.0)
    context._runtime = Running({})
    requests = context.requests(ledger(1, master_key=b"k" * 16, digest_type=kind), password)
    assert (requests._master_key, requests._timeout_seconds, requests._ledger_id) == (b"k" * 16, 7.0, 1)
    expected = digester_without_password(kind) if password is None else digester(kind, password)
    assert type(requests._digest) is type(expected)
    assert (requests._io, requests._connections) == ("io", context._runtime.connections)


@pytest.mark.parametrize(("own_host", "sticky"), list(product([True, False], repeat=2)))
def test_replicas_are_asked_in_the_order_that_the_options_say(own_host, sticky):
    context = context_of(read_own_host_first=own_host, sticky_reads=sticky)
    context._runtime = Running({}, ["b4"])
    order = context.read_order("b2")
    assert (order.near, order.doubtful) == (frozenset(("b3",)) if own_host else frozenset(), frozenset(("b4",)))
    assert (order.sticky, order.first, order.rotation) == (sticky, "b2", context._read_rotation)


@pytest.mark.parametrize("by_space", [True, False])
def test_the_topology_has_all_bookies_those_to_avoid_and_the_space_of_writable_ones(by_space):
    context = context_of(placement_by_free_space=by_space)
    found = bookies("b1", "b2") | bookies("b3", read_only=True)
    context._runtime = Running(found, ["b2"])
    assert context.topology(3.0) == Topology(found, {"b2": "why"}, {"b1": 7, "b2": 7} if by_space else {})
    assert context._runtime.asked == [3.0]


@pytest.mark.parametrize(
    ("there", "avoided", "sound_only", "asked", "chosen"),
    [
        (("b4",), (), False, [(1.0, True)], act.BookiesChosen(("b4",))),
        (("b4",), ("b4",), False, [(1.0, True), (0.0, False)], act.BookiesChosen(("b4",))),
        (("b4",), ("b4",), True, [(1.0, True), (0.0, True)], None),
        ((), (), False, [(1.0, True), (0.0, False)], None),
    ],
)
def test_a_sound_bookie_is_chosen_from_an_old_listing_and_another_one_only_from_a_new_one(
    there, avoided, sound_only, asked, chosen
):
    context = context_of()
    ensemble = ("b1", "b2", "b3")
    context._runtime = Running(bookies(*ensemble, *there), (*avoided, "b1"))
    choose, quorums = context.placement.choose_replacements, []
    seen = []

    def noted(topology, *what):
        seen.append((context._runtime.asked[-1], not set(topology.bookies) & set(avoided)))
        quorums.append(what[:3])
        return choose(topology, *what)

    context.placement.choose_replacements = noted
    answer = context.answer_from_store(ledger(1), act.ChooseBookies(ensemble, ("b1",), sound_only))
    assert answer == chosen if chosen else isinstance(answer, act.NoBookies)
    assert [time for time, _ in seen] == [time for time, _ in asked]
    if avoided:
        assert [sound for _, sound in seen] == [sound for _, sound in asked]
    assert set(quorums) == {(ensemble, ("b1",), 3)}


def test_only_fragments_that_get_no_more_entries_can_be_misplaced():
    context = context_of()
    context._runtime = Running(bookies("b1"))
    asked = []

    def misplaced(topology, ensemble, write_quorum, random):
        asked.append((ensemble, write_quorum))
        return {"a1": ("b9", "b8"), "a2": ("b9",), "a3": ()}.get(ensemble[0], ("never",))

    context.placement = SimpleNamespace(misplaced=misplaced)

    def of(number, *firsts):
        fragments = tuple(Fragment(10 * n, (first, "x", "y")) for n, first in enumerate(firsts))
        return ledger(number, fragments=fragments)

    ledgers = [of(1, "a1", "a2", "open"), of(2, "a3", "open"), of(3, "open"), of(4, "a2").in_recovery().close_at(5, 1)]
    assert list(context.misplaced(ledgers)) == [(1, ("b9", "b8")), (4, ("b9",))]
    assert asked == [(("a1", "x", "y"), 3), (("a2", "x", "y"), 3), (("a3", "x", "y"), 3), (("a2", "x", "y"), 3)]


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (None, None),
        (MetadataVersionError("lost"), act.MetadataConflict()),
        (NotEnoughBookiesError("2"), act.NoBookies),
        (MetadataStoreError("deaf"), act.MetadataFailed),
    ],
)
def test_what_the_store_says_is_an_answer_of_its_kind(error, answer):
    def do(value):
        if error:
            raise error
        return value

    store = SimpleNamespace(
        read_ledger=lambda ledger_id: do(Versioned(ledger(ledger_id), 3)),
        write_ledger=lambda record, version: do(version + 1),
    )
    for action, good in (
        (act.ReadMetadata(), act.MetadataRead(ledger(1), 3)),
        (act.WriteMetadata(ledger(1), 3), act.MetadataWritten(4)),
        (act.ChooseBookies(("b1",), ("b1",)), act.BookiesChosen(("b2",))),
    ):
        told = answer_from_store(store, 1, action, lambda action: do(("b2",)))
        assert told == (good if error is None else answer if not isinstance(answer, type) else answer(error))


def test_a_machine_is_driven_until_an_action_is_for_somebody_else():
    calls, events = [], []
    context = SimpleNamespace(
        requests=lambda *what: calls.append(("requests", *what)) or Noted(calls, "requests"),
        answer_from_store=lambda metadata, action: calls.append(("store", metadata, action)) or act.MetadataWritten(4),
    )

    class Driver(MachineDriver):
        def _before(self, action):
            calls.append(("before", action))

    driver = Driver(context, ledger(1), b"pw", 60.0)
    read, choose, finish = act.SendRead("b1", 0, 9), act.ChooseBookies((), ()), act.Finish(ledger(1), 1)
    steps = [[choose], [finish, read]]

    def step(event):
        events.append(event)
        return steps.pop(0)

    driver._mailbox.put(act.DeadlinePassed())
    assert driver.run(step, [read]) == finish
    put = driver._mailbox.put
    assert calls == [
        ("requests", ledger(1), b"pw"),
        ("before", read),
        ("requests.send", read, put),
        ("store", ledger(1), choose),
    ]
    assert events == [act.DeadlinePassed(), act.MetadataWritten(4)]
    with pytest.raises(ReadError):
        driver.run(step, [act.Fail(ReadError("no")), finish])
    for action in (act.SendAdd((), 0, 0, 0), act.SendReadLac("b1"), act.SendListHeld("b1", 0)):
        assert driver.run(step, [action, finish]) == finish and calls[-1] == ("requests.send", action, put)
    assert 59.0 < driver._mailbox.left_seconds() <= 60.0
