"""Stories of what waits: for a peer, for the disk, for room, for a LAC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from bookspark.bookie.commit.commit_thread import CommitThread
from bookspark.bookie.serving.poll_timers import PollTimers
from bookspark.bookie.serving.read_room import ReadRoom
from bookspark.bookie.serving.server import BookieServer
from bookspark.wire.frames import control_frame
from bookspark.wire.header import Flag, Header, Kind
from tests.bookie.kit import KEY, OTHER_KEY, add_frame
from tests.bookie.told.connections import served
from tests.bookie.told.loop import Numbered, StoryLoop, ToldPeer, pass_by, run_on_loop, turns
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling

_FENCE, _ENTRY, _SPARSE, _VOLATILE, _RECOVERY = map(
    int, (Flag.FENCE, Flag.ENTRY, Flag.SPARSE, Flag.VOLATILE, Flag.RECOVERY)
)


def story_a_peer_that_does_not_read(telling: Telling) -> None:
    async def scene(run: ToldStorage, server: BookieServer) -> None:
        room = server._bookie.read_room
        a, b = ToldPeer(telling, server, "a"), ToldPeer(telling, server, "b", "10.0.0.2")
        telling.muted = True
        await a.hello()
        await b.hello()
        for n in range(12):
            await a.send(add_frame(5, n, request_id=n, payload=bytes([n]) * 1500))
        telling.muted = False

        def facts() -> None:
            one = a.connection
            telling.line(
                f"facts {one.is_served} {one.unsent_bytes} {len(one._held)} {len(one._parts)} {one._parts_asked} "
                f"{one._part_bytes} {room.total} {room.waiting}"
            )

        facts()
        a.transport.unsent = 5000
        telling.line("a takes nothing")
        a.connection.pause_writing()
        facts()
        await a.ask(Kind.READ, 5, 0, 11)
        await a.ask(Kind.STATUS)
        await a.send(add_frame(5, 20, request_id=20))
        facts()
        await b.ask(Kind.READ, 5, 0, 11)
        telling.line("a takes all")
        a.transport.unsent = 0
        a.connection.resume_writing()
        await turns(20)
        facts()
        run.storage.files.clear()
        telling.line("four reads at once")
        await a.send(*(control_frame(Header(Kind.READ, 50 + n, 5, n, 11)) for n in range(4)), count=0)
        facts()
        await turns(40)
        facts()
        run.storage.files.clear()
        await a.send(*(control_frame(Header(Kind.READ, 60 + n, 5, n, 11)) for n in range(4)), count=1)
        a.transport.unsent = 9000
        a.connection.pause_writing()
        await turns(10)
        facts()
        a.transport.closing = True
        a.connection.resume_writing()
        a.transport.closing = False
        await turns(40)
        facts()
        await a.send(*(control_frame(Header(Kind.READ, 70 + n, 5, n, 11)) for n in range(4)), count=1)
        a.connection.pause_writing()
        await a.lost()
        await b.ask(Kind.READ, 5, 3, 11)
        facts()
        c = ToldPeer(telling, server, "c")
        await c.hello()
        c.connection.goes_on_over(c.transport)
        await c.send(*(control_frame(Header(Kind.READ, 80 + n, 5, n, 11)) for n in range(4)), b"garbage!", count=0)
        await turns(30)
        c.connection.pause_writing()
        c.connection.abort()
        c.connection.acknowledge(7)
        c.connection.send(b"x")
        c.connection.flush()
        c.connection.when_it_takes(1, lambda size: telling.line("never"))
        telling.line(f"takes {c.connection.takes(1)} {b.connection.takes(1)} {b.connection.takes(10**9)}")
        await c.lost()

    served(telling, scene, read_bytes_in_flight_max=12_000)


def story_more_than_the_disk_takes(telling: Telling) -> None:
    async def scene(run: ToldStorage, server: BookieServer) -> None:
        a, b = ToldPeer(telling, server, "a"), ToldPeer(telling, server, "b")
        await a.hello()
        await b.hello()
        CommitThread.held = True
        for n in range(5):
            telling.line(f"add {n}")
            await a.send(add_frame(5, n, request_id=n))
            telling.line(f"in flight {run.storage.bytes_in_flight} paused {server._admission.paused}")
        await b.send(add_frame(6, 0, request_id=0))
        run.commit()
        await turns()
        CommitThread.held = False
        await b.send(*(add_frame(6, n, request_id=n) for n in range(1, 4)))
        telling.line("stops")
        server._admission.stop_reading()
        await b.send(*(add_frame(6, n, request_id=n) for n in range(4, 8)))
        ending = asyncio.ensure_future(server._admission.end_all(3.0))
        await turns()
        await a.lost()
        await pass_by(4)
        telling.line(f"ended {ending.done()}")
        await b.lost()
        await server._admission.end_all(3.0)
        telling.line(f"connections {len(server.connections)}")

    served(telling, scene, request_bytes_in_flight_max=2000, requests_in_flight_max=4)


def story_a_server_stops(telling: Telling) -> None:
    async def scene(run: ToldStorage, server: BookieServer) -> None:
        admission = server._admission
        a, b = ToldPeer(telling, server, "a"), ToldPeer(telling, server, "b")
        await a.hello()
        await b.hello()
        await a.send(add_frame(5, 0, request_id=0))
        CommitThread.held = True
        await a.send(add_frame(5, 1, request_id=1))
        await b.ask(Kind.READ_LAC, 5, 9, limit=100_000)

        async def closes() -> None:
            telling.line("  = the porch is closed")

        await server.stop()
        telling.line("a server that never started has stopped")
        server._porch = SimpleNamespace(close=closes)
        stopping = asyncio.ensure_future(server.stop())
        await turns()
        telling.line(f"reads nothing more: {admission.paused}")
        await a.send(add_frame(5, 2, request_id=2))
        CommitThread.held = False
        run.commit()
        await turns()
        await a.lost()
        await pass_by(9)
        telling.line(f"stopped {stopping.done()}")
        await pass_by(2)
        telling.line(f"stopped {stopping.done()} {server._porch}")
        await b.lost()
        await pass_by(11)
        telling.line(f"stopped {stopping.done()} {server._porch}")
        try:
            run.storage.disk_threads.run(1 << 32, lambda: None)
        except RuntimeError as error:
            telling.line(f"  = {error}")
        await server.stop()

    served(telling, scene)


def story_a_server_stops_whose_disk_does_not_answer(telling: Telling) -> None:
    async def scene(run: ToldStorage, server: BookieServer) -> None:
        a = ToldPeer(telling, server, "a")
        await a.hello()
        CommitThread.held = True
        await a.send(add_frame(5, 1, request_id=1))

        async def closes() -> None:
            telling.line("  = the porch is closed")

        server._porch = SimpleNamespace(close=closes)
        stopping = asyncio.ensure_future(server.stop())
        for _ in range(6):
            await pass_by(5)
            telling.line(f"{telling.now:.1f} stopped {stopping.done()}")
        CommitThread.held = False

    served(telling, scene)


def story_long_polls_of_connections(telling: Telling) -> None:
    async def scene(run: ToldStorage, server: BookieServer) -> None:
        a, b = ToldPeer(telling, server, "a"), ToldPeer(telling, server, "b")
        await a.hello()
        await b.hello()
        await a.send(add_frame(5, 0, request_id=0))
        await a.ask(Kind.READ_LAC, 5, -1, limit=1000)
        await a.ask(Kind.READ_LAC, 5, 0, limit=1000)
        await a.ask(Kind.READ_LAC, 5, 1, limit=1000, flags=_ENTRY)
        await b.ask(Kind.READ_LAC, 5, 1, limit=400_000, flags=_ENTRY)
        await b.ask(Kind.READ_LAC, 77, 0, limit=20)
        await b.ask(Kind.READ_LAC, 5, 1, limit=10, master_key=OTHER_KEY)
        await a.ask(Kind.READ_LAC, 5, 9, limit=1000)
        await a.send(add_frame(5, 1, request_id=1, last_add_confirmed=0))
        await a.send(add_frame(5, 2, request_id=2, last_add_confirmed=1))
        await pass_by(0.5)
        telling.line("half a second later")
        await pass_by(1)
        telling.line("a second later")
        await b.ask(Kind.READ_LAC, 5, 9, limit=400_000)
        await b.ask(Kind.READ_LAC, 5, 9, limit=500)
        await b.lost()
        await pass_by(310)
        await a.ask(Kind.READ_LAC, 5, 9, limit=400_000)
        await pass_by(299)
        telling.line("after 299 s")
        await pass_by(2)
        telling.line(f"polls {run.storage.long_polls._ledgers} timers {server._bookie.poll_timers._by_time}")
        await a.ask(Kind.WRITE_LAC, 5, last_add_confirmed=8, master_key=KEY)
        telling.line(f"under way {a.connection._dispatch._answers.under_way}")
        await pass_by(1)
        with patch.object(run.storage, "last_entry_id", side_effect=[None, None, 3]):
            await a.ask(Kind.READ_LAC, 5, 0)

    served(telling, scene, requests_in_flight_max=3)


def story_timers_of_long_polls(telling: Telling) -> None:
    async def story(loop: StoryLoop) -> None:
        loop.set_exception_handler(
            lambda _, context: telling.line(f"  ! {context['message']}: {context['exception']!r}")
        )
        timers, told = PollTimers(), telling.line

        def fails() -> None:
            raise ValueError("on purpose")

        for number, seconds in enumerate((1.0, 0.5, 0.5, 0.5, 0.5, 0.501, 2.0, 0.0)):
            at, _ = timers.add(seconds, lambda number=number: told(f"  = {number} at {telling.now:.3f}"))
            told(f"add {number} for {at} waits for {timers._timer_at}")
        removed = timers.add(0.7, lambda: told("never"))
        timers.remove(removed)
        timers.remove(removed)
        timers.add(0.3, fails)
        for seconds in (0.01, 0.3, 0.3, 1.0, 1.0):
            await pass_by(seconds)
            told(
                f"it is {telling.now:.3f}: {len(timers._times)} times, {sum(map(len, timers._by_time.values()))} polls, "
                f"timer {timers._timer is not None}"
            )
        timers.add(0.1, lambda: timers.add(0.1, lambda: told("  = the second one")) and None)
        await pass_by(0.3)

    with patch("bookspark.bookie.serving.poll_timers._ENDED_A_TURN", 2):
        run_on_loop(telling, story)


def story_room_for_reads(telling: Telling) -> None:
    async def story(loop: StoryLoop) -> None:
        room, told = ReadRoom(20_000), telling.line

        def reader(name: str) -> Any:
            return Numbered(number=ord(name), peer=name, unsent_bytes=0, abort=lambda: told(f"  = {name} is aborted"))

        readers = {name: reader(name) for name in "abcd"}

        def ask(name: str, size: int, then: Callable[[], None] = lambda: None) -> None:
            told(f"{name} asks {size}")

            def begin() -> None:
                told(f"  = {name} begins {size}")
                then()

            room.ask(readers[name], size, begin)
            facts()

        def hold(name: str, size: int) -> None:
            told(f"{name} holds {size}")
            room.hold(readers[name], size)
            facts()

        def facts() -> None:
            fits = [(name, room.has_room(one, 3000), room.has_room(one, 9000)) for name, one in readers.items()]
            told(
                f"    total {room.total} waiting {room.waiting} roomy {room.is_roomy(2000)} {room.is_roomy(20000)} {fits}"
            )

        facts()
        ask("a", 3000)
        hold("a", 3000)
        ask("a", 7000)
        ask("a", 7001)
        hold("a", 12_000)
        ask("b", 3000)
        hold("b", 3000)
        ask("b", 1)
        ask("c", 9000)
        ask("d", 5001)
        ask("d", 3000)
        ask("a", 10)
        hold("b", 2000)
        for unsent in (100, 100, 50, 60, 60):
            readers["a"].unsent_bytes = unsent
            readers["b"].unsent_bytes = 10
            await pass_by(31)
            told(f"31 s later, with {unsent} unsent")
        told("a is forgotten")
        room.forget(readers["a"])
        facts()
        hold("c", 9000)
        hold("d", 8001)
        ask("b", 4000, lambda: hold("b", 1000))
        hold("b", 0)
        hold("c", 0)
        for name in "bd":
            told(f"{name} is forgotten")
            room.forget(readers[name])
            facts()
        await pass_by(100)
        readers["a"].unsent_bytes = 70
        hold("a", 19_000)
        ask("b", 9000)
        await pass_by(1)
        hold("a", 0)
        hold("b", 0)
        await pass_by(100)
        hold("a", 19_000)
        ask("b", 9000)
        await pass_by(1)
        telling.line("nobody was looked at twice yet")
        await pass_by(31)
        room.forget(readers["b"])
        hold("a", 0)
        await pass_by(100)
        ask("a", 50_000)
        hold("a", 50_000)
        ask("b", 40_000)
        room.forget(readers["b"])
        await pass_by(31)
        facts()

    with patch("bookspark.bookie.serving.read_room.PART_BYTES", 3000):
        run_on_loop(telling, story)
