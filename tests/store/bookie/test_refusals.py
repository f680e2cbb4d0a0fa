"""A bookie refuses requests that it can't carry out, with a status that says why, and answers every request."""

from __future__ import annotations

import gc
import threading
import weakref
from types import SimpleNamespace

import pytest

from bookspark.protocol.bookie.bookie_ledger import ENTRY_LOST, NO_SUCH_ENTRY, BookieLedger, EntriesLost, FenceNoted
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.store.bookie.disk.control_log import decode_records
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.ledgers import held_copies
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.bookie.storage import Losses, VolatileSyncs
from bookspark.store.wire.entry_batch import encode_entries
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind, Status, status_of
from bookspark.store.wire.messages import FetchFrom
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.awaiting import await_that
from tests.store.bookie.kit import KEY, Client, Pumped, add_frame, config, entries, serving

NO_ROOM = "write */control.log 1.. no-space"


@pytest.fixture
def files():
    return FaultyFileSystem(RealFileSystem())


@pytest.fixture
def bookie(tmp_path, files):
    """It holds entries 0..3 of ledger 5 on disk only, and compares duplicates on a thread beside its loop."""
    before = Pumped(config(tmp_path))
    before.add(5, 0, 3)
    before.storage.close()
    pumped = Pumped(config(tmp_path), files, soon=lambda function: pumped._posted.put((function, ())))
    yield pumped
    files.clear()
    pumped.storage.close()


def test_only_negatives_have_negative_statuses_and_each_has_its_own():
    def told(response):
        return Header(Kind.READ, 0, status=status_of(response)).response()

    assert all(told(Negative(reason)) == Negative(reason) for reason in NegativeReason)
    assert isinstance(told(Positive()), Positive)
    for reason in UnknownReason:
        assert isinstance(told(Unknown(reason)), Unknown)


# -- adds of entries already held


def hold(files):
    for kind in ("open", "read", "read_cached"):
        files.add(f"{kind} */logs/*.arrows 1.. hold")


def test_requests_behind_a_comparison_are_answered_once_when_the_bookie_stops(bookie, files):
    hold(files)
    compared = bookie.submit(add_frame(5, 0, 3))
    behind = bookie.submit(add_frame(5, 4))
    synced, settled = [], []
    bookie.storage.sync(5, KEY, Assignment(0), synced.append)
    bookie.storage.settle(settled.append)
    files.wait_held()
    assert compared == behind == synced == settled == []
    bookie.storage.close()
    assert compared == behind == [Status.IO_ERROR]
    assert len(synced) == 1 and settled == [Status.IO_ERROR]
    assert bookie.storage.bytes_in_flight == 0
    files.clear()
    while len(bookie.storage._compared) or bookie.unheard == 0:
        bookie.pump()
    bookie.pump()
    assert compared == behind == [Status.IO_ERROR] and len(synced) == 1


def test_exception_in_a_comparison_fails_only_its_add_and_is_logged(bookie, monkeypatch, caplog):
    def trips(*arguments, **options):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(bookie.storage.files, "fetch", trips)
        assert bookie.add(5, 0, 3) is Status.IO_ERROR
    assert "entries of ledger 5 could not be compared" in caplog.text
    assert bookie.add(5, 0, 3) is Status.OK


def test_add_without_a_thread_for_its_comparison_gets_too_many_requests(bookie, monkeypatch):
    def no_thread(*arguments):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(bookie.storage.disk_threads, "run", no_thread)
        assert bookie.add(5, 0, 3) is Status.TOO_MANY_REQUESTS
    assert bookie.add(5, 0, 3) is Status.OK


def test_copy_unreadable_for_a_moment_is_neither_lost_nor_replaced(bookie, files):
    files.add("open */logs/*.arrows 1.. too-many-files")
    assert bookie.add(5, 0, 3, payload=b"another") is Status.IO_ERROR
    files.clear()
    assert bookie.storage.status().lost_copies == 0
    assert bookie.add(5, 0, 3, payload=b"another") is Status.CONFLICT
    assert bookie.add(5, 0, 3) is Status.OK


# -- records


def requests(storage):
    yield lambda done: storage.write_last_add_confirmed(5, KEY, 3, done)
    yield lambda done: storage.fence(5, KEY, done)
    yield lambda done: storage.switch_read_only(True, done)
    yield storage.settle


