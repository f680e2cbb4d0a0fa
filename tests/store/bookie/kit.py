"""Helpers of the bookie's tests: batches, a storage whose loop is the test, a server in a thread, a blocking client."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from queue import SimpleQueue
from secrets import token_bytes
from typing import Any

import msgspec
import uvloop

from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.commit.commit_thread import SealLog, Soon
from bookspark.store.bookie.disk.file_system import FileSystem, RealFileSystem
from bookspark.store.bookie.serving.server import BookieServer
from bookspark.store.bookie.space.reclaiming import unlimited
from bookspark.store.bookie.space.rewriting import Job, Rewritten, rewrite
from bookspark.store.bookie.steps import Steps, run_steps
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.store.wire.frames import Frame, FrameReceiver, control_frame
from bookspark.store.wire.header import PROTOCOL_VERSION, Header, Kind, Status, decode
from bookspark.store.wire.messages import Acks, BookieStatus, Challenge, Hello
from bookspark.store.wire.security import NONCE_BYTES, Exchange, proof
from tests.awaiting import SECONDS_MAX

KEY = b"k" * 16
OTHER_KEY = b"o" * 16


def config(*directories: Path, **options: Any) -> BookieConfig:
    return BookieConfig(directories=tuple(map(str, directories)), zookeeper="-", **options)


def entries(ledger_id: int, first: int, last: int, payload: bytes = b"payload", confirmed: int = -1) -> list[Entry]:
    """Entries whose payload names their id. All have one size, so their cumulative length is the same in any grouping."""
    made = []
    for entry_id in range(first, last + 1):
        content = b"%08d:%s" % (entry_id, payload)
        made.append(Entry(ledger_id, entry_id, confirmed, len(content) * (entry_id + 1), content, b"dgst"))
    return made


def add_frame(ledger_id: int, first: int, last: int | None = None, **options: Any) -> bytes:
    """An ADD frame of ``entries``; options: payload, confirmed, and the fields of a header."""
    last = first if last is None else last
    payload = options.pop("payload", b"payload")
    rows = entries(ledger_id, first, last, payload, options.get("last_add_confirmed", -1))
    request_id = options.pop("request_id", 0)
    options.setdefault("master_key", KEY)
    return encode_entries(Header(Kind.ADD, request_id, ledger_id, first, last, **options), rows)


def read_entries(
    storage: Storage, ledger_id: int, first: int, last: int, *, sparse: bool = False
) -> tuple[list[Entry], Any]:
    """The entries, and the refusal of the next id (None: no refusal)."""
    plan = storage.holdings.plan_read(ledger_id, first, last, 0, sparse=sparse)
    fetched = storage.files.fetch(plan.pieces, cached_only=False)
    assert fetched is not None
    found: list[Entry] = []
    for piece, frame in zip(plan.pieces, fetched.frames, strict=False):
        found += _entries(bytes(frame), piece.first, piece.last)
    return found, plan.refusal if fetched.stop is None else "bad frame"


@lru_cache(4096)
def _entries(frame: bytes, first: int, last: int) -> tuple[Entry, ...]:
    """Cached, since a history reads the same frames again and again."""
    return tuple(EntryBatch(frame).entries(first, last))


def run_checkpoint(storage: Storage) -> None:
    """Prepare and write checkpoints at once."""
    steps = storage.checkpoint()
    try:
        while True:
            next(steps)
    except StopIteration as prepared:
        storage.write_checkpoints(prepared.value)


def held_ledgers(storage: Storage) -> set[int]:
    return set(run_steps(storage.garbage_collection.held(), lambda: None))


def crash_image(directory: Path, target: Path) -> Path:
    """Copy the files of ``directory`` as a kill at this moment would leave them. A live storage creates and renames files on
    its own threads, so the copy is repeated if any file came, went or changed meanwhile."""

    def seen() -> dict[Path, tuple[int, int, int]]:
        found = {path: path.stat() for path in directory.rglob("*") if path.is_file()}
        return {path: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}

    while True:
        shutil.rmtree(target, ignore_errors=True)
        with suppress(FileNotFoundError, shutil.Error):
            before = seen()
            shutil.copytree(directory, target)
            if seen() == before:
                return target


class LocalRewriter:
    """Rewrites in the calling thread. ``before()`` is called before each job, ``wait(seconds)`` instead of waiting."""

    def __init__(
        self,
        file_system: FileSystem,
        before: Callable[[], None] = lambda: None,
        wait: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._file_system = file_system
        self._before = before
        self._wait = wait

    def rewrite(self, job: Job) -> Rewritten:
        self._before()
        return rewrite(self._file_system, job, self._wait)


class Pumped:
    """A storage whose event loop is the test itself: calls posted by commit threads run when the test waits."""

    def __init__(
        self,
        settings: BookieConfig,
        file_system: FileSystem | None = None,
        before_start: Callable[[Storage], None] = lambda storage: None,
        soon: Soon | None = None,
        **options: Any,
    ) -> None:
        self._posted: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self.file_system = file_system or RealFileSystem()
        self.storage = Storage(settings, self.file_system, **options).open()
        before_start(self.storage)
        self.storage.start(lambda function, *arguments: self._posted.put((function, arguments)), soon)

    def wait(self, done: Callable[[], bool]) -> None:
        while not done():
            function, arguments = self._posted.get(timeout=SECONDS_MAX)
            function(*arguments)

    @property
    def unheard(self) -> int:
        """The number of posted calls that have not run yet."""
        return self._posted.qsize()

    def run(self, call: Callable[..., None], *arguments: Any) -> Status:
        """Make a call that ends with ``done(status)``, and wait for it."""
        statuses: list[int] = []
        call(*arguments, statuses.append)
        self.wait(lambda: bool(statuses))
        return Status(statuses[0])

    def submit(self, frame: bytes, done: Callable[[int], object] | None = None) -> list[int]:
        """Add without waiting. The status goes to the returned list, or to ``done``."""
        statuses: list[int] = []
        header, crc = decode(frame, HEADER_OFFSET)
        self.storage.add(header, EntryBatch.checked(frame, header, crc), done or statuses.append)
        return statuses

    def add(self, ledger_id: int, first: int, last: int | None = None, **options: Any) -> Status:
        statuses = self.submit(add_frame(ledger_id, first, last, **options))
        self.wait(lambda: bool(statuses))
        return Status(statuses[0])

    def fence(self, ledger_id: int, key: bytes = KEY) -> Status:
        return self.run(self.storage.fence, ledger_id, key)

    def read(self, ledger_id: int, first: int, last: int, *, sparse: bool = False) -> tuple[list[Entry], Any]:
        """The entries, and the refusal of the next id (None: no refusal)."""
        return read_entries(self.storage, ledger_id, first, last, sparse=sparse)

    def ids(self, ledger_id: int) -> list[int]:
        return [entry.entry_id for entry in self.read(ledger_id, 0, 1 << 40, sparse=True)[0]]

    def checkpoint(self) -> None:
        run_checkpoint(self.storage)

    def pump(self) -> None:
        """Run one posted call."""
        function, arguments = self._posted.get(timeout=SECONDS_MAX)
        function(*arguments)

    def steps(self, steps: Steps[Any]) -> Any:
        """Run background work to its end."""
        return run_steps(steps, self.pump)

    def seal(self) -> None:
        """Seal the open logs, as if they were full."""
        for directory in self.storage.live:
            statuses: list[int] = []
            directory.commit.submit(SealLog(directory.current, statuses.append))
            directory.current = None
            self.wait(lambda statuses=statuses: bool(statuses))

    def reclaim(
        self, threshold: float = 0.0, *, entry_logs: bool = True, before: Callable[[], None] = lambda: None
    ) -> int:
        """One pass over the sealed logs; returns the number of reclaimed bytes."""
        rewriter = LocalRewriter(self.file_system, before)
        steps = self.storage.reclaiming.reclaim(rewriter, threshold, 1 << 20, unlimited, entry_logs=entry_logs)
        return self.steps(steps).given_back

    def collect(self, store: Any) -> int:
        """Collect the ledgers that ``store`` no longer has."""
        return self.steps(self.storage.garbage_collection.collect(store))


class Client:
    """A connection that sends frames and waits for frames."""

    def __init__(
        self,
        address: tuple[str, int],
        *,
        greet: bool = True,
        wrap: Callable[[socket.socket], socket.socket] = lambda plain: plain,
    ) -> None:
        self.socket = wrap(socket.create_connection(address, timeout=SECONDS_MAX))
        self._receiver = FrameReceiver()
        self._frames: list[Frame] = []
        self._requests = 0
        if greet:
            try:
                self.call(Header(Kind.HELLO, 0, value=PROTOCOL_VERSION))
            except BaseException:
                self.close()
                raise

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def receive(self) -> Frame:
        """The next frame; EOFError if the bookie closed the connection. Each acknowledgement of a group comes as its own frame,
        with the add's request id."""
        while not self._frames:
            count = self.socket.recv_into(self._receiver.buffer())
            if count == 0:
                raise EOFError
            for frame in self._receiver.received(count):
                if frame.header.kind != Kind.ACKS or frame.header.status != Status.OK:
                    self._frames.append(frame)
                    continue
                for request_id in Acks.decode(frame.body):
                    self._frames.append(frame._replace(header=frame.header._replace(request_id=request_id)))
        return self._frames.pop(0)

    def call(self, header: Header, body: bytes = b"") -> Frame:
        """Send a control frame and wait for its answer."""
        self._requests += 1
        self.send(control_frame(header._replace(request_id=self._requests), body))
        answer = self.receive()
        assert answer.header.request_id == self._requests
        return answer

    def ask_for_proofs(self, nonce: bytes) -> Challenge:
        """Say HELLO to a bookie that asks for a secret."""
        answer = self.call(Header(Kind.HELLO, 0, value=PROTOCOL_VERSION), Hello(nonce=nonce).encode())
        assert answer.header.status == Status.UNAUTHORIZED
        return Challenge.decode(answer.body)

    def prove(self, secret: str, bookie_id: str, address: str, certificate: bytes = b"") -> None:
        """Greet a bookie with its secret."""
        nonce = token_bytes(NONCE_BYTES)
        exchange = Exchange(nonce, self.ask_for_proofs(nonce).nonce, bookie_id, address, certificate)
        assert self.show(proof(secret.encode(), "client", exchange)) == Status.OK

    def show(self, shown: bytes) -> Status:
        """Show the bookie this proof."""
        answer = self.call(Header(Kind.HELLO, 0, value=PROTOCOL_VERSION), Hello("test", proof=shown).encode())
        return Status(answer.header.status)

    def add(self, ledger_id: int, first: int, last: int | None = None, **options: Any) -> Header:
        self.send(add_frame(ledger_id, first, last, **options))
        return self.receive().header

    def status(self) -> BookieStatus:
        return msgspec.json.decode(self.call(Header(Kind.STATUS, 0)).body, type=BookieStatus)

    def read(self, ledger_id: int, first: int, last: int, **options: Any) -> tuple[list[Entry], Header]:
        """The entries of all batch frames, and the header of the control frame that ends the answer."""
        self.send(control_frame(Header(Kind.READ, 7, ledger_id, first, last, **options)))
        found: list[Entry] = []
        while (answer := self.receive()).batch is not None:
            batch = EntryBatch.checked(answer.batch, answer.header, answer.body_crc)
            found += batch.entries()
        return found, answer.header

    def close(self) -> None:
        self.socket.close()


@contextmanager
def serving(
    settings: BookieConfig, file_system: FileSystem | None = None, *, checks: Any = None, **options: Any
) -> Iterator[tuple[BookieServer, tuple[str, int]]]:
    """A bookie's server on an event loop in its own thread; stopped and closed at the end. ``checks`` are the
    storage's questions to the metadata, ``options`` are the server's."""
    storage = Storage(settings, file_system, **(checks or {})).open()
    server = BookieServer(settings, storage, "bookie-test", 77, **options)
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="bookie loop")
    thread.start()
    try:
        address = asyncio.run_coroutine_threadsafe(server.start(), loop).result(SECONDS_MAX)
        try:
            yield server, address
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(3 * SECONDS_MAX)
            storage.close()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS_MAX)
        loop.close()


def payloads(found: Sequence[Entry]) -> list[bytes]:
    return [entry.payload for entry in found]
