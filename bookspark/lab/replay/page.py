"""The history of a ledger as a page: a simulator's story, but of real processes.

Law, as in ``bookspark.lab.simulation.story_page``: the page needs nothing but itself, and every line has its words.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from bookspark.lab.replay.laws import Broken
from bookspark.lab.replay.replaying import Difference
from bookspark.lab.replay.telling import Telling
from bookspark.lab.simulation.checkers import CHECKERS
from bookspark.lab.simulation.story_page import drawn_page, law_of
from bookspark.lab.simulation.view import Violation

_EQUAL = "A machine's answer follows from what it was given: the pure code gives the recorded answer again."
_HISTORY = "What clients did and were told agrees: the laws of ``bookspark.testing.history``, over the joined records."


def history_page(
    ledger_id: int,
    telling: Telling,
    broken: Sequence[Broken],
    differences: Sequence[Difference],
    command: str,
    simulation: str,
) -> str:
    """The page as HTML. ``command`` makes it again, ``simulation`` searches the simulator for such a history."""
    law, failing_ns = "", None
    if broken:
        first = min(broken, key=lambda one: one.at_ns)
        law = law_of(first.law) if first.law in CHECKERS else _HISTORY
        violation, failing_ns = Violation(first.law, f"ledger {ledger_id}: {first.what}".rstrip(".")), first.at_ns
    elif differences:
        one = differences[0]
        law, failing_ns = _EQUAL, one.span.end_ns
        what = f"{one.machine} of {one.process}, its decision {one.decision}: recorded {one.recorded}, now {one.now}"
        violation = Violation("an_answer_is_another_one_now", what)
    else:
        violation = Violation(f"ledger_{ledger_id}", "no law is broken, and every answer is equal")
    telling.draw(failing_ns)
    beside = f"Steps of different processes are in the order of their clocks. In the simulator: <code>{escape(simulation)}</code>"
    if telling.left_out:
        beside += f" {telling.left_out} earlier steps are left out."
    sound = not broken and not differences
    return drawn_page(violation, law or _EQUAL, telling, telling.lines, beside, command, sound)
