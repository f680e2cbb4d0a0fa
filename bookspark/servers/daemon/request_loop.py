"""The thread of the request server: its loop (uvloop) runs there, started and stopped from another thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

import uvloop

from bookspark.errors import BookieError
from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.bookie.serving.server import BookieServer

_START_SECONDS = 30.0
_STOP_SECONDS = 30.0

Result = TypeVar("Result")


class RequestLoop:
    """Runs a bookie's request server in a thread. Call ``start`` once, and ``stop`` once."""

    def __init__(self, server: BookieServer) -> None:
        self._server = server
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="requests", daemon=True)

    @property
    def post(self) -> Post:
        """``post(function, *arguments)`` has a function called on the loop, from any thread."""
        return self._loop.call_soon_threadsafe

    def start(self) -> str:
        """Listen and serve; returns ``host:port``. Raises BookieError if the bookie can't listen there."""
        self._thread.start()
        host, port = asyncio.run_coroutine_threadsafe(self._server.start(), self._loop).result(_START_SECONDS)
        return f"{host}:{port}"

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Have ``work`` done on the loop; returns its result, or raises its error. Raises BookieError if it takes more than
        30 s."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_SECONDS)
        except TimeoutError as error:
            raise BookieError(f"the request server's loop did not answer within {_START_SECONDS:g} s") from error

    def stop(self) -> None:
        """Answer what was asked, close the connections, end the loop. Raises BookieError if that takes more than 30 s."""
        try:
            asyncio.run_coroutine_threadsafe(self._server.stop(), self._loop).result(_STOP_SECONDS)
        except TimeoutError as error:
            raise BookieError(f"the request server did not stop within {_STOP_SECONDS:g} s") from error
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
