"""Stories of who is let in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

from bookspark.bookie.serving.admission import Admission
from bookspark.bookie.serving.porch import Porch, listening_sockets
from bookspark.bookie.serving.server import BookieServer
from bookspark.wire.frames import control_frame
from bookspark.wire.header import PROTOCOL_VERSION, Header, Kind
from bookspark.wire.messages import Hello
from tests.bookie.told.connections import served
from tests.bookie.told.loop import Numbered, StoryLoop, pass_by, run_on_loop, turns
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling


def story_admissions(telling: Telling) -> None:
    async def story(loop: StoryLoop) -> None:
        told = telling.line
        storage = Numbered(
            number=0,
            bytes_in_flight=0,
            when_below=lambda bytes_, then: (told(f"  = when below {bytes_}"), waiting.append(then)),
        )
        waiting: list[Callable[[], None]] = []
        admission = Admission(storage, 1000)
        numbers = iter(range(1000))

        def one(origin: str, heard: int = 0, served: bool = False) -> Any:
            number = next(numbers)
            name = f"{origin}#{number}"
            return Numbered(
                number=number,
                origin=origin,
                until=loop.time() + 5,
                heard=heard,
                is_served=served,
                end=lambda: told(f"  = {name} is ended"),
                abort=lambda: told(f"  = {name} is aborted"),
                close=lambda: told(f"  = {name} is closed"),
                adjust_reading=lambda: told(f"  = {name} reads: {not admission.paused}"),
            )

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
                await pass_by(0.3 if number < 4 else 0.0)
            await pass_by(4.0)
            told(f"4 s later: {len(admission.strangers)}")
            await pass_by(2.0)
            told(f"2 s later: {len(admission.strangers)}")
            for number in range(20):
                stranger = arrive(f"10.0.0.{number % 3}")
                admission.greeted(stranger, one(stranger.origin, heard=number))
            arrive("10.0.0.1")
            arrive("10.0.0.9")
            arrive("10.0.0.9")
            await pass_by(0.2)
            arrive("10.0.0.9")
            await pass_by(0.2)
            arrive("10.0.0.0")
            await pass_by(11)
            arrive("10.0.0.8")
        told(f"shared {admission.is_shared}")
        few = Admission(storage, 1000)
        first, second = one("a"), one("b")
        for connection in (first, second):
            told(f"shared {few.is_shared}")
            few.greeted(one("x"), connection)
        for is_served in (False, True):
            few.turn_to(first)
            told(f"shared {few.is_shared}")
            await pass_by(1.0)
            second.is_served = is_served
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
        empty = Admission(storage, 1)
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
                f"  = {name} hears {content}; {len(admission.strangers)} strangers, {len(admission.connections)} clients, "
                f"{len(porch.tasks)} tasks"
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
        await pass_by(3)
        await hear("f", ones["f"])
        await pass_by(3)
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
        real(none)
        await hear("k", k)
        real(none)
        m = call()
        m.send(hello)
        await hear("m", m)
        porch._listening.append(none)
        porch._go_on(none)
        porch._listening.remove(none)
        asyncio.get_running_loop().add_reader(listening[0].fileno(), porch._accept, listening[0])
        await hear("m", m)
        await pass_by(1)
        n = call()
        await turns(20)
        o = call()
        o.send(hello)
        while not porch.tasks:
            await asyncio.sleep(0)
        telling.line("closes")
        await porch.close()
        telling.line(f"tasks {len(porch.tasks)}")
        await hear("o", o)
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
        )
        for one in (*ones.values(), j, k, m, n, o):
            one.close()

    served(telling, scene)
