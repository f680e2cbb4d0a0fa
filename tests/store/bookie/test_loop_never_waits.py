"""The event loop never waits for a disk: other clients are served while a disk operation is held."""

from __future__ import annotations

import pytest

from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Flag, Header, Kind, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.awaiting import await_that
from tests.store.bookie.kit import KEY, Client, add_frame, config, serving

RECOVERY = int(Flag.RECOVERY)
FENCE = int(Flag.FENCE)
HERE, SLOW = 4, 5
"""Ledgers of the first and of the second directory."""


@pytest.fixture
def files():
    return FaultyFileSystem(RealFileSystem())


@pytest.fixture
def bookie(tmp_path, files):
    settings = config(tmp_path / "a", tmp_path / "b")
    with serving(settings, files) as (_, address):
        client = Client(address)
        for ledger_id in (HERE, SLOW):
            assert client.add(ledger_id, 0, 3).status == Status.OK
        client.close()
    with serving(settings, files) as (server, address):
        yield server, address
        files.clear()


@pytest.fixture
def clients(bookie):
    _, address = bookie
    slow, other = Client(address), Client(address)
    assert len(other.read(HERE, 0, 3)[0]) == 4
    yield slow, other
    slow.close()
    other.close()


def hold(files):
    for kind in ("open", "read", "read_cached"):
        files.add(f"{kind} */b/logs/*.arrows 1.. hold")


def others_are_served(other):
    """Reads from the other disk, a fence, an add, the status and the list of logs all succeed."""
    assert len(other.read(HERE, 0, 3)[0]) == 4
    assert other.read(HERE, 0, 0, flags=FENCE, master_key=KEY)[1].status == Status.OK
    assert other.add(6, 0).status == Status.OK
    assert other.status().ledgers >= 2
    assert other.call(Header(Kind.ENTRY_LOGS, 0)).header.status == Status.OK


def test_loop_serves_others_while_a_log_is_opened(files, clients):
    slow, other = clients
    hold(files)
    for request_id in range(6):
        slow.send(control_frame(Header(Kind.READ, request_id, SLOW, 0, 3)))
    files.wait_held()
    others_are_served(other)
    files.clear()
    ends = [slow.receive().header for _ in range(12)]
    assert [end.status for end in ends if end.value == 4] == [Status.OK] * 6


@pytest.mark.parametrize("flags", [0, RECOVERY])
def test_loop_serves_others_while_a_duplicate_add_is_compared(files, bookie, clients, flags):
    server, _ = bookie
    slow, other = clients
    hold(files)
    slow.send(
        add_frame(SLOW, 0, 3, flags=flags, request_id=1),
        add_frame(SLOW, 2, 3, flags=flags, request_id=2, payload=b"another"),
        add_frame(SLOW, 4, flags=flags, request_id=3),
    )
    files.wait_held()
    others_are_served(other)
    assert server.storage.bytes_in_flight > 0, "what waits counts towards the back-pressure"
    assert server.storage.holdings.last_entry_id(SLOW) == 3, "later adds of the ledger wait behind"
    files.clear()
    answers = {answer.header.request_id: answer.header.status for answer in (slow.receive() for _ in range(3))}
    assert answers == {1: Status.OK, 2: Status.CONFLICT, 3: Status.OK}
    await_that(lambda: server.storage.bytes_in_flight == 0)


def test_fence_overtakes_adds_under_comparison_and_refuses_them(files, clients):
    slow, other = clients
    hold(files)
    slow.send(add_frame(SLOW, 0, 3, request_id=1), add_frame(SLOW, 4, request_id=2))
    files.wait_held()
    assert other.call(Header(Kind.READ_LAC, 0, SLOW, flags=FENCE, master_key=KEY)).header.status == Status.OK
    files.clear()
    assert [slow.receive().header.status for _ in range(2)] == [Status.FENCED] * 2
    assert other.read(SLOW, 0, 9)[1].last_entry_id == 3, "a refused add leaves no trace"


@pytest.mark.parametrize("flags", [0, RECOVERY])
def test_unreadable_copy_under_comparison_is_lost_and_replaced(files, bookie, clients, flags):
    server, _ = bookie
    slow, _ = clients
    files.add("read */b/logs/*.arrows 1.. io-error")
    files.add("read_cached */b/logs/*.arrows 1.. io-error")
    assert slow.add(SLOW, 1, 3, flags=flags, payload=b"another").status == Status.OK
    assert server.storage.status().lost_copies == 1
    assert server.storage.bytes_in_flight == 0 and not server.storage._compared
    files.clear()
    found, end = slow.read(SLOW, 1, 3)
    assert (end.status, end.last_entry_id) == (Status.OK, 3)
    assert [entry.payload[9:] for entry in found] == [b"another"] * 3
    assert slow.read(SLOW, 0, 0)[1].status == Status.LOST, "it was in the same batch"
    assert slow.read(SLOW, 4, 4)[1].status == Status.NO_SUCH_ENTRY
