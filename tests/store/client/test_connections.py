"""Connections to bookies by id: they follow changed addresses and use bounded memory."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.store.client.client_config import client_config
from bookspark.store.client.network.connections import Connections
from bookspark.store.client.network.hello import client_security
from bookspark.store.client.network.io_loop import IoLoop
from bookspark.store.client.network.ledger_requests import LedgerRequests
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind, Status
from tests.awaiting import await_that, time_passes
from tests.store.bookie.kit import config, serving
from tests.store.client.fake_bookie import SECONDS, Bookie

MIB = 1 << 20


class Bench:
    """``Connections`` over a metadata store in memory, used from the test's thread."""

    def __init__(self):
        self.store = MemoryStore()
        self.io = IoLoop("test")
        self._threads = ThreadPoolExecutor(1)
        self._bookies = []
        self.connections = None

    def open(self, **options):
        made = client_config(**{"connect_timeout_seconds": SECONDS} | options)
        self.connections = Connections(self.store, made, client_security(made), self._threads)

    def bookie(self, bookie_id, **options):
        bookie = Bookie(bookie_id, **options)
        self._bookies.append(bookie)
        self.register(bookie_id, bookie.port)
        return bookie

    def register(self, bookie_id, port):
        self.store.register_bookie(BookieRegistration(bookie_id, f"127.0.0.1:{port}", 1))

    def send(self, bookie_id, *frames, timeout=SECONDS):
        """Send without waiting; the answers go into the returned queue."""
        answers = queue.SimpleQueue()

        def send():
            for frame in frames or [b""]:
                request_id = self.connections.next_request_id()
                framed = control_frame(Header(Kind.STATUS if not frame else Kind.RANGES, request_id), frame)
                self.connections.send(bookie_id, request_id, framed, answers.put, timeout)

        self.io.submit(send)
        return answers

    def ask(self, bookie_id, **options):
        return self.send(bookie_id, **options).get(timeout=SECONDS)

    def in_loop(self, function, *arguments):
        done = queue.SimpleQueue()
        self.io.submit(lambda: done.put(function(*arguments)))
        return done.get(timeout=SECONDS)

    def sleep(self, monkeypatch, meanwhile):
        """Stop the client for an hour in the middle of a loop turn, and call ``meanwhile``."""
        monotonic, answered = time.monotonic, queue.SimpleQueue()

        def stand_still(answer):
            meanwhile()
            time_passes(0.15)  # until timers are due
            monkeypatch.setattr(time, "monotonic", lambda: monotonic() + 3600.0)
            answered.put(answer)

        self.bookie("elsewhere")
        request_id = self.connections.next_request_id()
        frame = control_frame(Header(Kind.STATUS, request_id))
        self.io.submit(self.connections.send, "elsewhere", request_id, frame, stand_still, SECONDS)
        answered.get(timeout=SECONDS)

    def connection(self, bookie_id):
        """Wait for the connection to this bookie."""
        return await_that(lambda: self.in_loop(self.connections._ready.get, bookie_id), what="a connection")

    def queued_bytes(self, bookie_id):
        def count():
            connection = self.connections._ready.get(bookie_id)
            return 0 if connection is None else connection._transport.get_write_buffer_size()

        return self.in_loop(count)

    def close(self):
        if self.connections is not None:
            self.io.call(self.connections.close())
        for bookie in self._bookies:
            bookie.end()
        self.io.stop()
        self._threads.shutdown()
        self.store.close()


@pytest.fixture
def bench():
    made = Bench()
    yield made
    made.close()


# -- addresses


def test_bookie_restarted_at_another_address_is_reached(bench):
    bench.open()
    old = bench.bookie("b1")
    assert bytes(bench.ask("b1").body) == b"b1"
    bench.bookie("b1")
    old.end()
    answers = [bench.ask("b1") for _ in range(2)]  # the first request may still use the old connection
    assert bytes(answers[-1].body) == b"b1"


def test_bookie_that_moved_without_closing_its_connection_is_reached(bench):
    """The old host was lost: its connection is silent but stays open."""
    bench.open(answer_timeout_seconds=0.2)
    old = bench.bookie("b1")
    bench.ask("b1")
    old.answering = False
    bench.bookie("b1")
    assert bench.ask("b1", timeout=0.2).response.reason is UnknownReason.TIMEOUT
    await_that(lambda: isinstance(bench.ask("b1").response, Positive))