def test_stopped_bookie_writes_no_control_record(tmp_path):
    bookie = Pumped(config(tmp_path))
    bookie.storage.close()
    for request in requests(bookie.storage):
        assert bookie.run(request) is Status.IO_ERROR


def test_bookie_without_a_working_directory_writes_no_control_record(tmp_path, files):
    bookie = Pumped(config(tmp_path), files)
    files.add("write */logs/*.arrows 1.. io-error")
    assert bookie.add(5, 0) is Status.IO_ERROR
    assert bookie.storage.live == []
    for request in requests(bookie.storage):
        assert bookie.run(request) is Status.IO_ERROR
    assert bookie.add(6, 0) is Status.READ_ONLY


def test_clearing_the_limbo_of_an_unknown_ledger_succeeds(tmp_path):
    bookie = Pumped(config(tmp_path))
    assert bookie.run(bookie.storage.lossy_boots.clear_limbo, 5, 1) is Status.OK
    bookie.storage.close()


def test_stop_writes_a_loss_into_a_directory_with_room(tmp_path, files):
    """The full directory is asked first, which must not stop the other."""
    settings = config(tmp_path / "a", tmp_path / "b")
    before = Pumped(settings)
    for ledger_id in (4, 5):
        before.add(ledger_id, 0)
    before.storage.close()
    bookie = Pumped(settings, files)
    files.add(NO_ROOM)
    files.add("read */b/logs/*.arrows 1.. flip:900.3")
    assert bookie.read(5, 0, 0)[1] == "bad frame"
    plan = bookie.storage.holdings.plan_read(5, 0, 0, 0, sparse=False)
    bookie.storage.holdings.read_ended(plan.pieces, bookie.storage.files.fetch(plan.pieces, cached_only=False).stop)
    assert bookie.read(5, 0, 0) == ([], ENTRY_LOST)
    bookie.run(bookie.storage.settle)
    files.clear()
    files.add(f"write {tmp_path}/a/control.log 1.. no-space")
    bookie.storage.close()
    again = Pumped(settings)
    assert again.read(5, 0, 0) == ([], ENTRY_LOST)
    assert again.read(5, 1, 1) == ([], NO_SUCH_ENTRY)
    again.storage.close()


class Queue:
    """A directory that writes nothing."""

    def __init__(self):
        self.commit = self
        self.items = []

    def submit(self, item):
        self.items.append(item)


@pytest.mark.parametrize("ended", [True, False], ids=["carried through", "given up"])
def test_control_log_rewrite_keeps_no_later_record_in_memory(ended):
    """Otherwise all later records of the bookie would stay in memory."""
    directory, state = Queue(), ControlState()
    records = ControlRecords(state, [directory])
    records.is_open = True
    state.of(5).fence(KEY)
    steps = records.rewrite()
    next(steps)
    records.note(state.of(6), state.of(6).fence(KEY).records, lambda status: None)
    if ended:
        for _ in steps:
            pass
        content = b"".join(directory.items[-1].content)
        assert FenceNoted(6) in decode_records(content, len(content)), "noted meanwhile"
    else:
        steps.close()
    records.note(state.of(7), state.of(7).fence(KEY).records, lambda status: None)
    content = directory.items[-1].content
    assert [kept for kept in gc.get_referrers(content) if isinstance(kept, list)] == []


def test_only_entries_noted_as_lost_become_unknown(tmp_path):
    bookie = Pumped(config(tmp_path))
    bookie.add(5, 0, 1)
    assert bookie.run(bookie.storage.lossy_boots.note_lost, 5, [(3, 4), (7, 7)]) is Status.OK

    def refusals(one):
        return [one.read(5, entry_id, entry_id)[1] for entry_id in range(2, 9)]

    expected = [NO_SUCH_ENTRY, ENTRY_LOST, ENTRY_LOST, NO_SUCH_ENTRY, NO_SUCH_ENTRY, ENTRY_LOST, NO_SUCH_ENTRY]
    assert refusals(bookie) == expected
    assert bookie.run(bookie.storage.lossy_boots.note_lost, 6, [(0, 0)]) is Status.OK
    assert bookie.read(6, 0, 0)[1] == ENTRY_LOST, "a ledger of which nothing was known"
    bookie.storage.close()
    assert bookie.run(bookie.storage.lossy_boots.note_lost, 5, [(8, 8)]) is Status.IO_ERROR
    again = Pumped(config(tmp_path))
    assert refusals(again) == expected and again.read(6, 0, 0)[1] == ENTRY_LOST
    again.storage.close()


