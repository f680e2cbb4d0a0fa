"""A connection that ends while it is handed over to the event loop."""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace

import pytest

from bookspark.store.bookie.serving.porch import Caller


@pytest.mark.parametrize("tls", [None, object()], ids=["plain", "TLS"])
def test_caller_ended_before_its_connection_is_made_is_never_served(tls):
    lost, made = [], []
    ours, theirs = socket.socketpair()

    async def hand_over_and_end():
        handshakes = {}
        porch = SimpleNamespace(
            admission=SimpleNamespace(arrived=lambda caller: None, lost=lost.append),
            tls=lambda: tls,
            wait_for_handshake=lambda caller: 0.0,
            shakes_hands=lambda caller: handshakes.update({caller: None}),
            handshakes=handshakes,
            tasks=set(),
            make=lambda *caller: made.append(caller) or asyncio.Protocol(),
        )
        ours.setblocking(False)
        caller = Caller(porch, ours, "here", "127.0.0.1")
        caller._hand_over(tls)
        caller.end()
        await asyncio.wait(porch.tasks or {asyncio.ensure_future(asyncio.sleep(0))})
        await asyncio.sleep(0)
        return caller

    caller = asyncio.run(hand_over_and_end())
    assert lost and set(lost) == {caller} and made == []
    assert ours.fileno() == -1, "it is closed"
    theirs.close()