def test_client_that_slept_past_a_deadline_processes_the_answers_that_arrived(bench, monkeypatch):
    """The loop runs timers before sockets: the answer had arrived, but the request was reported as timed out."""
    bench.open()
    bookie = bench.bookie("b1")
    bench.ask("b1")
    connection = bench.connection("b1")
    bookie.asked(Kind.STATUS)
    bookie.answering = False
    answers = bench.send("b1")
    bench.sleep(monkeypatch, bookie.asked(Kind.STATUS))
    assert isinstance(answers.get(timeout=SECONDS).response, Positive)
    assert bench.connection("b1") is connection and bench.connections.quarantined() == {}


def test_bookies_that_swapped_addresses_are_reached_by_their_ids(bench):
    """The client dials each bookie at its old address, where the other bookie listens now."""
    bench.open()
    first, second = bench.bookie("b1"), bench.bookie("b2")
    bench.ask("b1")
    known = dict(bench.connections._addresses)
    for each in (first, second):
        each.end()
    bench.bookie("b2", port=first.port)
    bench.bookie("b1", port=second.port)
    while bench.in_loop(lambda: bench.connections._ready):
        pass  # until the client has noticed the end of the old connection
    bench.connections._addresses = known
    for name in ("b1", "b2"):
        assert bytes(bench.ask(name).body) == name.encode()


def test_unregistered_bookie_is_not_reachable(bench):
    bench.open()
    assert str(bench.ask("b1").response) == "not reachable: not registered"


def test_request_is_not_failed_by_an_attempt_that_looked_before_the_bookie_was_back(bench, monkeypatch):
    looked, tell, bookies = threading.Event(), threading.Event(), bench.store.bookies

    def slowly():
        found = bookies()
        looked.set()
        tell.wait(SECONDS)
        return found

    bench.open()
    monkeypatch.setattr(bench.store, "bookies", slowly)
    before = bench.send("b1")
    assert looked.wait(SECONDS)
    bench.bookie("b1")
    after = bench.send("b1")
    tell.set()
    assert str(before.get(timeout=SECONDS).response) == "not reachable: not registered"
    assert bytes(after.get(timeout=SECONDS).body) == b"b1"


def test_silent_metadata_store_puts_no_bookie_into_quarantine(bench, monkeypatch):
    """All bookies were "not reachable: no answer" and in quarantine while ZooKeeper did not answer."""
    told, bookies = threading.Event(), bench.store.bookies
    bench.open(quarantine_seconds=1000, connect_timeout_seconds=2.0)
    monkeypatch.setattr(bench.store, "bookies", lambda: (told.wait(SECONDS), bookies())[1])
    assert str(bench.ask("b1").response) == "not reachable: the metadata store did not tell its address in 2 s"
    told.set()
    assert bench.connections.quarantined() == {}
    await_that(lambda: str(bench.ask("b1").response) == "not reachable: not registered")
    assert list(bench.connections.quarantined()) == ["b1"]


def test_failing_metadata_store_puts_no_bookie_into_quarantine(bench, monkeypatch):
    def failing():
        raise MetadataStoreError("no answer from ZooKeeper")

    bench.open(quarantine_seconds=1000)
    monkeypatch.setattr(bench.store, "bookies", failing)
    assert str(bench.ask("b1").response) == "not reachable: no answer from ZooKeeper"
    assert bench.connections.quarantined() == {}


def test_unexpected_error_while_connecting_is_answered(bench, monkeypatch, caplog):
    def defect():
        raise ZeroDivisionError("a defect")

    bench.open()
    monkeypatch.setattr(bench.store, "bookies", defect)
    assert "a defect" in str(bench.ask("b1").response)
    assert "connecting to b1 failed" in caplog.text


def test_a_real_bookie_answers(bench, tmp_path):
    bench.open()
    with serving(config(tmp_path)) as (_, (_, port)):
        bench.register("bookie-test", port)
        assert isinstance(bench.ask("bookie-test").response, Positive)
        bench.io.call(bench.connections.close())


