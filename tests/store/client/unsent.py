"""A client whose writers send nothing: nobody takes what they submit."""

from __future__ import annotations

from types import SimpleNamespace

from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.runtime.rate_limit import RateLimit
from bookspark.store.client.runtime.room import ClientRoom
from bookspark.support.threads import Threads


def unsent_context() -> SimpleNamespace:
    """What a handle is made with."""
    runtime = SimpleNamespace(
        io=SimpleNamespace(submit=lambda *call: None, submit_once=lambda call: None, here=False),
        connections=None,
        threads=None,
        callbacks=Threads(0, ""),
        room=ClientRoom(1 << 30),
        rate_limit=RateLimit(0, 0),
        add_writer=lambda writer: None,
        wake=lambda writer: None,
    )
    return SimpleNamespace(config=ClientConfig(), runtime=runtime)