def test_held_ranges_of_a_long_ledger_are_complete_without_a_loop(tmp_path, monkeypatch):
    monkeypatch.setattr(held_copies, "_ROWS_A_TURN", 3)
    bookie = Pumped(config(tmp_path))
    for entry_id in (*range(8), *range(10, 14)):
        bookie.add(5, entry_id)
    told: list[object] = []
    bookie.storage.held_ranges(5, told.append)
    assert told == [[(0, 7), (10, 13)]]
    bookie.storage.close()


def test_sync_of_a_ledger_fenced_before_it_begins_is_refused_and_syncs_nothing():
    ledger, begun, told, submitted = BookieLedger(5), [], [], []
    holdings = SimpleNamespace(
        when_left=lambda ledger_id, then: then(),
        lacking=lambda ledger_id: False,
        control=SimpleNamespace(known=lambda ledger_id: ledger),
        volatile=SimpleNamespace(
            when_begun=lambda ledger_id, assignment, then: begun.append(then),
            asked=lambda *asked: submitted.append(asked),
        ),
    )
    VolatileSyncs(holdings, SimpleNamespace(), SimpleNamespace()).sync(5, KEY, Assignment(0), told.append)
    for record in ledger.fence(KEY).records:
        ledger.replay(record)
    begun[0]()
    assert told == [Status.FENCED] and submitted == []


@pytest.mark.parametrize("begins", [False, True], ids=["at first", "when it has begun"])
def test_sync_refused_for_an_unsure_fence_stays_refused_once_the_fence_is_sure(begins):
    """An add of the same writer makes the fence sure while the rows of a failed directory leave the index."""
    ledger, left, begun, told = BookieLedger(5, fence_unsure=not begins), [], [], []
    holdings = SimpleNamespace(
        when_left=lambda ledger_id, then: left.append(then),
        lacking=lambda ledger_id: False,
        control=SimpleNamespace(known=lambda ledger_id: ledger),
        volatile=SimpleNamespace(when_begun=lambda ledger_id, assignment, then: begun.append(then)),
    )
    VolatileSyncs(holdings, SimpleNamespace(), SimpleNamespace()).sync(5, KEY, Assignment(0), told.append)
    ledger.fence_unsure = True
    for then in begun:
        then()
    ledger.fence_is_sure()
    for then in left:
        then()
    assert told == [Status.LIMBO]


def test_losses_during_a_write_of_losses_are_written_once_afterwards():
    written = []
    holdings = SimpleNamespace(losses_durable=threading.Event())
    records = SimpleNamespace(write=lambda records, done: written.append((list(records), done)))
    losses = Losses(holdings, records, SimpleNamespace(outdated=lambda: None))
    first, second = EntriesLost(5, 0, 0), EntriesLost(5, 1, 1)
    losses._lost([first])
    losses._lost([second])
    assert [lost for lost, _ in written] == [[first]]
    written[0][1](Status.OK)
    assert [lost for lost, _ in written] == [[first], [second]] and not holdings.losses_durable.is_set()
    written[1][1](Status.OK)
    assert len(written) == 2 and holdings.losses_durable.is_set()


# -- requests over the wire


@pytest.fixture
def served(tmp_path, files):
    with serving(config(tmp_path / "served", requests_in_flight_max=2), files) as (server, address):
        client = Client(address)
        yield server, client
        files.clear()
        client.close()


def test_exception_in_a_request_fails_only_that_request_and_is_logged(served, monkeypatch, caplog):
    server, client = served

    def trips(*arguments):
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(server.storage, "sync", trips)
        assert (
            client.call(Header(Kind.SYNC, 0, 5, master_key=KEY, limit=1 << 20 | 1 << 10)).header.status
            == Status.IO_ERROR
        )
    assert "failed" in caplog.text
    assert client.add(5, 0).status == Status.OK


@pytest.mark.parametrize(
    "header",
    [
        Header(200, 0, 5),
        Header(Kind.WRITE_LAC, 0, 5, last_add_confirmed=-2, master_key=KEY),
        Header(Kind.FETCH, 0, 5, 0, 3),
    ],
    ids=["unknown kind", "LAC", "fetch"],
)
def test_invalid_request_is_refused_and_the_next_request_is_answered(served, header):
    _, client = served
    assert client.call(header).header.status == Status.BAD_REQUEST
    assert client.call(Header(Kind.STATUS, 0)).header.status == Status.OK


