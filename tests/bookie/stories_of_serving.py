"""Stories of connections to a bookie: what comes in, what is answered, and when nothing more is read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from bookspark.bookie.commit.commit_thread import CommitThread
from bookspark.bookie.serving.admission import Admission
from bookspark.bookie.serving.entry_reads import EntryReads
from bookspark.bookie.serving.poll_timers import PollTimers
from bookspark.bookie.serving.porch import Porch, listening_sockets
from bookspark.bookie.serving.read_room import ReadRoom
from bookspark.bookie.serving.server import BookieServer
from bookspark.wire.entry_batch import encode_entries
from bookspark.wire.frames import control_frame
from bookspark.wire.header import PROTOCOL_VERSION, Flag, Header, Kind, Status
from bookspark.wire.messages import FetchFrom, Hello
from bookspark.wire.security import proof
from tests.bookie.kit import KEY, OTHER_KEY, add_frame, entries
from tests.bookie.telling import Telling, ToldStorage
from tests.bookie.telling_loop import Numbered, StoryLoop, ToldPeer, run_on_loop, told_server, turns

SMALL = {
    "serving.entry_reads.PART_BYTES": 3000, "serving.read_room.PART_BYTES": 3000, "serving.entry_reads.READ_BYTES_MAX": 40_000,
    "serving.connection._LARGE_PART_BYTES": 9000, "serving.entry_reads._CARRIED_BYTES_MAX": 2000, "serving.connection._JOINED_BYTES_MAX": 2500,
    "serving.connection._READS_MAX": 2, "serving.connection._PARTS_MAX": 2, "serving.dispatch._BEFORE_HELLO_MAX": 3, "serving.listings.ROWS_MAX": 2,
    "serving.poll_timers._ENDED_A_TURN": 2,
}  # fmt: skip
_FENCE, _ENTRY, _SPARSE, _VOLATILE, _RECOVERY = map(
    int, (Flag.FENCE, Flag.ENTRY, Flag.SPARSE, Flag.VOLATILE, Flag.RECOVERY)
)

Scene = Callable[[ToldStorage, BookieServer], Awaitable[None]]


def served(telling: Telling, scene: Scene, *directories: str, **options: Any) -> None:
    """Have a scene with a bookie of these options."""

    async def story(loop: StoryLoop) -> None:
        run = ToldStorage(telling, *(directories or ("/a",)), loop=loop, **options)
        telling.muted = True
        run.boot()
        telling.muted = False
        await scene(run, told_server(telling, run))

    with ExitStack() as stack:
        for name, value in SMALL.items():
            stack.enter_context(patch(f"bookspark.bookie.{name}", value))
        for function in (EntryReads._plan, EntryReads._fetch_cached):
            stack.enter_context(patch.object(function, "__defaults__", (3000,)))
        run_on_loop(telling, story)


def story_greetings(telling: Telling) -> None:
    async def scene(run: ToldStorage, server: BookieServer) -> None:
        a = ToldPeer(telling, server, "a")
        await a.ask(Kind.STATUS)
        await a.send(add_frame(5, 0, request_id=9))
        await a.hello(value=PROTOCOL_VERSION - 1)
        await a.ask(Kind.STATUS)
        telling.now += 11
        await turns()
        await a.lost()
        b = ToldPeer(telling, server, "b")
        await b.hello(body=b"{")
        await b.hello(value=PROTOCOL_VERSION + 1)
        await b.hello(body=Hello(client="x" * 200).encode())
        telling.line(f"peer {b.connection.peer}")
        await b.hello(body=Hello().encode())
        await b.send(b"GET / HTTP")
        await b.send(b"more")
        await b.ask(Kind.STATUS)
        await asyncio.sleep(11)
        await b.lost()
        c = ToldPeer(telling, server, "c")
        c.connection.abort()
        c.connection.abort()
        await c.hello()
        await c.lost()
        d = ToldPeer(telling, server, "d")
        await d.send(control_frame(Header(Kind.HELLO, 1, value=PROTOCOL_VERSION), b"{}" + b" " * 5000))
        d.connection.close()
        telling.line(f"admitted {len(server.connections)}")

    served(telling, scene)
    telling.section("with a secret")

    async def secret(run: ToldStorage, server: BookieServer) -> None:
        server._bookie = bookie = server._bookie._replace(secrets=lambda: (b"other", b"secret"))
        challenges = iter(range(100))
        with patch("bookspark.bookie.serving.dispatch.new_challenge", lambda: bytes([next(challenges)]) * 32):
            a = ToldPeer(telling, server, "a")
            await a.hello()
            await a.hello(body=Hello(client="a", proof=proof(b"wrong", bytes(32), bookie.bookie_id)).encode())
            await a.hello(body=Hello(client="a", proof=proof(b"secret", bytes(32), bookie.bookie_id)).encode())
            await a.lost()
            b = ToldPeer(telling, server, "b")
            await b.hello()
            await b.hello(body=Hello(client="b", proof=proof(b"secret", bytes([3]) * 32, bookie.bookie_id)).encode())
            await b.ask(Kind.STATUS)
            await b.hello()

    served(telling, secret)


def story_requests_of_each_kind(telling: Telling) -> None:
    async def scene(run: ToldStorage, server: BookieServer) -> None:
        a = ToldPeer(telling, server, "a")
        await a.hello()
        for ledger_id in (4, 5):
            telling.line(f"adds of {ledger_id}")
            await a.send(*(add_frame(ledger_id, n, request_id=100 + n, last_add_confirmed=n - 1) for n in range(3)))
        await a.send(
            add_frame(4, 0, request_id=110, payload=b"other"), add_frame(4, 3, request_id=111, master_key=OTHER_KEY)
        )
        await a.send(
            add_frame(4, 3, request_id=112),
            add_frame(6, 0, request_id=113, flags=_VOLATILE, value=0, limit=1 << 20 | 1 << 10),
        )
        for header in (
            Header(Kind.ADD, 114, 4, -1, -1), Header(Kind.ADD, 115, -1, 0, 0), Header(Kind.ADD, 116, 1 << 62, 0, 0),
            Header(Kind.ADD, 117, 4, 9, 9, flags=_VOLATILE, value=5, limit=3), Header(Kind.READ, 118, 4, 9, 9), Header(Kind.ADD, 119, 4, 9, 9),
        ):  # fmt: skip
            first = max(header.first_entry_id, 0)
            telling.line(f"batch of {header[:5]} {header.flags}")
            await a.send(
                encode_entries(
                    header._replace(first_entry_id=first, last_entry_id=first),
                    entries(max(header.ledger_id, 0), first, first),
                )
            )
        await a.ask(Kind.ADD, 4, 9, 9)
        await a.ask(Kind.WRITE_LAC, 4, last_add_confirmed=3, last_add_fully_replicated=2, master_key=KEY)
        await a.ask(Kind.WRITE_LAC, 4, last_add_confirmed=-2, master_key=KEY)
        await a.ask(Kind.WRITE_LAC, 4, last_add_confirmed=-1, master_key=KEY)
        await a.ask(Kind.WRITE_LAC, 4, last_add_confirmed=9, master_key=OTHER_KEY)
        await a.ask(Kind.SYNC, 6, value=0, limit=1 << 20 | 1 << 10, master_key=KEY)
        await a.ask(Kind.SYNC, 6, value=0, limit=3, master_key=KEY)
        for value, limit in ((0, 0), (1, 2), (0, 2)):
            await a.ask(Kind.RANGES, 4, 0, value=value, limit=limit)
            await a.ask(Kind.RANGES, 4, 2, value=value, limit=limit)
        await a.ask(Kind.RANGES, 4, -5, value=1)
        run.fail("sync *.arrows 1 io-error")
        await a.ask(Kind.STATUS)
        for start in (0, 1, 2, 65):
            await a.ask(Kind.ENTRY_LOGS, value=start)
        for ledger_id, limit in ((0, 0), (4, 1), (-1, 0)):
            await a.ask(Kind.LIMBO, ledger_id, limit=limit)
        await a.ask(Kind.SWITCH_READ_ONLY, value=1)
        await a.send(add_frame(4, 20, request_id=120))
        await a.ask(Kind.SWITCH_READ_ONLY, value=0)
        await a.ask(Kind.COLLECT)
        await a.ask(Kind.COLLECT)
        await a.ask(99)
        source = FetchFrom("b2", "crc32c").encode()
        await a.ask(Kind.FETCH, 4, 0, 1, source)
        asked: list[Any] = []
        server.fetch = lambda header, source, done: asked.append((header, source, done))
        for first, last, body in ((0, 1, source), (-1, 1, source), (2, 1, source), (0, 0, b"{")):
            await a.ask(Kind.FETCH, 4, first, last, body)
        for header, told_source, done in asked:
            telling.line(f"fetch {header[2:5]} {told_source}")
            done(Status.LIMBO, 0, 77, "it is in limbo")
        await turns()
        for kind in (
            Kind.READ,
            Kind.READ_LAC,
            Kind.WRITE_LAC,
            Kind.SYNC,
            Kind.RANGES,
            Kind.LIMBO,
            Kind.FETCH,
            Kind.STATUS,
            Kind.ENTRY_LOGS,
        ):
            await a.ask(kind, -1)
            await a.ask(kind, -2)
            await a.ask(kind, 1 << 62)
        with patch.object(run.storage, "sync", side_effect=ValueError("on purpose")):
            await a.ask(Kind.SYNC, 6, value=0, limit=1 << 20 | 1 << 10, master_key=KEY)
        telling.line(
            f"traffic {sorted((str(kind), status, n) for (kind, status), n in run.storage.traffic.answers.items())}"
        )
        telling.line(f"refused {server._bookie.refusals.count}")
        telling.line(f"status {server.status()}")
        server.healing_status, server.keeper, server.version = lambda: None, lambda: ("keeper", 3.0), "1.2"  # type: ignore
        telling.line(f"status {server.status()}")
        run.state()

    served(telling, scene)


def story_reads_of_entries(telling: Telling) -> None:
    async def scene(run: ToldStorage, server: BookieServer) -> None:
        a = ToldPeer(telling, server, "a")
        telling.muted = True
        await a.hello()
        for n in range(6):
            await a.send(add_frame(4, n, request_id=n, last_add_confirmed=n - 1, last_add_fully_replicated=n - 2))
            await a.send(add_frame(5, n, request_id=n, payload=bytes([n]) * 1500))
        await a.send(add_frame(5, 6, request_id=6, payload=bytes(7000)), add_frame(4, 8, 11, request_id=8))
        await turns()
        telling.muted = False
        for ledger_id in (4, 5, 9):
            for first, last, fields in (
                (0, 5, {}), (0, 20, {}), (0, 20, {"flags": _SPARSE}), (2, 3, {"limit": 10}), (2, 9, {"limit": 2000}), (6, 6, {}), (9, 10, {}),
                (3, 2, {}), (-1, 2, {}), (0, 1, {"master_key": OTHER_KEY}), (0, 1, {"flags": _FENCE, "master_key": OTHER_KEY}),
            ):  # fmt: skip
                await a.ask(Kind.READ, ledger_id, first, last, **fields)
        for ledger_id in (4, 5, 9):
            for first, fields in ((0, {}), (0, {"flags": _ENTRY}), (5, {"flags": _ENTRY}), (6, {"flags": _ENTRY}), (0, {"master_key": OTHER_KEY}),
                (0, {"flags": _FENCE, "master_key": OTHER_KEY})):  # fmt: skip
                await a.ask(Kind.READ_LAC, ledger_id, first, **fields)
        run.storage.files.clear()
        await a.ask(Kind.READ, 5, 0, 6)
        await a.ask(Kind.READ, 5, 0, 6)
        run.fail("read_cached *.arrows 1.. io-error")
        await a.ask(Kind.READ, 5, 0, 6)
        run.fail("read_cached *.arrows 1.. io-error", "read *.arrows 1.. too-many-files")
        await a.ask(Kind.READ, 5, 0, 6)
        run.fail("read_cached *.arrows 1.. io-error", "read *.arrows 1.. io-error")
        await a.ask(Kind.READ, 5, 1, 6)
        await a.ask(Kind.READ, 5, 0, 6)
        run.fail()
        with patch.object(run.storage.disk_threads, "run", side_effect=RuntimeError("no thread")):
            run.storage.files.clear()
            await a.ask(Kind.READ, 4, 0, 6)
        with patch.object(run.storage, "plan_read", side_effect=ValueError("on purpose")):
            await a.ask(Kind.READ, 4, 0, 6)
        with patch.object(run.storage.files, "fetch", side_effect=ValueError("on purpose")):
            await a.ask(Kind.READ, 4, 0, 6)
        telling.line(
            f"under way {a.connection._reads} {a.connection._parts_asked} {a.connection._part_bytes} {server._bookie.read_room.total}"
        )
        for kind in (Kind.READ, Kind.READ_LAC):
            await a.ask(kind, 4, 0, 5, flags=_FENCE, master_key=KEY)
            await a.ask(kind, 30, 0, 5, flags=_FENCE, master_key=KEY)
        await a.send(add_frame(4, 30, request_id=30), add_frame(4, 30, request_id=31, flags=_RECOVERY))
        traffic = run.storage.traffic
        telling.line(f"traffic {traffic.entries_out} {traffic.bytes_out} {traffic.fences}")
        run.state()

    served(telling, scene)


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
                f"facts {one.is_served} {one.unsent_bytes} {len(one._held)} {len(one._parts)} {one._parts_asked} {one._part_bytes} {room.total} {room.waiting}"
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
        c.connection.goes_on_over(c.transport)  # type: ignore[arg-type]
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
        CommitThread.held = True  # type: ignore[attr-defined]
        for n in range(5):
            telling.line(f"add {n}")
            await a.send(add_frame(5, n, request_id=n))
            telling.line(f"in flight {run.storage.bytes_in_flight} paused {server._admission.paused}")
        await b.send(add_frame(6, 0, request_id=0))
        run.commit()
        await turns()
        CommitThread.held = False  # type: ignore[attr-defined]
        await b.send(*(add_frame(6, n, request_id=n) for n in range(1, 4)))
        telling.line("stops")
        server._admission.stop_reading()
        await b.send(*(add_frame(6, n, request_id=n) for n in range(4, 8)))
        ending = asyncio.ensure_future(server._admission.end_all(3.0))
        await turns()
        await a.lost()
        await asyncio.sleep(4)
        telling.line(f"ended {ending.done()}")
        await b.lost()
        await server._admission.end_all(3.0)
        telling.line(f"connections {len(server.connections)}")

    served(telling, scene, request_bytes_in_flight_max=2000, requests_in_flight_max=4)


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
        await asyncio.sleep(0.5)
        telling.line("half a second later")
        await asyncio.sleep(1)
        telling.line("a second later")
        await b.ask(Kind.READ_LAC, 5, 9, limit=400_000)
        await b.ask(Kind.READ_LAC, 5, 9, limit=500)
        await b.lost()
        await asyncio.sleep(310)
        await a.ask(Kind.READ_LAC, 5, 9, limit=400_000)
        await asyncio.sleep(299)
        telling.line("after 299 s")
        await asyncio.sleep(2)
        telling.line(f"polls {run.storage.long_polls._ledgers} timers {server._bookie.poll_timers._by_time}")
        await a.ask(Kind.WRITE_LAC, 5, last_add_confirmed=8, master_key=KEY)
        telling.line(f"under way {a.connection._dispatch._answers.under_way}")  # type: ignore[attr-defined]
        await asyncio.sleep(1)
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
            at, _ = timers.add(seconds, lambda number=number: told(f"  = {number} at {telling.now:.3f}"))  # type: ignore[misc]
            told(f"add {number} for {at} waits for {timers._timer_at}")
        removed = timers.add(0.7, lambda: told("never"))
        timers.remove(removed)
        timers.remove(removed)
        timers.add(0.3, fails)
        for seconds in (0.01, 0.3, 0.3, 1.0, 1.0):
            await asyncio.sleep(seconds)
            told(
                f"it is {telling.now:.3f}: {len(timers._times)} times, {sum(map(len, timers._by_time.values()))} polls, timer {timers._timer is not None}"
            )
        timers.add(0.1, lambda: timers.add(0.1, lambda: told("  = the second one")) and None)
        await asyncio.sleep(0.3)

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
            await asyncio.sleep(31)
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
        await asyncio.sleep(100)
        ask("a", 50_000)
        hold("a", 50_000)
        ask("b", 40_000)
        room.forget(readers["b"])
        await asyncio.sleep(31)
        facts()

    with patch("bookspark.bookie.serving.read_room.PART_BYTES", 3000):
        run_on_loop(telling, story)


def story_admissions(telling: Telling) -> None:
    async def story(loop: StoryLoop) -> None:
        told = telling.line
        storage = Numbered(
            number=0,
            bytes_in_flight=0,
            when_below=lambda bytes_, then: (told(f"  = when below {bytes_}"), waiting.append(then)),
        )
        waiting: list[Callable[[], None]] = []
        admission = Admission(storage, 1000)  # type: ignore[arg-type]
        numbers = iter(range(1000))

        def one(origin: str, heard: int = 0, served: bool = False) -> Any:
            number = next(numbers)
            name = f"{origin}#{number}"
            return Numbered(
                number=number, origin=origin, until=loop.time() + 5, heard=heard, is_served=served, end=lambda: told(f"  = {name} is ended"),
                abort=lambda: told(f"  = {name} is aborted"), close=lambda: told(f"  = {name} is closed"),
                adjust_reading=lambda: told(f"  = {name} reads: {not admission.paused}"),
            )  # fmt: skip

        def room(origin: str) -> bool:
            there = admission.make_room(origin)
            told(
                f"room for {origin}: {there} strangers {len(admission.strangers)} connections {len(admission.connections)}"
            )
            return there

        def arrive(origin: str) -> Any:
            stranger = one(origin)
            if room(origin):
                admission.arrived(stranger)
            return stranger

        told(f"most {admission.connections_max() > 0}")
        with patch.object(Admission, "connections_max", lambda self: 20):
            for number in range(18):
                arrive(f"10.0.0.{number % 3}")
                await asyncio.sleep(0.3 if number < 4 else 0.0)
            await asyncio.sleep(4.0)
            told(f"4 s later: {len(admission.strangers)}")
            await asyncio.sleep(2.0)
            told(f"2 s later: {len(admission.strangers)}")
            for number in range(20):
                stranger = arrive(f"10.0.0.{number % 3}")
                admission.greeted(stranger, one(stranger.origin, heard=number))
            arrive("10.0.0.1")
            arrive("10.0.0.9")
            arrive("10.0.0.9")
            await asyncio.sleep(0.2)
            arrive("10.0.0.9")
            await asyncio.sleep(0.2)
            arrive("10.0.0.0")
            await asyncio.sleep(11)
            arrive("10.0.0.8")
        told(f"shared {admission.is_shared}")
        few = Admission(storage, 1000)  # type: ignore[arg-type]
        first, second = one("a"), one("b")
        for connection in (first, second):
            told(f"shared {few.is_shared}")
            few.greeted(one("x"), connection)
        for served in (False, True):
            few.turn_to(first)
            told(f"shared {few.is_shared}")
            await asyncio.sleep(1.0)
            second.is_served = served
            told(f"shared {few.is_shared} last {few.heard_last is first}")
        first.is_served, second.is_served = True, False
        told(f"shared {few.is_shared}")
        for _ in range(15):
            few.greeted(one("x"), one("c"))
        told(f"shared {few.is_shared} {len(few.connections)}")
        few.lost(None, first)
        told(f"last {few.heard_last}")
        few.lost(one("z"))
        few.lost(None, second)
        for in_flight in (1000, 1001, 2000):
            storage.bytes_in_flight = in_flight
            few.check_pressure()
            told(f"{in_flight} in flight: paused {few.paused}")
        waiting.pop()()
        told(f"relieved: paused {few.paused}")
        few.check_pressure()
        few.stop_reading()
        waiting.pop()()
        told(f"stopped: paused {few.paused}")
        empty = Admission(storage, 1)  # type: ignore[arg-type]
        told(f"none to end: {empty.end_oldest(empty.strangers)}")
        await empty.end_all(1.0)

    run_on_loop(telling, story)


def story_the_porch(telling: Telling) -> None:
    """Over real sockets, whose bytes are there at once."""

    async def scene(run: ToldStorage, server: BookieServer) -> None:
        admission = server._admission
        porch = Porch(admission, server._connection, 77, server.tls, server._bookie.refusals)
        listening = listening_sockets([(socket.AF_INET, ("127.0.0.1", 0))], 0)
        porch.open(listening)
        hello = control_frame(Header(Kind.HELLO, 1, value=PROTOCOL_VERSION), Hello(client="me").encode())

        def call() -> socket.socket:
            made = socket.create_connection(listening[0].getsockname())
            made.setblocking(False)
            return made

        async def hear(name: str, one: socket.socket) -> None:
            """What came, and how many strangers there are."""
            await turns(20)
            try:
                content: Any = one.recv(1 << 16)
                content = f"{len(content)} bytes {content[120:]!r}" if content else "the end"
            except OSError as error:
                content = type(error).__name__
            telling.line(
                f"  = {name} hears {content}; {len(admission.strangers)} strangers, {len(admission.connections)} clients, {len(porch.tasks)} tasks"
            )

        ones = {name: call() for name in "abcdefghi"}
        await hear("a", ones["a"])
        ones["a"].send(hello[:5])
        await hear("a", ones["a"])
        ones["a"].send(hello[5:60])
        await hear("a", ones["a"])
        ones["a"].send(hello[60:])
        await hear("a", ones["a"])
        ones["b"].send(b"GET / HTTP/1.1")
        await hear("b", ones["b"])
        await hear("b", ones["b"])
        ones["c"].send(hello[:9])
        ones["c"].shutdown(socket.SHUT_WR)
        await hear("c", ones["c"])
        ones["d"].close()
        await turns(20)
        ones["e"].send(hello)
        await hear("e", ones["e"])
        ones["f"].send(hello[:30])
        await asyncio.sleep(3)
        await hear("f", ones["f"])
        await asyncio.sleep(3)
        await hear("f", ones["f"])
        await hear("g", ones["g"])
        await hear("e", ones["e"])
        telling.line("no room")
        with patch.object(Admission, "connections_max", lambda self: 2):
            j = call()
            await hear("j", j)
            await hear("j", j)
        telling.line("no descriptor")
        real = porch._accept

        class NoDescriptor:
            tries = 0

            def fileno(self) -> int:
                return listening[0].fileno()

            def accept(self) -> Any:
                self.tries += 1
                raise OSError(24, "Too many open files")

        none = NoDescriptor()
        k = call()
        await turns(20)
        telling.line(f"strangers {len(admission.strangers)}")
        real(none)  # type: ignore[arg-type]
        await hear("k", k)
        real(none)  # type: ignore[arg-type]
        m = call()
        m.send(hello)
        await hear("m", m)
        porch._listening.append(none)  # type: ignore[arg-type]
        porch._go_on(none)  # type: ignore[arg-type]
        porch._listening.remove(none)  # type: ignore[arg-type]
        asyncio.get_running_loop().add_reader(listening[0].fileno(), porch._accept, listening[0])
        await hear("m", m)
        await asyncio.sleep(1)
        n = call()
        await turns(20)
        telling.line("closes")
        await porch.close()
        await hear("n", n)
        await hear("m", m)
        await porch.close()
        try:
            call()
        except OSError as error:
            telling.line(f"  = {type(error).__name__}")
        for one in list(admission.connections):
            one.abort()
        await turns(20)
        telling.line(
            f"clients {len(admission.connections)} readers {len(asyncio.get_running_loop()._selector.get_map())}"
        )  # type: ignore
        for one in (*ones.values(), j, k, m, n):
            one.close()

    served(telling, scene)


def story_an_hour_of_maintenance(telling: Telling) -> None:
    from bookspark.errors import BookKeeperError
    from bookspark.metadata.memory.memory_store import MemoryStore
    from tests.bookie.stories_of_disks import Rewriter
    from tests.metadata.kit import ledger

    class Store(MemoryStore):
        fails = False

        def highest_ledger_id(self) -> int:
            telling.note(f"asked at {telling.now:.2f}")
            telling.now += 0.5
            if self.fails:
                raise ValueError("on purpose")
            return super().highest_ledger_id()

    telling.brief = True

    async def story(loop: StoryLoop) -> None:
        run = ToldStorage(
            telling, "/a", "/b", loop=loop, entry_log_bytes_max=2000, checkpoint_interval_seconds=60, gc_wait_time_seconds=900,
            scrub_interval_hours=1, disk_check_interval_seconds=10, minor_compaction_interval_seconds=1000, major_compaction_interval_seconds=2500,
        )  # fmt: skip
        run.boot()
        store = Store()
        store.note_given_id(20)
        for ledger_id in (4, 5, 6):
            store.create_ledger(ledger(ledger_id))
        rewriter = Rewriter(run)
        server = told_server(telling, run, metadata=store, rewriter=rewriter)
        maintenance = server._maintenance
        maintenance.start()

        async def until(seconds: float, what: str) -> None:
            await asyncio.sleep(seconds - telling.now)
            telling.section(f"{telling.now:.1f} {what}")
            telling.line(f"  = collection {maintenance.collection}")
            telling.line(f"  = scrub {run.storage.scrubbing.progress} {run.storage.scrubbing.part:.3f}")
            run.state()

        for n in range(6):
            for ledger_id in (4, 5, 6, 7):
                run.add(ledger_id, n)
            await turns()
        await until(115, "some adds")
        telling.line(f"collects {maintenance.collect_now()} {maintenance.collect_now()}")
        await until(125, "collected")
        await until(600, "nothing")
        run.disk.capacity_bytes = run.disk.used_bytes() + 10
        await until(640, "full")
        run.disk.capacity_bytes = 1 << 50
        await until(700, "room again")
        store.fails = True
        await until(1100, "a collection failed")
        store.fails = False
        first = min(run.storage.logs)
        run.hurt(run.storage.logs[first].path, 700)
        await until(1900, "damage")
        run.read(4, 0, 9)
        run.read(5, 0, 9)
        await until(1950, "told")
        telling.line(f"  = marks {store.underreplication.list_tasks()}")
        with patch.object(store.underreplication, "mark", side_effect=BookKeeperError("no")):
            run.storage.holdings.ledgers_lacking.add(4)
            await until(1960, "not told")
        await until(1970, "told later")
        rewriter.fails = {run.storage.holdings.next_log + n: OSError(28, "no room") for n in range(200)}
        run.fail("write *checkpoint* 1 no-space", "free_bytes * 1 io-error")
        for n in range(6, 9):
            for ledger_id in (4, 5, 6, 7):
                run.add(ledger_id, n)
            await turns()
        run.seal()
        await until(2900, "failing jobs")
        rewriter.fails = {}
        with patch.object(run.storage.reclaiming, "reclaim", side_effect=ValueError("on purpose")):
            await until(3700, "failing passes")
        with patch.object(run.storage, "checkpoint", side_effect=ValueError("on purpose")):
            await until(3800, "failing checkpoints")
        await until(5620, "the next scrub")
        with patch.object(run.storage.scrubbing, "group", side_effect=ValueError("on purpose")):
            await until(5640, "a failing scrub")
        run.lose("/a/control.synced")
        await until(7600, "a lost note")
        run.storage.holdings.carry_through(iter((None, None)))  # type: ignore[arg-type]
        run.storage.holdings.carry_through(_failing())
        await until(7700, "steps")
        await maintenance.stop()
        telling.line(f"  = tasks {[task.done() for task in maintenance._tasks][:6]}")

    run_on_loop(telling, story)


def _failing() -> Any:
    yield None
    raise ValueError("on purpose")
