"""A loop of asyncio on the story's clock, and a connection to a bookie on it whose socket is the story's.

Law: as in ``telling``. When nothing else is to be done the clock goes on to the next timer at once, and an hour is a moment.
What would be done in a thread is done at once. Real sockets may be looked at: what the kernel has for them is there at once.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from bookspark.bookie.commit.commit_thread import CommitThread
from bookspark.bookie.serving.connection import Connection
from bookspark.bookie.serving.maintenance import Maintenance
from bookspark.bookie.serving.server import BookieServer
from bookspark.wire.entry_batch import EntryBatch
from bookspark.wire.frames import FrameReceiver, control_frame
from bookspark.wire.header import PROTOCOL_VERSION, Header, Kind, Status
from bookspark.wire.messages import Acks, Hello
from tests.bookie.told.storage import ToldStorage
from tests.bookie.told.telling import Telling, digest

_SERVING = "bookspark.bookie.serving"


class _Selector(selectors.DefaultSelector):
    def __init__(self, telling: Telling) -> None:
        super().__init__()
        self._telling = telling

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout != 0:
            if timeout is None:
                raise RuntimeError("the story waits for what never comes")
            self._telling.now += timeout
        return ready


class StoryLoop(asyncio.SelectorEventLoop):
    def __init__(self, telling: Telling) -> None:
        super().__init__(_Selector(telling))
        self._telling = telling

    def time(self) -> float:
        return self._telling.now

    def run_in_executor(self, executor: Any, function: Any, *arguments: Any) -> Any:
        future = self.create_future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future


@contextmanager
def on_the_storys_clock(telling: Telling) -> Iterator[None]:
    """What serves looks at no other clock, and commit threads do their work in the loop's next turn."""
    clock = SimpleNamespace(
        monotonic=lambda: telling.now, time=lambda: 1e6 + telling.now, time_ns=lambda: round((1e6 + telling.now) * 1e9)
    )
    hand_over = CommitThread._hand_over

    def and_commit(thread: Any, items: Any, begun: float) -> None:
        hand_over(thread, items, begun)
        if not thread.held:
            asyncio.get_running_loop().call_soon(thread.step)

    with ExitStack() as stack:
        for module in ("admission", "entry_reads"):
            stack.enter_context(patch(f"{_SERVING}.{module}.monotonic", clock.monotonic))
        for module in ("maintenance", "refusals", "server"):
            stack.enter_context(patch(f"{_SERVING}.{module}.time", clock))
        stack.enter_context(patch(f"{_SERVING}.server.os.getpid", lambda: 4321))
        stack.enter_context(patch.object(CommitThread, "_hand_over", and_commit))
        stack.enter_context(patch.object(CommitThread, "held", False, create=True))
        yield


def run_on_loop(telling: Telling, story: Callable[[StoryLoop], Awaitable[None]]) -> None:
    with on_the_storys_clock(telling), asyncio.Runner(loop_factory=lambda: StoryLoop(telling)) as runner:
        runner.run(story(runner.get_loop()))


async def pass_by(seconds: float) -> None:
    """So many seconds of the story go by, in no time."""
    loop = asyncio.get_running_loop()
    over = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    await over


async def turns(count: int = 8) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