def test_entry_batch_of_another_kind_than_add_is_refused(served):
    _, client = served
    client.send(encode_entries(Header(Kind.SYNC, 3, 5, 0, 0, master_key=KEY), entries(5, 0, 0)))
    assert client.receive().header.status == Status.BAD_REQUEST
    assert client.call(Header(Kind.STATUS, 0)).header.status == Status.OK


def test_request_above_the_limit_of_a_connection_gets_too_many_requests(served, files):
    _, client = served
    files.add("sync */logs/*.arrows 1.. hold")
    client.send(add_frame(5, 0, request_id=1), add_frame(5, 1, request_id=2))
    files.wait_held()
    client.send(add_frame(5, 2, request_id=3))
    refused = client.receive().header
    assert (refused.request_id, refused.status) == (3, Status.TOO_MANY_REQUESTS)
    files.clear()
    assert sorted((client.receive().header for _ in range(2)), key=lambda one: one.request_id)[1].status == Status.OK
    assert client.add(5, 2).status == Status.OK


def test_ranges_fail_if_their_copies_cannot_be_made_durable(served, monkeypatch):
    server, client = served
    client.add(5, 0)
    monkeypatch.setattr(server.storage, "when_durable", lambda rows, done: done(Status.IO_ERROR))
    answer = client.call(Header(Kind.RANGES, 0, 5, limit=10))
    assert answer.header.status == Status.IO_ERROR and not answer.body


def test_fetch_is_passed_on_and_answered_with_its_result(served):
    server, client = served
    asked = []

    def fetch(header, source, fetched):
        asked.append((header.first_entry_id, header.last_entry_id, source))
        fetched(Status.LIMBO, 7, 700, "it is in limbo")

    server.fetch = fetch
    source = FetchFrom("b2", "crc32c")
    for first, last in ((0, 0), (3, 9)):
        answer = client.call(Header(Kind.FETCH, 0, 5, first, last), source.encode())
        header = answer.header
        assert (header.status, header.last_entry_id, header.value) == (Status.LIMBO, 7, 700)
        assert bytes(answer.body) == b"it is in limbo"
    for first, last in ((-1, 0), (4, 3)):
        assert client.call(Header(Kind.FETCH, 0, 5, first, last), source.encode()).header.status == Status.BAD_REQUEST
    assert client.call(Header(Kind.FETCH, 0, 5, 0, 0), b"{").header.status == Status.BAD_REQUEST
    assert asked == [(0, 0, source), (3, 9, source)]


def test_fetch_with_a_long_source_is_refused_in_few_words(served):
    """Sources of 16 MiB waited in the bookie beside the budget of its peers' memory, or were repeated in its log."""
    server, client = served
    server.fetch = lambda *asked: pytest.fail("it is passed on")
    for source in (FetchFrom("b" * (1 << 20), "crc32c"), FetchFrom("b2", "c" * (1 << 20))):
        answer = client.call(Header(Kind.FETCH, 0, 5, 0, 0), source.encode())
        assert answer.header.status == Status.BAD_REQUEST and len(answer.body) < 200


def test_request_without_an_answer_keeps_no_receive_buffer_of_an_ended_connection(served):
    """A fetch that waited kept 15 MiB of an unfinished frame, which the budget did not count any more."""
    server, client = served
    asked = []
    server.fetch = lambda *one: asked.append(one)
    client.send(control_frame(Header(Kind.FETCH, 1, 5, 0, 0), FetchFrom("b2", "crc32c").encode()))
    client.send(add_frame(5, 0, payload=bytes(1 << 20))[:-1])
    await_that(lambda: server._admission.memory.bound > 1 << 20)
    [buffer] = [weakref.ref(connection._receiver) for connection in server.connections]
    client.socket.close()
    await_that(lambda: buffer() is None)
    assert len(asked) == 1


def test_stopping_bookie_ends_its_connections(tmp_path):
    with serving(config(tmp_path)) as (_, address):
        client = Client(address)
        client.add(5, 0)
    with pytest.raises(EOFError):
        client.receive()
    client.close()
