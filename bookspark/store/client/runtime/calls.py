"""Waiting calls run in a thread, with futures for asyncio and ``concurrent.futures``.

Law: a call ends here as in the caller's thread: with the same result or error, within the same time. Each future is
completed once. The caller's thread waits for nothing, and the client's I/O thread runs nothing of this.

There are at most ``_THREADS_MAX`` threads; further calls wait for a free thread.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Generator
from concurrent.futures import Future
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from bookspark.errors import BookKeeperError
from bookspark.support.threads import Threads

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")

_THREADS_MAX = 32
log = logging.getLogger(__name__)


class AwaitableFuture(Future[Result]):
    """A ``concurrent.futures.Future`` that a coroutine may ``await``, in any event loop of asyncio.

    ``asyncio.gather``, ``asyncio.wrap_future``, ``concurrent.futures.wait`` and ``as_completed`` take it as well.
    """

    def add_done_callback(self, fn: Callable[[Future[Result]], object]) -> None:
        """Call ``fn(self)`` when done, or at once if it is done. Later exceptions of ``fn`` are logged, SystemExit too, which
        would end the thread that completes other futures."""
        super().add_done_callback(fn if self.done() else partial(_logged, fn))

    def __await__(self) -> Generator[Any, None, Result]:
        if not self.done():
            yield from asyncio.wrap_future(self)
        return self.result()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} can't be pickled: it is completed in its own process; send its result"
        )


def _logged(callback: Callable[[Any], object], future: object) -> None:
    try:
        callback(future)
    except BaseException:
        log.exception("a callback of %r failed", future)


def done_with(result: Result) -> AwaitableFuture[Result]:
    future = AwaitableFuture[Result]()
    future.set_result(result)
    return future


class Calls:
    """The waiting calls that run in threads of one process. Thread-safe."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._threads = Threads(_THREADS_MAX, "bookspark-call")
        self._closed = False

    def begin(
        self, function: Callable[Arguments, Result], *arguments: Arguments.args, **named: Arguments.kwargs
    ) -> AwaitableFuture[Result]:
        """Call ``function`` in a thread. Raises BookKeeperError if the client was closed."""
        if self._closed:
            raise BookKeeperError("no call can be begun any more: the client was closed")
        future = AwaitableFuture[Result]()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                if self._closed:
                    raise BookKeeperError("the client was closed before this call began")
                result = function(*arguments, **named)
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._threads.post(run)
        return future

    def close(self) -> None:
        """Fail the calls that have not begun. Running calls end in their own time; ``close`` does not wait for them."""
        self._closed = True
        self._threads.stop(0.0)


class _Caller(Protocol):
    @property
    def _calls(self) -> Calls: ...


Caller = TypeVar("Caller", bound=_Caller)


def in_thread(
    method: Callable[Concatenate[Caller, Arguments], Result],
) -> Callable[Concatenate[Caller, Arguments], AwaitableFuture[Result]]:
    """The twin ``<name>_async`` of a method that waits, for a class with ``_calls``."""
    name = method.__name__

    @wraps(method)
    def begin(self: Caller, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> AwaitableFuture[Result]:
        return self._calls.begin(getattr(self, name), *arguments, **named)

    begin.__name__ = f"{name}_async"
    begin.__qualname__ = f"{method.__qualname__}_async"
    begin.__annotations__ = {**method.__annotations__, "return": AwaitableFuture}
    begin.__doc__ = (
        f"Begin ``{name}`` in a thread of the client's, and return a future at once. It may be awaited. Its result is what "
        f"``{name}`` returns, or an error of that. Raises BookKeeperError if the client was closed."
    )
    return begin