def test_bookie_that_refuses_a_frame_gives_the_reason(bench, tmp_path):
    """The frame is too long: the connection was reset without a reason in the error."""
    bench.open()
    with serving(config(tmp_path)) as (_, (_, port)):
        bench.register("bookie-test", port)
        bench.ask("bookie-test")
        response = bench.send("bookie-test", bytes(17 * MIB)).get(timeout=SECONDS).response
        assert "refused what it was sent: a frame of 17825912 bytes; at most 16777216 are allowed" in str(response)
        bench.io.call(bench.connections.close())


def test_both_ends_of_a_connection_have_keepalive_and_user_timeout(bench, tmp_path):
    """Without keepalive, a bookie keeps the connections of dead hosts forever."""
    bench.open()
    with serving(config(tmp_path)) as (server, (_, port)):
        bench.register("bookie-test", port)
        bench.ask("bookie-test")
        for end in (bench.connection("bookie-test"), *server.connections):
            connected = end._transport.get_extra_info("socket")
            assert connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                assert connected.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 60_000
        bench.io.call(bench.connections.close())


# -- reconnection


def test_first_connection_is_not_reported_as_a_reconnection(bench):
    """Waiting requests are sent on the first connection; a writer that resends its pending adds would send them twice."""
    bench.open()
    backs = queue.SimpleQueue()
    told = lambda *back: backs.put(back)  # noqa: E731 -- one object, to be wanted and unwanted
    bench.in_loop(bench.connections.want, "b1", told)
    old = bench.bookie("b1")
    assert bytes(bench.ask("b1").body) == b"b1"
    assert backs.empty()
    old.end()
    bench.bookie("b1")
    assert backs.get(timeout=SECONDS) == ("b1", 0)
    bench.in_loop(bench.connections.unwant, "b1", told)


def test_bookie_unreachable_at_first_is_reported_when_it_is_reachable(bench):
    bench.open()
    backs = queue.SimpleQueue()
    bench.in_loop(bench.connections.want, "b1", lambda *back: backs.put(back))
    assert str(bench.ask("b1").response) == "not reachable: not registered"
    bench.bookie("b1")
    assert backs.get(timeout=SECONDS) == ("b1", 0)


def test_client_closed_while_reconnecting_logs_no_traceback(bench, monkeypatch, caplog):
    """The attempt set its result on a cancelled future."""
    bench.open()
    asked, may_answer = threading.Event(), threading.Event()

    def bookies():
        asked.set()
        may_answer.wait(SECONDS)
        return {}

    bench.in_loop(bench.connections.want, "b1", lambda *back: None)
    monkeypatch.setattr(bench.store, "bookies", bookies)
    bench.in_loop(bench.connections._keep_trying, "b1")
    assert asked.wait(SECONDS)
    bench.io.submit(asyncio.ensure_future, bench.connections.close())
    threading.Timer(0.1, may_answer.set).start()
    await_that(lambda: not bench.connections._reconnecting)
    bench.in_loop(int)
    assert "Traceback" not in caplog.text


def test_postponed_long_poll_is_answered_when_the_client_closes(bench):
    """The poll was never sent again, so its caller waited until the deadline."""
    bench.open()
    bookie = bench.bookie("b1")
    bookie.statuses[Kind.READ_LAC] = Status.TOO_MANY_REQUESTS
    answers = queue.SimpleQueue()
    requests = LedgerRequests(bench.io, bench.connections, 7, b"k" * 16, None, SECONDS)
    began = time.monotonic()
    requests.read_lac(act.SendReadLac("b1", wait_for=0), answers.put, wait_seconds=2 * SECONDS)
    for kind in (Kind.HELLO, Kind.READ_LAC, Kind.READ_LAC):
        assert bookie.headers.get(timeout=SECONDS).kind == kind
    await_that(lambda: bench.in_loop(lambda: len(bench.connections._tasks)))
    bench.io.call(bench.connections.close())
    answer = answers.get(timeout=SECONDS)
    assert isinstance(answer.response, Unknown) and time.monotonic() - began < SECONDS


# -- quarantine


