"""Background work as a generator of steps, driven by the loop, a test or a simulator.

Law: between two yields the work runs on the loop and has the index to itself. Each yield states the next need::

    None          a turn for other work of the loop; no other background work may use the index meanwhile
    WAIT          some time, until an event on the loop. Others may use the index meanwhile
    a function    is called in a thread; its result, or its exception, comes back. Others may use the index meanwhile

``run_steps`` runs the work to its end at once. The server has a driver of its own (``serving.maintenance``).
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
    """Result or exception of the needed function. Both None at the start, and after ``None`` and ``WAIT``."""

    result: Any = None
    error: Exception | None = None


class Finished(NamedTuple, Generic[Result]):
    """End of the steps."""

    result: Result


def advance(steps: Steps[Result], outcome: Outcome) -> Need | Finished[Result]:
    """Resume ``steps`` up to the next need, or the end."""
    try:
        return steps.send(outcome.result) if outcome.error is None else steps.throw(outcome.error)
    except StopIteration as stop:
        return Finished(stop.value)


def at_once(steps: Steps[None]) -> None:
    """Run steps that need only turns of the loop."""
    deque(steps, maxlen=0)


def awaited(begin: Callable[[Callable[[int], None]], object]) -> Steps[int]:
    """Call ``begin`` with a function that takes a status, and wait for that status."""
    statuses: list[int] = []
    begin(statuses.append)
    while not statuses:
        yield WAIT
    return statuses[0]


def run_steps(steps: Steps[Result], wait: Callable[[], None]) -> Result:
    """Run ``steps`` in this thread; returns their result, raises their exception. ``wait()`` has to bring about the event that
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
