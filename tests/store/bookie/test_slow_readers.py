"""Slow and stalled readers: the memory bound of their answers, and the progress of other readers."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest
import uvloop

from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.holdings.reads import PART_BYTES
from bookspark.store.bookie.serving import read_room
from bookspark.store.bookie.serving.read_room import ReadRoom
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from tests.awaiting import await_that
from tests.store.bookie.kit import Client, Pumped, config, serving

_ENTRIES, _BATCH = 1600, 100
_MIB, _PART = 1 << 20, PART_BYTES


def _fill(directory: Path, *, rewritten: bool) -> None:
    storage = Pumped(config(directory))
    for first in range(0, _ENTRIES, _BATCH):
        storage.add(5, first, first + _BATCH - 1, payload=os.urandom(2000) * 5)
    if rewritten:
        storage.seal()
        assert storage.reclaim() > 0
    storage.storage.close()


def _ask(client: Client, request_id: int, first: int) -> None:
    client.send(control_frame(Header(Kind.READ, request_id, 5, first, _ENTRIES - 1)))


def _take(client: Client, answers: int) -> dict[int, list[int]]:
    """The entry ids of each of the next ``answers`` answers, by request id."""
    found: dict[int, list[int]] = {}
    ended = 0
    while ended < answers:
        frame = client.receive()
        ids = found.setdefault(frame.header.request_id, [])
        if frame.batch is None:
            ended += 1
            assert frame.header.status == Status.OK and frame.header.last_entry_id == ids[-1]
            assert frame.header.value == len(ids)
        else:
            batch = EntryBatch.checked(frame.batch, frame.header, frame.body_crc)
            ids += [entry.entry_id for entry in batch.entries()]
    return found


@pytest.mark.parametrize("rewritten", [True, False], ids=["rewritten", "as they came"])
def test_stalled_readers_share_a_memory_bound_and_get_their_answers_later(tmp_path, rewritten):
    """Each stalled reader held 36 to 40 MB of a rewritten log."""
    _fill(tmp_path, rewritten=rewritten)
    bound, reads = 8 * _MIB, 12
    with serving(config(tmp_path, read_bytes_in_flight_max=bound)) as (server, address):
        room = server._bookie.read_room
        slow = [Client(address) for _ in range(5)]
        for client in slow:
            for request_id in range(reads):
                _ask(client, request_id, 10 * request_id)
        await_that(
            lambda: room.total > 0 and all(one._writing_paused or one._parts_asked for one in server.connections)
        )
        quick = Client(address)
        _ask(quick, 1, 0)
        [ids] = _take(quick, 1).values()
        assert ids == list(range(len(ids))) and len(ids) > 100
        # A part ends with the batch that makes it long enough.
        assert room.total <= bound
        for one in server.connections:
            assert one.unsent_bytes <= 3 * _MIB
        for client in slow:
            for request_id, ids in _take(client, reads).items():
                assert ids == list(range(10 * request_id, 10 * request_id + len(ids))) and len(ids) > 100
        await_that(lambda: room.total == 0)
        for client in (quick, *slow):
            client.close()


def test_answers_complete_although_their_parts_had_to_wait(tmp_path):
    _fill(tmp_path, rewritten=True)
    with serving(config(tmp_path, read_bytes_in_flight_max=1)) as (_, address):
        clients = [Client(address) for _ in range(3)]
        for client in clients:
            for request_id in range(4):
                _ask(client, request_id, 0)
        for client in clients:
            assert all(len(ids) > 100 for ids in _take(client, 4).values())
            client.close()


def test_ended_connection_gives_its_read_room_back(tmp_path):
    _fill(tmp_path, rewritten=True)
    with serving(config(tmp_path, read_bytes_in_flight_max=PART_BYTES)) as (server, address):
        gone = Client(address)
        for request_id in range(12):
            _ask(gone, request_id, 0)
        await_that(lambda: any(one.unsent_bytes for one in server.connections))
        other = Client(address)
        _ask(other, 1, 0)
        gone.close()
        assert len(_take(other, 1)[1]) > 100
        await_that(lambda: server._bookie.read_room.total == 0)
        other.close()


class _Reader:
    def __init__(self, room: ReadRoom, name: str) -> None:
        self.peer = name
        self.unsent_bytes = 0
        self.room = room
        self.ended = False

    def abort(self) -> None:
        self.ended = True
        asyncio.get_running_loop().call_soon(self.room.hold, self, 0)


class _SlowReader(_Reader):
    """A reader that takes a byte between two looks."""

    def __init__(self, room: ReadRoom, name: str) -> None:
        super().__init__(room, name)
        self.looked = asyncio.Event()

    @property
    def unsent_bytes(self) -> int:
        self._unsent_bytes -= 1
        self.looked.set()
        return self._unsent_bytes

    @unsent_bytes.setter
    def unsent_bytes(self, unsent: int) -> None:
        self._unsent_bytes = unsent

    async def is_looked_at(self) -> None:
        self.looked.clear()
        await self.looked.wait()


def _on_a_loop(test):
    uvloop.run(test())


def test_readers_without_room_wait_their_turn():
    async def test() -> None:
        room = ReadRoom(100 * _PART)
        one, other, third = (_Reader(room, name) for name in ("one", "other", "third"))
        begun: list[str] = []

        def begins(reader: _Reader, size: int):
            def begin() -> None:
                begun.append(reader.peer)
                room.hold(reader, room._held.get(reader, 0) + size)

            return begin

        room.ask(one, 1000 * _PART, begins(one, 1000 * _PART))
        assert begun == ["one"], "whoever is alone may always"
        room.ask(one, _PART, begins(one, _PART))
        room.ask(other, 60 * _PART, begins(other, 60 * _PART))
        assert begun == ["one"]
        room.ask(third, _PART, begins(third, _PART))
        assert begun == ["one", "third"], "a first part of the usual size has room at once"
        room.hold(one, 45 * _PART)
        assert begun[2:] == ["one"], "it asked earlier, and half of the room is for second parts"
        room.ask(one, _PART, begins(one, _PART))
        assert begun[3:] == [], "nobody who holds something overtakes who holds nothing"
        room.hold(one, 39 * _PART)
        assert begun[3:] == ["other"] and room.total == 100 * _PART
        room.hold(other, 9 * _PART)
        assert begun[4:] == ["one"] and room.total == 50 * _PART
        room.forget(one)
        assert room.has_room(other, 40 * _PART) and not room.has_room(other, 41 * _PART)

    _on_a_loop(test)


def test_first_parts_pass_a_waiting_long_entry_and_a_gone_reader_blocks_nothing():
    """Both reads waited until another reader gave room back."""

    async def test() -> None:
        room = ReadRoom(100 * _PART)
        full, long, quick = (_Reader(room, name) for name in ("full", "long", "quick"))
        begun: list[str] = []
        room.hold(full, 45 * _PART)
        room.hold(quick, _PART)
        room.ask(long, 60 * _PART, lambda: begun.append("long"))
        room.ask(quick, _PART, lambda: begun.append("quick"))
        assert begun == []
        room.hold(quick, 0)
        assert begun == ["quick"]
        room.hold(quick, _PART)
        room.ask(quick, _PART, lambda: begun.append("quick"))
        room.forget(long)
        assert begun == ["quick", "quick"]

    _on_a_loop(test)


def test_room_freed_while_a_waiting_reader_begins_is_used():
    async def test() -> None:
        room = ReadRoom(100 * _PART)
        full, one, other = (_Reader(room, name) for name in ("full", "one", "other"))
        begun: list[str] = []

        def begin() -> None:
            begun.append("other")
            room.hold(full, 0)

        room.hold(full, 60 * _PART)
        room.hold(one, 40 * _PART)
        room.ask(one, _PART, lambda: begun.append("one"))
        room.ask(other, 10 * _PART, begin)
        room.hold(full, 50 * _PART)
        assert begun == ["other", "one"]

    _on_a_loop(test)


def test_stalled_reader_is_ended_only_if_a_long_entry_needs_its_room(monkeypatch):
    """A reader that takes a little now and then stays."""
    monkeypatch.setattr(read_room, "_LOOK_SECONDS", 0.01)

    async def test() -> None:
        room = ReadRoom(100 * _PART)
        stuck, small, long = (_Reader(room, name) for name in ("stuck", "small", "long"))
        slow = _SlowReader(room, "slow")
        for reader, parts in ((stuck, 60), (small, 10), (slow, 30)):
            reader.unsent_bytes = parts * _PART
            room.hold(reader, reader.unsent_bytes)
        room.ask(slow, _PART, lambda: None)
        for _ in range(5):
            await slow.is_looked_at()
        assert not stuck.ended, "who waits holds something itself"
        begun = asyncio.Event()
        room.ask(long, 50 * _PART, begun.set)
        await begun.wait()
        assert (stuck.ended, small.ended, slow.ended) == (True, False, False)

    _on_a_loop(test)


def test_stalled_reader_is_ended_also_after_a_look_at_which_nobody_waited(monkeypatch):
    monkeypatch.setattr(read_room, "_LOOK_SECONDS", 0.01)

    async def next_look() -> None:
        # Timers of a loop fire in their order, and this one is later than the room's.
        looked = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * read_room._LOOK_SECONDS, looked.set)
        await looked.wait()

    async def test() -> None:
        room = ReadRoom(100 * _PART)
        stuck, gone, long = (_Reader(room, name) for name in ("stuck", "gone", "long"))
        room.hold(stuck, 100 * _PART)
        room.ask(gone, 50 * _PART, lambda: None)
        room.forget(gone)
        await next_look()
        stuck.unsent_bytes = 100 * _PART
        room.ask(long, 50 * _PART, lambda: None)
        await next_look()
        assert stuck.ended

    _on_a_loop(test)


def test_few_ranges_of_a_peer_are_listed_while_their_rows_are_not_durable(tmp_path, monkeypatch):
    """3,000 requests, of 336 KB, took 350 MB at once, and held the loop up for seconds."""
    with serving(config(tmp_path)) as (server, address):
        client, other, begun = Client(address), Client(address), []
        other.add(5, 0)
        monkeypatch.setattr(server.storage, "when_durable", lambda rows, done: begun.append(done))
        client.send(*(control_frame(Header(Kind.RANGES, number, 5, 0)) for number in range(100)))
        await_that(lambda: begun)
        assert other.call(Header(Kind.STATUS, 0)).header.status == Status.OK
        assert len(begun) < 20
        for number in range(100):
            await_that(lambda: begun)
            server._porch._loop.call_soon_threadsafe(begun.pop(0), Status.OK)
            answer = client.receive()
            assert (answer.header.request_id, answer.header.status) == (number, Status.OK) and answer.body
        client.close()
        other.close()


def test_1000_waiting_short_reads_are_answered(tmp_path):
    """Each ended read began the next in a nested call."""
    _fill(tmp_path, rewritten=False)
    files = FaultyFileSystem(RealFileSystem())
    with serving(config(tmp_path), files) as (server, address):
        client = Client(address)
        files.add("open */logs/*.arrows 1.. hold")
        for request_id in range(8):
            client.send(control_frame(Header(Kind.READ, request_id, 5, 0, 0)))
        client.send(1001 * control_frame(Header(Kind.READ, 8, 5, 5000, 5000)))
        files.wait_held()
        [connection] = await_that(lambda: [one for one in server.connections if one._waiting])
        connection._loop.call_soon_threadsafe(files.clear)
        ends = []
        while len(ends) < 8 + 1001:
            if (frame := client.receive()).batch is None:
                ends.append(frame.header.status)
        assert sorted(ends) == [Status.OK] * 8 + [Status.NO_SUCH_ENTRY] * 1001
        client.close()


def test_long_part_waits_behind_the_first_reader_without_any_room():
    """Otherwise long parts that fit into the free room would go on taking the room that the first reader needs."""

    async def test() -> None:
        room, begun = ReadRoom(8 * _PART), []
        first, behind, holder = (_Reader(room, name) for name in ("first", "behind", "holder"))
        room.hold(holder, 7 * _PART)
        room.ask(first, 6 * _PART, lambda: begun.append("first"))
        room.ask(behind, 2 * _PART, lambda: begun.append("behind"))
        room.hold(holder, 5 * _PART)
        assert begun == []
        room.hold(holder, 0)
        assert begun[0] == "first"

    _on_a_loop(test)
