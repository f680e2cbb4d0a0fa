"""Connections by bookie id, over connections that only note: who is connected to, who waits for it, and who is told."""

from __future__ import annotations

import asyncio
from itertools import product
from types import SimpleNamespace

import pytest

from bookspark.client.client_config import ClientConfig
from bookspark.client.network import connections as module
from bookspark.client.network.bookie_connection import Answer
from bookspark.client.network.connections import Connections
from bookspark.client.network.hello import ClientSecurity
from bookspark.errors import MetadataStoreError
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.wire.chunks import ChunkPool

GONE = Unknown(UnknownReason.UNREACHABLE, "gone")


class Connection:
    """One that only notes what is sent."""

    def __init__(self, bookie_id="b1", **fields):
        self.bookie_id, self.sent, self.lost, self.is_behind, self.heard_at = bookie_id, [], None, False, 5.0
        self.incarnation, self.queued_bytes, self.in_flight, self.aborted = 8, 10, 2, []
        vars(self).update(fields)

    def send(self, *what):
        self.sent.append(what)

    def abort(self, why):
        self.aborted.append(why)


class Request:
    def __init__(self):
        self.told = []

    def tell(self, bookie, answer):
        self.told.append((bookie, answer))


def made(**options):
    options = {"quarantine_seconds": 1000.0, "bookie_bytes_queued_max": 1 << 20, "frame_bytes": 1000} | options
    return Connections(SimpleNamespace(bookies=None), ClientConfig(**options), ClientSecurity(), None)


def run(scenario, **options):
    """Run ``scenario(connections)`` in a loop. What it dials has the outcomes in ``connections.outcomes``, in turn."""

    async def turn():
        connections = made(**options)
        connections.outcomes, connections.dialled = [], []

        async def dial(bookie_id, attempt):
            connections.dialled.append(bookie_id)
            outcome = connections.outcomes.pop(0)
            if isinstance(outcome, asyncio.Future):
                outcome = await outcome
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome

        connections._dial = dial
        await scenario(connections)
        for task in list(connections._tasks):
            task.cancel()
        await asyncio.gather(*connections._tasks, return_exceptions=True)

    asyncio.run(turn())


async def turns(count=6):
    for _ in range(count):
        await asyncio.sleep(0)


# -- sending


def test_what_is_sent_goes_on_the_connection_that_there_is_or_waits_for_one():
    async def scenario(connections):
        ready, other, request = Connection(), Connection("b2"), Request()
        connections._ready["b1"] = ready
        connections.outcomes = [other]
        connections.send_to_all(("b1", "b2"), 7, b"head", request, b"body")
        assert ready.sent == [(7, b"head", request, b"body")]
        assert connections._connecting["b2"].bytes_waiting == 8
        connections.send_to_all(("b2",), 8, b"next", request)
        await turns()
        assert other.sent == [(7, b"head", request, b"body"), (8, b"next", request, b"")]
        assert connections.dialled == ["b2"] and connections._ready["b2"] is other
        assert (connections.count, connections.queued_bytes, connections.requests_in_flight) == (2, 20, 4)
        other.is_behind = True
        assert connections.count_behind == 1 and request.told == []

    run(scenario)


def test_one_answer_goes_to_who_asked_one_bookie():
    async def scenario(connections):
        connections._ready["b1"], answers = ready, []
        connections.send("b1", 7, b"head", answers.append, 5.0, "on batch", b"body")
        (request_id, frame, request, body) = ready.sent[0]
        assert (request_id, frame, body, request.timeout_seconds, request.on_batch) == (
            7,
            b"head",
            b"body",
            5.0,
            "on batch",
        )
        request.tell("b1", Answer(GONE))
        assert answers == [Answer(GONE)]

    ready = Connection()
    run(scenario)


def test_no_more_waits_for_a_connection_than_may_and_the_rest_is_answered_at_once():
    async def scenario(connections):
        connections.outcomes = [asyncio.get_running_loop().create_future()]
        half, over = Request(), Request()
        for _ in range(2):
            connections.send_to_all(("b1",), 7, bytes(1 << 19), half)
        connections.send_to_all(("b1",), 7, b"1", over)
        assert half.told == [] and connections._connecting["b1"].bytes_waiting == 1 << 20
        ((_, answer),) = over.told
        assert answer.response == Unknown(UnknownReason.UNREACHABLE, "1048576 bytes wait for a connection")

    run(scenario)


def test_frames_are_received_into_the_chunks_that_are_given_or_into_its_own():
    given = ChunkPool()
    assert Connections(None, ClientConfig(), ClientSecurity(), None, given)._chunks is given
    assert isinstance(made()._chunks, ChunkPool)


