"""Background work as a generator of steps, so that the loop, a test and a simulator can all carry it through.

Law: between two yields the work runs on the loop and has the index to itself. What it yields says what it needs next::

    None          other work of the loop gets a turn; no other background work may use the index meanwhile
    WAIT          some time passes: the loop has to be told of something first. Others may use the index meanwhile
    a function    is called in a thread; its result, or its exception, comes back. Others may use the index meanwhile

``run_steps`` carries the work through at once. The server has a driver of its own (``serving.maintenance``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from typing import Any, Final, Generic, NamedTuple, TypeVar


class Wait:
    """The type of ``WAIT``."""


WAIT: Final = Wait()

Result = TypeVar("Result")
Need = Callable[[], Any] | Wait | None
Steps = Generator[Need, Any, Result]


class Outcome(NamedTuple):
    """The result or the exception of the function that was needed. Neither at the start, and after ``None`` and ``WAIT``."""

    result: Any = None
    error: Exception | None = None


class Finished(NamedTuple, Generic[Result]):
    """There are no more steps."""

    result: Result


def advance(steps: Steps[Result], outcome: Outcome) -> Need | Finished[Result]:
    """Go on to the next need, or the end."""
    try:
        return steps.send(outcome.result) if outcome.error is None else steps.throw(outcome.error)
    except StopIteration as stop:
        return Finished(stop.value)


def at_once(steps: Steps[None]) -> None:
    """Carry steps through that need nothing but turns of the loop."""
    deque(steps, maxlen=0)


def run_steps(steps: Steps[Result], wait: Callable[[], None]) -> Result:
    """Carry ``steps`` through in this thread; returns their result, raises their exception. ``wait()`` has to bring about what
    the steps wait for."""
    outcome = Outcome()
    while not isinstance(need := advance(steps, outcome), Finished):
        outcome = Outcome()
        if isinstance(need, Wait):
            wait()
        elif need is not None:
            try:
                outcome = Outcome(need())
            except Exception as error:
                outcome = Outcome(error=error)
    result: Result = need.result
    return result
