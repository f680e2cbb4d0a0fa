"""Where a bookie is looked for, and how a connection to it is made."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from bookspark.client.network import connections as module
from bookspark.client.network.hello import ClientSecurity
from bookspark.metadata.records.bookie_registration import BookieRegistration
from tests.client.by_hand.network.test_connections_made import made, run

# -- where a bookie is


class Dialling:
    """``_dial`` over a store that tells of b1 at ``registered``; ``reached`` are the addresses that answer."""

    def __init__(self, reached, registered="new", known="old"):
        self.asked, self.greeted, self.attempts = [], [], []
        self.connections = made()
        if known:
            self.connections._addresses["b1"] = SimpleNamespace(address=known)
        self.found = {"b1": SimpleNamespace(address=registered)} if registered else {}
        self.reached, self.attempt = reached, SimpleNamespace(asks_store=False)

    def submit(self, function):
        self.attempts.append(self.attempt.asks_store)
        future = asyncio.get_running_loop().create_future()
        future.set_result(self.found)
        return future

    async def greet(self, registration):
        self.greeted.append((registration.address, self.attempt.asks_store))
        if registration.address not in self.reached:
            raise OSError("no")
        return registration.address

    def dial(self, monkeypatch):
        monkeypatch.setattr(asyncio, "wrap_future", lambda future: future)
        self.connections._threads, self.connections._greet = self, self.greet
        return asyncio.run(self.connections._dial("b1", self.attempt))


def test_the_address_that_is_known_is_tried_before_the_store_is_asked(monkeypatch):
    dialling = Dialling(["old", "new"])
    assert dialling.dial(monkeypatch) == "old" and dialling.attempts == []
    dialling = Dialling(["new"])
    assert dialling.dial(monkeypatch) == "new"
    # While the store is asked, and only then, is it the one that may be late.
    assert dialling.greeted == [("old", False), ("new", False)] and dialling.attempts == [True]
    dialling = Dialling(["new"], known=None)
    assert dialling.dial(monkeypatch) == "new"
    with pytest.raises(OSError, match="not registered"):
        Dialling([], registered=None).dial(monkeypatch)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [("here:31", "here", 31), ("[::1]:31", "::1", 31), ("here:x", None, None), ("", None, None)],
)
def test_a_connection_is_made_to_the_address_and_greets_by_the_clients_name(monkeypatch, address, host, port):
    calls = []

    async def scenario(connections):
        async def create(factory, host, port, ssl):
            connection = factory()
            calls.append((connection.bookie_id, host, port, ssl))
            return SimpleNamespace(get_extra_info=lambda what: calls.append(what)), connection

        async def greet(connection, *what):
            calls.append(what)

        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create)
        monkeypatch.setattr(module, "say_hello", greet)
        monkeypatch.setattr(module, "notice_lost_peer", lambda socket: calls.append("noticed"))
        registration = BookieRegistration("b1", address, 1)
        if host is None:
            with pytest.raises(OSError, match="tells no address"):
                await connections._greet(registration)
            return
        connection = await connections._greet(registration)
        assert connections._open == {connection}
        assert calls == [
            ("b1", host, port, None), "socket", "noticed",
            (address, connections.next_request_id, "me", connections._security),
        ]  # fmt: skip
        assert connection._on_failure == connections._quarantine.failed
        assert connection._on_lost == connections._lost and connection._on_ended == connections._open.discard

    run(scenario, client_name="me")


@pytest.mark.parametrize("tls", [None, "tls"])
def test_a_connection_that_is_refused_says_where_and_what_may_be_wrong(monkeypatch, tls):
    async def scenario(connections):
        async def create(*what, ssl):
            assert ssl == tls
            raise OSError

        connections._security = ClientSecurity(lambda: tls)
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", create)
        with pytest.raises(ConnectionError) as raised:
            await connections._greet(BookieRegistration("b1", "here:31", 1))
        hint = "; if it speaks no TLS, leave tls_ca out" if tls else ""
        assert str(raised.value) == f"here:31: the connection ended{hint}"

    run(scenario)
