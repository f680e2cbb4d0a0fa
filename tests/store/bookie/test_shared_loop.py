"""Detection of a bookie's loop that serves a single client and so may wait for the disk."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from bookspark.store.bookie.serving import admission
from bookspark.store.wire.frames import control_frame
from bookspark.store.wire.header import Header, Kind
from tests.awaiting import await_that
from tests.store.bookie.kit import Client, config, serving

LONG = 1 << 20


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = Clock()
    monkeypatch.setattr(admission, "monotonic", made)
    return made


@pytest.fixture
def bookie(tmp_path, clock):
    with serving(config(tmp_path)) as (server, address), ExitStack() as stack:
        yield server, lambda: stack.enter_context(_Closing(address))


class _Closing(Client):
    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def test_silent_client_does_not_make_the_loop_shared(bookie, clock):
    server, client = bookie
    writer = client()
    writer.add(1, 0)
    assert not server._admission.is_shared, "it is alone"
    other = client()
    writer.add(1, 1)
    assert server._admission.is_shared, "the other one has just come"
    clock.now += 2 * admission._SILENT_SECONDS
    assert not server._admission.is_shared
    writer.add(1, 2)
    assert not server._admission.is_shared, "nobody else was heard meanwhile"
    other.add(2, 0)
    writer.add(1, 3)
    assert server._admission.is_shared
    clock.now += 2 * admission._SILENT_SECONDS
    assert not server._admission.is_shared


def test_client_with_an_unsent_answer_makes_the_loop_shared(bookie, clock):
    server, client = bookie
    writer, reader = client(), client()
    for entry_id in range(16):
        reader.add(2, entry_id, payload=b"x" * LONG)
    reader.send(control_frame(Header(Kind.READ, 7, 2, 0, 15)))
    await_that(lambda: any(one.is_served and one.unsent_bytes for one in server.connections))
    writer.add(1, 0)
    clock.now += 2 * admission._SILENT_SECONDS
    assert server._admission.is_shared
    count = 0
    while (answer := reader.receive()).batch is not None:
        count += answer.header.last_entry_id - answer.header.first_entry_id + 1
    assert count > 1
    await_that(lambda: not server._admission.is_shared)


def test_loop_with_many_clients_counts_as_shared(bookie, clock, monkeypatch):
    server, client = bookie
    monkeypatch.setattr(admission, "_LOOKED_AT_MAX", 3)
    clients = [client() for _ in range(4)]
    clients[0].add(1, 0)
    clock.now += 2 * admission._SILENT_SECONDS
    assert server._admission.is_shared
    clients.pop().close()
    await_that(lambda: not server._admission.is_shared)


def test_gone_client_is_forgotten(bookie, clock):
    server, client = bookie
    gone, stays = client(), client()
    stays.add(1, 0)
    gone.add(1, 1)
    gone.close()
    await_that(lambda: len(server.connections) == 1)
    assert server._admission.heard_last is None and not server._admission.is_shared
