"""Helpers for tests of the metadata store: sample records, sessions that end, and a proxy that loses replies."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from kazoo.client import KazooClient

from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.awaiting import SECONDS_MAX, await_that

EVENT_SECONDS = SECONDS_MAX
CREATE, SET_DATA, MULTI, CREATE_2, CLOSE = 1, 5, 14, 15, -11
"""Operation codes of ZooKeeper's protocol."""


def begun(connect: str, **options: Any) -> ZooKeeperStore:
    """A store of the cluster at ``connect``; the cluster is created if it does not exist."""
    return ZooKeeperStore(connect, begin=LedgerManager.HIERARCHICAL, **options)


def ledger(ledger_id: int, **fields: Any) -> LedgerMetadata:
    made = LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, ("bookie-1", "bookie-2", "bookie-3")),))
    return replace(made, **fields)


@contextlib.contextmanager
def clients(chroot: str, manager: str = "hierarchical") -> Iterator[Callable[[], MetadataStore]]:
    """Makes clients of the same cluster, each with its own session. ``chroot``: the ZooKeeper connection string of the cluster;
    "": a store in memory."""
    made: list[MemoryStore | ZooKeeperStore] = []

    def new() -> MetadataStore:
        if chroot:
            made.append(ZooKeeperStore(chroot, begin=LedgerManager(manager)))
        else:
            made.append(made[0].another() if made and isinstance(made[0], MemoryStore) else MemoryStore())
        return made[-1]

    try:
        yield new
    finally:
        for each in made:
            each.close()


_ended: set[int] = set()
"""Ended sessions whose clients may not know it yet."""


def end_session(server: str, client: KazooClient) -> None:
    """End the client's session at the server (``host:port``), or its next session if that one was already ended here: another
    connection takes the session over by its id and password, and closes it.

    Both requests are sent together. With a wait in between, the client would reconnect and take the session back."""
    session_id, password = await_that(
        lambda: (found := client.client_id) and found[0] not in _ended and found, what="the client's session"
    )
    host, _, port = server.partition(":")
    connect = struct.pack(">iqiqi", 0, 0, 10_000, session_id, len(password)) + password + b"\0"
    close = struct.pack(">ii", 1, CLOSE)
    asked = b"".join(struct.pack(">i", len(one)) + one for one in (connect, close))

    def is_over() -> bool:
        with socket.create_connection((host, int(port)), EVENT_SECONDS) as taking_over:
            taking_over.sendall(asked)
            frames = _frames(taking_over)
            connected = next(frames, None)
            if connected is None:
                return False
            _, timeout_ms = struct.unpack_from(">ii", connected, 4)
            # A timeout of 0 means that the session no longer exists.
            return timeout_ms == 0 or next(frames, None) is not None

    await_that(is_over, what="the end of the session", despite=OSError)
    _ended.add(session_id)


class LossyProxy:
    """A proxy between a client and ZooKeeper on ``127.0.0.1:port``. ``lose_reply`` loses the reply to an operation: the server
    does the operation, and the client sees the connection end. ``meanwhile`` runs just before that end. While ``silent`` is
    set it takes connections and requests, and answers nothing."""

    def __init__(self, upstream: str) -> None:
        host, _, port = upstream.partition(":")
        self._upstream = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._losing: dict[int, Callable[[], None]] = {}
        self.lost = self.connections = 0
        self.silent = False
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []
        self._spawn(self._accept)

    def __enter__(self) -> LossyProxy:
        return self

    def __exit__(self, *_: object) -> None:
        for each in [self._listener, *self._sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(EVENT_SECONDS)

    def lose_reply(self, operation: int, meanwhile: Callable[[], None] = lambda: None) -> None:
        self._losing[operation] = meanwhile

    def _spawn(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                server = socket.create_connection(self._upstream)
                self._sockets += [client, server]
                doomed: dict[int, Callable[[], None]] = {}
                self._spawn(self._requests, client, server, doomed)
                self._spawn(self._replies, client, server, doomed)

    def _requests(self, client: socket.socket, server: socket.socket, doomed: dict[int, Callable[[], None]]) -> None:
        first = True
        for frame in _frames(client):
            if not first and len(frame) >= 12:
                xid, operation = struct.unpack_from(">ii", frame, 4)
                if operation in self._losing:
                    doomed[xid] = self._losing.pop(operation)
            first = False
            with contextlib.suppress(OSError):
                server.sendall(frame)
        _end(client, server)

    def _replies(self, client: socket.socket, server: socket.socket, doomed: dict[int, Callable[[], None]]) -> None:
        first = True
        for frame in _frames(server):
            xid = struct.unpack_from(">i", frame, 4)[0]
            if not first and xid in doomed:
                doomed.pop(xid)()
                self.lost += 1
                break
            first = False
            if not self.silent:
                with contextlib.suppress(OSError):
                    self.answer(client, frame)
        _end(client, server)

    def answer(self, client: socket.socket, frame: bytes) -> None:
        client.sendall(frame)


def _frames(source: socket.socket) -> Any:
    with contextlib.suppress(OSError), source.makefile("rb") as stream:
        while len(head := stream.read(4)) == 4:
            yield head + stream.read(struct.unpack(">i", head)[0])


def _end(*sockets: socket.socket) -> None:
    for each in sockets:
        with contextlib.suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
