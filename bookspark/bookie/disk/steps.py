"""Background work as a generator, so that the loop, a test and a simulator can all carry it through.

Law: between two yields it runs on the loop and has the index to itself; what it yields says what it needs next::

    None          the loop's other work gets a turn; the index stays its own
    WAIT          the same after a moment: something that the loop has to be told is not there yet
    a function    called in a thread; its result is sent in, its exception raised there. The index is anybody's meanwhile

``run_steps`` carries one through on the spot; the server has its own driver.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, Final, Generic, NamedTuple, TypeVar


class Wait:
    """See ``WAIT``."""


WAIT: Final = Wait()

Result = TypeVar("Result")
Need = Callable[[], Any] | Wait | None
Steps = Generator[Need, Any, Result]


class Outcome(NamedTuple):
    """Of what was needed: a result or an exception; at the start, and after ``None`` and ``WAIT``, neither."""

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


def run_steps(steps: Steps[Result], wait: Callable[[], None]) -> Result:
    """Carry ``steps`` through in this thread. ``wait`` has to bring forward what it waits for."""
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