class ToldTransport:
    """Takes what the bookie sends. ``unsent``: how many bytes of it the socket has not taken, as the story says."""

    def __init__(self, telling: Telling, name: str) -> None:
        self._telling, self._name = telling, name
        self._receiver = FrameReceiver()
        self.unsent = 0
        self.closing = False

    def _tell(self, what: str) -> None:
        self._telling.line(f"  = {self._name}: {what}")

    def write(self, content: bytes) -> None:
        self._tell(f"{len(content)} bytes")
        self._tell_frames(content)

    def writelines(self, pieces: list[bytes]) -> None:
        self._tell(f"{len(pieces)} pieces")
        self._tell_frames(b"".join(pieces))

    def _tell_frames(self, content: bytes) -> None:
        while content:
            buffer = self._receiver.buffer()
            count = min(len(buffer), len(content))
            buffer[:count] = content[:count]
            content = content[count:]
            for frame in self._receiver.received(count):
                self._telling.line(f"    {_told_frame(frame)}")

    def set_write_buffer_limits(self, **limits: int) -> None:
        self._tell(f"limits {limits}")

    def get_extra_info(self, name: str) -> Any:
        return SimpleNamespace(setsockopt=lambda *option: self._telling.note(f"option {option}"))

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def is_closing(self) -> bool:
        return self.closing

    def can_write_eof(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if name not in ("pause_reading", "resume_reading", "write_eof", "close", "abort"):
            raise AttributeError(name)
        return lambda: self._tell(name)


def _told_frame(frame: Any) -> str:
    header = frame.header
    words = [_kind(header.kind), str(header.request_id), Status(header.status).name]
    words += [
        f"{name} {value}" for name, value in header._asdict().items() if value not in (0, -1, b"") and name in _TOLD
    ]
    if frame.batch is not None:
        batch = EntryBatch.checked(frame.batch, header, frame.body_crc)
        payloads = [entry.payload for entry in batch.entries()]
        return " ".join([*words, f"entries {len(payloads)} {digest(b''.join(payloads))} of {len(frame.batch)}"])
    if header.kind == Kind.ACKS:
        return " ".join([*words, f"of {list(Acks.decode(frame.body))}"])
    body = bytes(frame.body)
    if header.status == Status.BAD_REQUEST:
        return " ".join([*words, body.decode()])
    return " ".join([*words, f"body {len(body)} {digest(body)}"] if body else words)


def _kind(kind: int) -> str:
    return Kind(kind).name if kind in set(Kind) else str(kind)


_TOLD = frozenset(Header._fields) - {"kind", "request_id", "status", "incarnation", "master_key"}


class ToldPeer:
    """A connection to a bookie, from the moment that its first message is there."""

    def __init__(
        self, telling: Telling, server: BookieServer, name: str, origin: str = "10.0.0.1", *, connects: bool = True
    ) -> None:
        self.telling, self.name = telling, name
        bookie, admission, chunks = server.behind
        self.stranger = Numbered(
            number=ord(name[0]),
            origin=origin,
            until=telling.now + 5,
            end=lambda: telling.line(f"  = {name} is ended as a stranger"),
        )
        admission.strangers[self.stranger] = None
        self.connection = _Connection(bookie, admission, chunks, self.stranger, f"address of {name}")
        self.connection.number = self.stranger.number
        self.transport = ToldTransport(telling, name)
        self._requests = 0
        telling.line(f"{name} connects")
        if connects:
            self.connection.connection_made(self.transport)

    async def send(self, *frames: bytes, count: int = 8) -> None:
        """The bytes of these frames arrive, in one piece if there is room."""
        content = b"".join(frames)
        while content:
            buffer = self.connection.get_buffer(-1)
            size = min(len(buffer), len(content))
            buffer[:size] = content[:size]
            content = content[size:]
            self.connection.buffer_updated(size)
        await turns(count)

    async def ask(
        self, kind: int, ledger_id: int = -1, first: int = 0, last: int = 0, body: bytes = b"", **fields: Any
    ) -> None:
        """A request without entries."""
        self._requests += 1
        self.telling.line(f"{self.name}: {_kind(kind)} {ledger_id} {first}..{last} {_without_keys(fields)}")
        await self.send(control_frame(Header(kind, self._requests, ledger_id, first, last, **fields), body))

    async def hello(self, **fields: Any) -> None:
        body = fields.pop("body", None)
        fields = {"value": PROTOCOL_VERSION, **fields}
        await self.ask(Kind.HELLO, body=Hello(client=self.name).encode() if body is None else body, **fields)

    async def lost(self) -> None:
        self.telling.line(f"{self.name} is lost")
        self.connection.connection_lost(None)
        await turns()


class Numbered(SimpleNamespace):
    """A stand-in whose place in a set does not depend on where it lies in memory. It has a ``number``."""

    def __hash__(self) -> int:
        return self.number


class _Connection(Connection):
    number = 0

    def __hash__(self) -> int:
        return self.number


def _without_keys(fields: dict[str, Any]) -> str:
    return " ".join(f"{name} {value[:1] if isinstance(value, bytes) else value}" for name, value in fields.items())


def told_server(telling: Telling, run: ToldStorage, **options: Any) -> BookieServer:
    """A server that is not started, over a storage that is."""
    server = BookieServer(run.settings, run.storage, "bookie-1", 77, **options)
    works = options.get("metadata"), options.get("rewriter")
    server._maintenance = Maintenance(run.settings, run.storage, "bookie-1", *works, clock=lambda: telling.now)
    return server
