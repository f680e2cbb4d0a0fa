"""The replay of a folder: every process, then the joined histories, then a ledger's story.

Law: each pass reads the records from the disk, and only joined histories stay in memory, so the folder may be larger than
memory.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from html import escape
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from bookspark.errors import ConfigurationError
from bookspark.lab.replay.joining import Joined, Ledger
from bookspark.lab.replay.replaying import Counts, Difference, replayed
from bookspark.lab.replay.staging import Played, Staging
from bookspark.lab.replay.telling import Telling, simulator_command
from bookspark.lab.simulation.checkers import CHECKERS
from bookspark.lab.simulation.story_page import drawn_page, law_of
from bookspark.lab.simulation.view import Violation
from bookspark.testing.history import Checker, Event, EventKind

# -- The checkers' laws, applied to joined histories.
#
# Law: existing judges give every verdict: ``bookspark.testing.history.Checker`` on the clients' calls and results in order,
# the simulator's checkers on the end state, as far as the records show it (``View``). A law that needs unrecorded facts, such
# as contents of entries, is not judged. A loss accepted by an operator breaks no law.


OF_THE_END = (
    "no_divergence_between_writer_and_metadata",
    "all_committed_entries_reach_ack_quorum",
    "last_add_confirmed_is_confirmed",
)
"""The simulator's checkers that judge the end state."""
FENCE = "no_add_after_the_fence"


class Broken(NamedTuple):
    """A broken law and its ledger."""

    law: str
    ledger_id: int
    what: str
    at_ns: int
    """Time of the violation, or the end of the record."""


class View:
    """A ledger as seen by a simulator's checker (``bookspark.lab.simulation.view.WorldView``)."""

    def __init__(self, ledger: Ledger) -> None:
        m = ledger.metadata
        assert m is not None
        self.metadata, self.deleted = m, False
        self.options = SimpleNamespace(ack_quorum=m.ack_quorum)
        self.writer = SimpleNamespace(last_add_confirmed=ledger.confirmed)
        self.bookies = {
            name: SimpleNamespace(rows=one.rows, ledger=SimpleNamespace(last_add_confirmed=one.last_add_confirmed))
            for name, one in ledger.bookies.items()
        }
        self.lost_boots = sum(len(one.lossy_boots) for one in ledger.bookies.values())
        self._acked = ledger.acked

    def holders(self, entry_id: int) -> list[str]:
        """The bookies of the entry's write set that acknowledged it."""
        return [name for name in self.metadata.write_set_of(entry_id) if name in self._acked.get(entry_id, ())]


def broken_laws(joined: Joined, torn: Collection[str]) -> Iterator[Broken]:
    """The broken laws, by ascending ledger id. ``torn``: the processes whose record has no clean end."""
    for _, ledger in sorted(joined.ledgers.items()):
        yield from broken_by(ledger, torn)


def broken_by(ledger: Ledger, torn: Collection[str]) -> Iterator[Broken]:
    for name, bookie in sorted(ledger.bookies.items()):
        if bookie.taken_after_fence is not None:
            process, span = bookie.taken_after_fence
            what = f"{name} (process {process}) took an add of the writer after its fence"
            yield Broken(FENCE, ledger.ledger_id, what, span.end_ns)
    if ledger.metadata is None or ledger.given_up or not ledger.writers:
        return
    last_ns = max((one.at_ns for one in ledger.seen), default=0)
    view: Any = View(ledger)
    for law in OF_THE_END:
        if law == "last_add_confirmed_is_confirmed" and not ledger.whole(torn):
            continue
        if (violation := CHECKERS[law](view)) is not None:
            yield Broken(law, ledger.ledger_id, violation, last_ns)
    yield from _history(ledger, torn)


class _Payload:
    """Stand-in for a payload, with only its length. The last entry of a batch has the length of all."""

    __slots__ = ("length",)

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, part: slice) -> bytes:
        return b""


def _history(ledger: Ledger, torn: Collection[str]) -> Iterator[Broken]:
    """The clients' calls and results, judged in order: appends at their earliest possible time, all else at the latest."""
    whole = ledger.whole(torn)
    seen = sorted(ledger.seen, key=lambda one: (one.at_ns, one.kind is not EventKind.APPENDED))
    payloads: dict[int, Any] = {}
    checker, times = Checker(), [one.at_ns for one in seen]
    for number, one in enumerate(seen, 1):
        length, payload = one.length, payloads.get(one.entry_id, b"") if one.kind is EventKind.READ else b""
        if one.kind is EventKind.APPENDED:
            payload = payloads[one.entry_id] = _Payload(one.length)
            length = 0
        if not whole and one.kind is not EventKind.APPENDED and one.entry_id not in payloads and one.entry_id >= 0:
            # The record lacks the writer's last appends.
            continue
        if (
            one.kind in (EventKind.CLOSED, EventKind.CLOSED_BY_WRITER)
            and one.entry_id >= 0
            and one.entry_id not in ledger.batch_ends
        ):
            # Lengths within an append are not recorded.
            continue
        # Number of events surely before.
        since = bisect_right(times, one.since_ns)
        event = Event(one.kind, one.who, ledger.ledger_id, one.entry_id, payload, length, since=since, number=number)
        violation = checker.observe(event)
        if violation is not None:
            end = f", {one.length} bytes" if one.length and one.kind is not EventKind.APPENDED else ""
            yield Broken(
                violation.rule, ledger.ledger_id, f"{one.who}: {one.kind.value} {one.entry_id}{end}", one.at_ns
            )
            return


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
    """The page as HTML. ``command`` makes it again, ``simulation`` lets the simulator search for the same violation."""
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
        """Command that lets the simulator search for the same violation."""
        return simulator_command(self._joined.ledgers[ledger_id])
