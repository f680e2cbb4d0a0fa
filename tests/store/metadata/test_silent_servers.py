"""Some of several ZooKeeper servers are silent: their host drops packets, or they accept connections and answer nothing."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from tests.awaiting import SECONDS_MAX, time_passes
from tests.store.metadata.kit import LossyProxy, begun, ledger

ATTEMPT_SECONDS = 1.0
CONNECTED = bytes(4)
"""Begin of the answer to a new connection: its protocol version, where others have the number of their request."""
Silent = Callable[[], contextlib.AbstractContextManager[str]]


@pytest.fixture(autouse=True)
def in_the_order_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random, "shuffle", lambda servers: None)


@pytest.fixture
def path(chroot: str) -> str:
    return "/" + chroot.partition("/")[2]


@pytest.fixture
def proxies(zookeeper: EmbeddedZooKeeper) -> Iterator[list[LossyProxy]]:
    with LossyProxy(zookeeper.connection_string) as one, LossyProxy(zookeeper.connection_string) as other:
        yield [one, other]


@contextlib.contextmanager
def dropping() -> Iterator[str]:
    """A server that drops the first packet of each connection: its queue is full, and nothing takes from it."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(4):
            filling = stack.enter_context(socket.socket())
            filling.setblocking(False)
            filling.connect_ex(listener.getsockname())
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@contextlib.contextmanager
def accepting() -> Iterator[str]:
    """A server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("kinds", [(dropping,), (accepting, dropping)])
def test_start_passes_over_silent_servers(kinds: tuple[Silent, ...], chroot: str) -> None:
    """Each has much less time than the deadline of the start."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(kind()) for kind in kinds]
        stack.enter_context(
            contextlib.closing(
                begun(",".join([*silent, chroot]), session_timeout_seconds=600.0, start_timeout_seconds=SECONDS_MAX)
            )
        )


def test_server_silent_lately_is_tried_last(proxies: list[LossyProxy], path: str) -> None:
    proxies[0].silent = True
    connect = f"{proxies[0].address},{proxies[1].address}{path}"
    begun(connect, start_timeout_seconds=SECONDS_MAX).close()
    tried = proxies[0].connections
    assert tried == 1
    begun(connect, start_timeout_seconds=SECONDS_MAX).close()
    assert proxies[0].connections == tried


def test_servers_slower_than_the_first_attempt_are_reached(zookeeper: EmbeddedZooKeeper, path: str) -> None:
    class Slow(LossyProxy):
        def answer(self, client: socket.socket, frame: bytes) -> None:
            if frame[4:8] == CONNECTED:
                time_passes(1.5 * ATTEMPT_SECONDS)
            client.sendall(frame)

    with Slow(zookeeper.connection_string) as one, Slow(zookeeper.connection_string) as other:
        begun(f"{one.address},{other.address}{path}", start_timeout_seconds=SECONDS_MAX).close()


def test_client_and_bookie_leave_a_server_that_falls_silent_with_their_session(
    proxies: list[LossyProxy], path: str
) -> None:
    """Requests go to it all the time."""
    connect = f"{proxies[0].address},{proxies[1].address}{path}"
    with contextlib.closing(begun(connect, timeout_seconds=SECONDS_MAX, session_timeout_seconds=20.0)) as store:
        store.register_bookie(BookieRegistration("bookie-1", "127.0.0.1:3181", incarnation=7))
        session = store.connection.session_id
        ended = threading.Event()

        def ask() -> None:
            while not ended.wait(0.1):
                store.client.get_async("/")

        asking = threading.Thread(target=ask)
        asking.start()
        try:
            proxies[0].silent = True
            store.create_ledger(ledger(5))
        finally:
            ended.set()
            asking.join()
        assert store.connection.session_id == session
        assert list(store.bookies()) == ["bookie-1"]


def test_long_answer_that_comes_in_parts_is_no_silence(zookeeper: EmbeddedZooKeeper, path: str) -> None:
    class InParts(LossyProxy):
        def answer(self, client: socket.socket, frame: bytes) -> None:
            for begin in range(0, len(frame), 20_000):
                client.sendall(frame[begin : begin + 20_000])
                time_passes(0.3 if len(frame) > 20_000 else 0.0)

    with InParts(zookeeper.connection_string) as one, InParts(zookeeper.connection_string) as other:
        connect = f"{one.address},{other.address}{path}"
        with contextlib.closing(
            begun(connect, timeout_seconds=SECONDS_MAX, session_timeout_seconds=4.0, start_timeout_seconds=SECONDS_MAX)
        ) as store:
            store.write_record("logs", "long", b"x" * 200_000, None)
            found = store.read_record("logs", "long")
            assert found is not None
            assert found.value == b"x" * 200_000