def test_unanswering_bookie_is_in_quarantine_until_it_is_back(bench):
    bench.open(quarantine_seconds=1000)
    bookie = bench.bookie("b1")
    bench.ask("b1")
    assert bench.connections.quarantined() == {}
    bookie.answering = False
    assert bench.ask("b1", timeout=0.05).response.reason is UnknownReason.TIMEOUT
    words = bench.connections.quarantined()["b1"]
    assert words.startswith(("in quarantine for 9", "in quarantine for 1000.0 s"))
    assert words.endswith("no answer in time: 0.05 s")
    bookie.end()
    bench.bookie("b1")
    while not isinstance(bench.ask("b1").response, Positive):
        pass
    assert bench.connections.quarantined() == {}


def test_quarantine_expires(bench):
    bench.open(quarantine_seconds=0.0)
    bench.ask("b1")
    assert bench.connections.quarantined() == {}


# -- bounded memory


def test_bookie_that_reads_nothing_is_cut_off_after_the_stall_time(bench):
    bench.open(bytes_in_flight_max=256 * MIB, bookie_stall_seconds=0.2)
    bookie = bench.bookie("b1")
    bench.ask("b1")
    bookie.taking.clear()
    answers = bench.send("b1", *[bytes(MIB)] * 40)
    told = [answers.get(timeout=SECONDS) for _ in range(40)]
    assert all("took in nothing for 0.2 s" in str(answer.response) for answer in told)
    assert "took in nothing" in bench.connections.quarantined()["b1"]


def test_bookie_is_behind_at_half_of_its_queue_limit(bench):
    bench.open(bytes_in_flight_max=64 * MIB, bookie_stall_seconds=1000)
    bookie = bench.bookie("b1")
    bench.ask("b1")
    bookie.taking.clear()
    assert not bench.connections.any_is_behind(["b1"])
    bench.send("b1", *[bytes(MIB)] * 14)
    while not bench.in_loop(bench.connections.any_is_behind, ["b2", "b1"]):
        pass
    assert 8 * MIB < bench.queued_bytes("b1") <= 16 * MIB
    answers = bench.send("b1", *[bytes(MIB)] * 14)
    assert "more than 16777216 bytes behind" in str(answers.get(timeout=SECONDS).response)


def test_bookie_being_connected_is_behind_at_half_of_its_queue_limit(bench):
    """A new client's first appends exceeded the queue limit and failed although the cluster was healthy."""
    bench.open(bytes_in_flight_max=64 * MIB)
    bookie = bench.bookie("b1")
    bookie.answering = False  # the socket accepts, but HELLO is not answered
    answers = bench.send("b1", *[bytes(MIB)] * 7)
    assert not bench.in_loop(bench.connections.any_is_behind, ["b1"])
    bench.send("b1", *[bytes(MIB)] * 2)
    assert bench.in_loop(bench.connections.any_is_behind, ["b1"])
    bookie.asked(Kind.HELLO)  # before its HELLO, the bookie's end would not close the connection
    bookie.end()
    assert isinstance(answers.get(timeout=SECONDS).response, Unknown)
    bench.send("b1", *[bytes(MIB)] * 9)
    assert not bench.in_loop(bench.connections.any_is_behind, ["b1"]), "it may stay away: nobody waits for it"


def test_a_slow_bookie_is_behind_until_it_catches_up_and_is_not_cut_off(bench):
    bench.open(bytes_in_flight_max=64 * MIB, bookie_stall_seconds=SECONDS)
    bookie = bench.bookie("b1")
    bench.ask("b1")
    bookie.taking.clear()
    bench.send("b1", *[bytes(MIB)] * 14)
    while not bench.in_loop(bench.connections.any_is_behind, ["b1"]):
        pass
    bookie.taking.set()
    assert isinstance(bench.ask("b1").response, Positive), "after all that came before it"
    assert not bench.in_loop(bench.connections.any_is_behind, ["b1"])


def test_bytes_that_wait_for_a_connection_are_bounded(bench):
    bench.open(bytes_in_flight_max=16 * MIB, connect_timeout_seconds=2.0)
    bookie = bench.bookie("b1")
    bookie.answering = False  # the socket accepts, but HELLO is not answered
    answers = bench.send("b1", *[bytes(MIB)] * 100)
    told = [str(answers.get(timeout=SECONDS).response) for _ in range(100)]
    assert sum("wait for a connection" in words for words in told) >= 96
    assert all("wait for a connection" in words for words in told[:96]), "at once"
    assert all("no answer in 2 s" in words for words in told[97:])
