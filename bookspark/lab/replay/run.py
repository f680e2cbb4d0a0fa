"""The replay of a folder: every process, then the joined histories, then a ledger's story.

Law: each pass reads the records from the disk, and only joined histories stay in memory, so the folder may be larger than
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from bookspark.errors import ConfigurationError
from bookspark.lab.replay.joining import Joined
from bookspark.lab.replay.laws import Broken, broken_laws
from bookspark.lab.replay.replaying import Counts, Difference, replayed
from bookspark.lab.replay.staging import Played, Staging
from bookspark.lab.replay.telling import Telling, simulator_command
from bookspark.lab.simulation.checkers import CHECKERS
from bookspark.lab.simulation.story_page import drawn_page, law_of
from bookspark.lab.simulation.view import Violation

# -- Page: a ledger's history in the style of a simulator's story (``bookspark.lab.simulation.story_page``).


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


# -- The replay


class Result(NamedTuple):
    counts: list[Counts]
    broken: list[Broken]
    ledgers: int

    @property
    def decisions(self) -> int:
        """Repeated decisions with equal answers."""
        return sum(one.decisions for one in self.counts)

    @property
    def lost(self) -> int:
        """Records that could not be replayed."""
        return sum(one.lost for one in self.counts)

    @property
    def differences(self) -> list[Difference]:
        """The first difference of each machine, process by process."""
        return [difference for one in self.counts for difference in one.differences]

    @property
    def first_failing(self) -> int | None:
        """The ledger of the first violation, else of the first difference; None without either."""
        if self.broken:
            return min(self.broken, key=lambda one: one.at_ns).ledger_id
        about = [one.ledger_id for one in self.differences if one.ledger_id is not None]
        return about[0] if about else None


class Replay:
    """The replay of a folder of records: call ``run()`` first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._joined = Joined()
        self._result: Result | None = None

    def run(self, progress: Callable[[Counts], object] = lambda counts: None) -> Result:
        """Replay every process, and judge the joined histories. ``progress`` is called with each process's counts.

        Raises ConfigurationError if the folder has no record, or a record of another version.
        """
        counts = []
        for one in replayed(self._folder, self._joined.observe):
            counts.append(one)
            progress(one)
        torn = {one.process for one in counts if not one.clean}
        broken = list(broken_laws(self._joined, torn))
        self._result = Result(counts, broken, len(self._joined.ledgers))
        return self._result

    def page(self, ledger_id: int) -> str:
        """A ledger's history as HTML. Raises ConfigurationError if no record has the ledger."""
        assert self._result is not None, "run() comes first"
        if ledger_id not in self._joined.ledgers:
            raise ConfigurationError(f"no record in {self._folder} has ledger {ledger_id}")
        telling = Telling(ledger_id)
        for _ in replayed(self._folder, telling.observe, telling.differs):
            pass
        found = [one for one in self._result.broken if one.ledger_id == ledger_id]
        differences = [one for one in self._result.differences if one.ledger_id == ledger_id]
        command = f"bookspark replay {self._folder} --ledger {ledger_id} --story FILE"
        return history_page(ledger_id, telling, found, differences, command, self.simulation(ledger_id))

    def staged(self, ledger_id: int) -> Played:
        """A ledger's history, repeated in the simulator. Raises ConfigurationError if no record has its writer."""
        ledger = self._joined.ledgers.get(ledger_id)
        if ledger is None or ledger.begun is None:
            raise ConfigurationError(f"no record in {self._folder} has the writer of ledger {ledger_id}")
        staging = Staging(ledger)
        for _ in replayed(self._folder, staging.observe):
            pass
        return staging.play()

    def simulation(self, ledger_id: int) -> str:
        """The command that searches the simulator for such a history."""
        return simulator_command(self._joined.ledgers[ledger_id])
