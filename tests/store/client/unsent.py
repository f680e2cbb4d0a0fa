"""A client whose writers send nothing."""

from __future__ import annotations

from types import SimpleNamespace

from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.runtime.runtime import Room
from bookspark.support.threads import Threads


def unsent_context() -> SimpleNamespace:
    """A context for handles whose submitted calls never run."""
    runtime = SimpleNamespace(
        io=SimpleNamespace(submit=lambda *call: None, submit_once=lambda call: None, here=False),
        connections=None,
        threads=None,
        callbacks=Threads(0, ""),
        room=Room(1 << 30),
        add_writer=lambda writer: None,
        remove_writer=lambda writer: None,
        wake=lambda writer: None,
    )
    return SimpleNamespace(config=ClientConfig(), runtime=runtime)
