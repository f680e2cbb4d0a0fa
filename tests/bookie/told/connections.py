"""Stories of connections to a bookie: what comes in, and what is answered."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

from bookspark.bookie.serving.entry_reads import EntryReads
from bookspark.bookie.serving.server import BookieServer
from bookspark.protocol.bookie.bookie_boot import LossyBootNoted
from bookspark.protocol.bookie.bookie_ledger import LimboNoted
from bookspark.wire.entry_batch import encode_entries
from bookspark.wire.frames import control_frame
from bookspark.wire.header import PROTOCOL_VERSION, Flag, Header, Kind, Status
from bookspark.wire.messages import FetchFrom, Hello
from bookspark.wire.security import proof
from tests.bookie.kit import KEY, OTHER_KEY, add_frame, entries
from tests.bookie.told.loop import StoryLoop, ToldPeer, pass_by, run_on_loop, told_server, turns
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling

_FENCE, _ENTRY, _SPARSE, _VOLATILE, _RECOVERY = map(
    int, (Flag.FENCE, Flag.ENTRY, Flag.SPARSE, Flag.VOLATILE, Flag.RECOVERY)
)


SMALL = {
    "serving.entry_reads.PART_BYTES": 3000,
    "serving.read_room.PART_BYTES": 3000,
    "serving.entry_reads.READ_BYTES_MAX": 40_000,
    "serving.connection._LARGE_PART_BYTES": 9000,
    "serving.entry_reads._CARRIED_BYTES_MAX": 2000,
    "serving.connection._JOINED_BYTES_MAX": 2500,
    "serving.connection._READS_MAX": 2,
    "serving.connection._PARTS_MAX": 2,
    "serving.dispatch._BEFORE_HELLO_MAX": 3,
    "serving.listings.ROWS_MAX": 2,
    "serving.poll_timers._ENDED_A_TURN": 2,
}


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
        await pass_by(11)
        await b.lost()
        early = ToldPeer(telling, server, "early", connects=False)
        early.connection.abort()
        early.connection.connection_made(early.transport)
        await early.lost()
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
            Header(Kind.ADD, 114, 4, -1, -1),
            Header(Kind.ADD, 115, -1, 0, 0),
            Header(Kind.ADD, 116, 1 << 62, 0, 0),
            Header(Kind.ADD, 117, 4, 9, 9, flags=_VOLATILE, value=5, limit=3),
            Header(Kind.READ, 118, 4, 9, 9),
            Header(Kind.ADD, 119, 4, 9, 9),
        ):
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
        run.storage.holdings.control.replay(
            [LossyBootNoted(3, 9), *(LimboNoted(ledger_id, 3) for ledger_id in (4, 5, 6, 30))]
        )
        for ledger_id, limit in ((0, 0), (4, 1), (4, 9), (5, 2), (6, 2), (6, 1), (30, 1), (-1, 0)):
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
        server.healing_status, server.keeper, server.version = lambda: None, lambda: ("keeper", 3.0), "1.2"
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
                (0, 5, {}),
                (0, 20, {}),
                (0, 20, {"flags": _SPARSE}),
                (2, 3, {"limit": 10}),
                (2, 9, {"limit": 2000}),
                (6, 6, {}),
                (9, 10, {}),
                (3, 2, {}),
                (-1, 2, {}),
                (0, 1, {"master_key": OTHER_KEY}),
                (0, 1, {"flags": _FENCE, "master_key": OTHER_KEY}),
            ):
                await a.ask(Kind.READ, ledger_id, first, last, **fields)
        for ledger_id in (4, 5, 9):
            for first, fields in (
                (0, {}),
                (0, {"flags": _ENTRY}),
                (5, {"flags": _ENTRY}),
                (6, {"flags": _ENTRY}),
                (0, {"master_key": OTHER_KEY}),
                (0, {"flags": _FENCE, "master_key": OTHER_KEY}),
            ):
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
            f"under way {a.connection._reads} {a.connection._parts_asked} {a.connection._part_bytes} "
            f"{server._bookie.read_room.total}"
        )
        for kind in (Kind.READ, Kind.READ_LAC):
            await a.ask(kind, 4, 0, 5, flags=_FENCE, master_key=KEY)
            await a.ask(kind, 30, 0, 5, flags=_FENCE, master_key=KEY)
        await a.send(add_frame(4, 30, request_id=30), add_frame(4, 30, request_id=31, flags=_RECOVERY))
        traffic = run.storage.traffic
        telling.line(f"traffic {traffic.entries_out} {traffic.bytes_out} {traffic.fences}")
        run.state()

    served(telling, scene)