def test_request_ids_are_used_once():
    connections = made()
    assert [connections.next_request_id() for _ in range(3)] == [1, 2, 3]


# -- outcomes


@pytest.mark.parametrize("asks_store", [True, False])
@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (OSError("refused"), "refused"),
        (MetadataStoreError("deaf"), "deaf"),
        (ZeroDivisionError("a defect"), "a defect"),
    ],
)
def test_who_can_not_be_connected_to_is_avoided_unless_the_store_did_not_tell_where_he_is(
    asks_store, outcome, why, caplog
):
    async def scenario(connections):
        connections._addresses["b1"] = "known"
        connections.outcomes, requests = [outcome], [Request(), Request()]
        for request in requests:
            connections.send_to_all(("b1",), 7, b"frame", request)
        connections._connecting["b1"].asks_store = asks_store
        await turns()
        expected = Answer(Unknown(UnknownReason.UNREACHABLE, why))
        assert [request.told for request in requests] == [[("b1", expected)]] * 2
        assert ("b1" in connections.quarantined()) is not asks_store
        assert connections.traffic.unreachable == 1 and connections._addresses == {}
        assert connections._missed == {"b1"} and connections._connecting == {} and connections._reconnecting == set()
        assert ("connecting to b1 failed" in caplog.text) is isinstance(outcome, ZeroDivisionError)

    run(scenario)


@pytest.mark.parametrize(
    ("asks_store", "why"), [(True, "the metadata store did not tell its address"), (False, "no answer")]
)
def test_who_takes_too_long_is_said_to_have_been_late(asks_store, why):
    async def scenario(connections):
        connections.outcomes, request = [asyncio.get_running_loop().create_future()], Request()
        connections.send_to_all(("b1",), 7, b"frame", request)
        connections._connecting["b1"].asks_store = asks_store
        for _ in range(10_000):
            if request.told:
                break
            await asyncio.sleep(0.001)
        assert request.told[0][1].response.detail == f"{why} in 0.01 s"

    run(scenario, connect_timeout_seconds=0.01)


def test_a_connection_that_is_lost_before_it_is_used_is_none():
    async def scenario(connections):
        lost, request = Connection(lost=GONE), Request()
        connections.outcomes = [lost]
        connections.send_to_all(("b1",), 7, b"frame", request)
        await turns()
        assert request.told == [("b1", Answer(GONE))] and lost.sent == []
        assert connections._ready == {} and connections._missed == {"b1"}
        # It was there: whatever cut it says whether it is to be avoided.
        assert connections.traffic.unreachable == 0 and connections.quarantined() == {}

    run(scenario)


def test_whom_nobody_missed_is_not_told_of_as_back_and_who_is_back_is_told_of_once(caplog):
    async def scenario(connections):
        backs = []

        def broken(bookie, incarnation):
            raise ZeroDivisionError

        connections.want("b1", broken)
        connections.want("b1", lambda *back: backs.append(back))
        connections.outcomes = [Connection(), Connection()]
        connections.send_to_all(("b1",), 7, b"", Request())
        await turns()
        assert backs == []
        del connections._ready["b1"]
        connections._missed.add("b1")
        connections.quarantine("b1", GONE)
        connections.send_to_all(("b1",), 7, b"", Request())
        await turns()
        assert backs == [("b1", 8)] and connections._missed == set() and connections.quarantined() == {}
        assert "failed" in caplog.text

    run(scenario)


def test_one_who_waits_and_fails_does_not_keep_the_others_from_their_connection():
    async def scenario(connections):
        def broken(outcome):
            raise SystemExit

        connections.outcomes, came = [Connection()], []
        connections._connect("b1", broken)
        connections._connect("b1", came.append)
        await turns()
        assert came == [connections._ready["b1"]]

    run(scenario)


def test_who_is_away_is_tried_again_and_only_a_failure_told():
    async def scenario(connections):
        connections.outcomes, failed = [OSError("no"), Connection()], []
        connections.try_again("b1", failed.append)
        await turns()
        connections.try_again("b1", failed.append)
        await turns()
        assert failed == [Unknown(UnknownReason.UNREACHABLE, "no")]

    run(scenario)


# -- behind and away


@pytest.mark.parametrize(
    ("state", "behind"),
    [
        ("ready", False),
        ("is behind", True),
        ("none", False),
        ("waits little", False),
        ("waits", True),
        ("missed", False),
    ],
)
def test_a_bookie_is_behind_if_much_waits_for_it_or_for_its_first_connection(state, behind):
    connections = made()
    connections._ready["b2"] = Connection("b2")
    if state in ("ready", "is behind"):
        connections._ready["b1"] = Connection(is_behind=state == "is behind")
    connections.traffic.behind = int(state in ("ready", "is behind"))
    if state in ("waits little", "waits", "missed"):
        half = connections._config.bookie_bytes_queued_max // 2
        connections._connecting["b1"] = SimpleNamespace(bytes_waiting=half + (state != "waits little"))
    if state == "missed":
        connections._missed.add("b1")
    assert connections.any_is_behind(("b2", "b1", "b9")) is behind
    assert not connections.any_is_behind(("b2",))
    assert list(connections.behind(("b2", "b1", "b9"))) == ["b1"] * behind


@pytest.mark.parametrize(("missed", "reconnecting"), list(product([True, False], repeat=2)))
def test_a_bookie_is_away_while_its_lost_connection_is_made_again(missed, reconnecting):
    connections = made()
    connections._missed = {"b1"} if missed else {"b3"}
    connections._reconnecting = {"b1", "b4"} if reconnecting else {"b4"}
    assert connections.away(("b2", "b1", "b3", "b4")) == ["b1"] * (missed and reconnecting)
    connections._reconnecting = set()
    assert connections.away(("b1",)) == []


def test_the_quietest_bookie_is_the_one_without_a_connection_and_then_who_was_silent_longest():
    connections = made()
    connections._ready = {
        "b1": Connection(heard_at=9.0),
        "b2": Connection(heard_at=4.0),
        "b4": Connection(heard_at=4.0),
    }
    assert connections.quietest_first(("b1", "b4", "b2", "b3")) == ("b3", "b2", "b4", "b1")


# -- losses


@pytest.mark.parametrize("current", [True, False])
def test_a_loss_is_one_of_the_connection_that_is_used(current):
    async def scenario(connections):
        lost = Connection(lost=GONE)
        connections._ready["b1"] = lost if current else Connection()
        connections._addresses["b1"] = "known"
        connections.want("b1", print)
        connections._lost(lost)
        assert ("b1" in connections._ready) is not current and ("b1" in connections._addresses) is not current
        assert (connections._missed, connections._reconnecting) == (({"b1"}, {"b1"}) if current else (set(), set()))
        assert ("b1" in connections.quarantined()) is current

    run(scenario)


@pytest.mark.parametrize(("wanted", "already", "closed"), list(product([True, False], repeat=3)))
def test_only_a_bookie_that_is_wanted_is_connected_to_anew_and_by_one_task(wanted, already, closed):
    async def scenario(connections):
        connections.want("b1", print)
        if not wanted:
            connections.unwant("b1", print)
        connections._reconnecting = {"b1"} if already else set()
        connections._closed = closed
        connections._keep_trying("b1")
        begun = wanted and not already and not closed
        assert len(connections._tasks) == begun and connections._reconnecting == ({"b1"} if already or begun else set())

    run(scenario)


@pytest.mark.parametrize("ends", ["unwanted", "there"])
def test_a_bookie_is_tried_less_and_less_often_until_it_is_there_or_not_wanted(monkeypatch, ends):
    pauses = []

    async def scenario(connections):
        sleep = asyncio.sleep

        async def noted(seconds):
            pauses.append(seconds)
            assert len(pauses) < 9, "it goes on"
            if len(pauses) == 8:
                if ends == "unwanted":
                    connections.unwant("b1", print)
                else:
                    connections._ready["b1"] = Connection()
            await sleep(0)

        connections.want("b1", print)
        connections._reconnecting = {"b1"}
        connections.outcomes = [OSError("no")] * 7
        monkeypatch.setattr(module.asyncio, "sleep", noted)
        await connections._reconnect("b1")
        monkeypatch.undo()
        assert connections._reconnecting == set() and connections.dialled == ["b1"] * 7

    run(scenario)
    assert pauses == [0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 1.0, 1.0]


def test_the_end_cuts_all_connections_and_ends_all_tasks():
    async def scenario(connections):
        order, request, later = [], Request(), []

        class Ended(Connection):
            def abort(self, why):
                order.append(why)

        one = Ended(ended=SimpleNamespace(wait=None))

        async def wait():
            order.append("ended")

        one.ended.wait = wait
        connections._open.add(one)
        connections.outcomes = [asyncio.get_running_loop().create_future()]
        connections.send_to_all(("b2",), 7, b"frame", request)
        connections.later(3600.0, lambda: later.append(1))
        await turns()
        assert later == []
        await connections.close()
        await turns()
        assert order == ["the client was closed", "ended"] and later == [1]
        closed = Answer(Unknown(UnknownReason.UNREACHABLE, "the client was closed"))
        assert request.told == [("b2", closed)]
        connections.send_to_all(("b3",), 7, b"frame", request)
        assert request.told[1:] == [("b3", closed)] and connections._connecting == {} and connections._tasks == set()

    run(scenario)
