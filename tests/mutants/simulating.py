"""Which mutants of the protocol touch safety, and whether ``simulate`` alone finds them (``scripts/mutants --by-simulate``).

Law: no test judges here. Each mutant gets a process of its own and the same random schedules in the same order, until a
violation, an error of a machine, or the processor time is over. First the schedules run without a mutant: what they find then is
no mutant's fault, and a mutant none of whose lines they come to would run the same schedules again. Such a mutant survives ("not
reached").

The compiled simulator is used where it is there. It calls the machines of the protocol, which are not compiled, and a mutant
changes the code object of their very functions (``changing``).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

from tests.mutants.changing import PARTS, Known, change
from tests.mutants.equivalents import equivalents, harmless
from tests.mutants.forking import Watch, Work, each_in_a_process
from tests.mutants.reaching import Reached, Run, traced

SAFETY: Mapping[str, tuple[str, ...]] = {
    "bookie": ("bookie_boot", "bookie_ledger", "control_copies", "garbage_collection", "lost_records"),
    "ledger": ("accepted_loss", "entry_ranges", "ledger_metadata", "quorum", "sync_cursor"),
    "logs": ("commits", "ended_lanes", "lanes", "log_record", "replays"),
    "reading": (
        "fencing", "lac_read", "lac_wait", "later_entries", "loss_notes", "range_read", "recovery", "run_read", "write_back",
    ),
    "repair": ("audit_plan", "bookie_healing", "entry_copying", "ledger_replication", "replication_plan"),
    "writing": (
        "durability", "ensemble_change", "explicit_lac", "replication", "writer", "writer_adds", "writer_cursors",
    ),
}  # fmt: skip
"""The modules that decide what is acknowledged, confirmed, fenced, recovered, replaced, copied, held or in limbo, and which
commit is a log's. Planners, cookies, leases, options, texts and tasks are not among them."""
NO_SAFETY = re.compile(
    r":(?:\w+\.)?(?:_fail|_what|_word|_why\w*|_nobody_tells|_not_looked_up|_unreadable|advice|few|fits|_has_room|_size|_splits_max"
    r"|copy|key|last_query|rows|size|rows_each|noted_by_earlier_version|check_quorums)\b"
)
"""Functions of these modules that only say why something failed, count, or bound how much is under way."""

Phase = tuple[str, Mapping[str, Any], int]
"""Name, options that are given, and how many schedules."""
_HANGS_SECONDS = 15
"""No schedule takes as long without a mutant, by far."""
_TRACED_SECONDS = 15
"""How long it is looked which lines the schedules come to."""
NOT_REACHED = "not reached"
TIME_LIMIT = "time limit"
_STEP = 7
"""A block of neighbouring seeds has the same options: steps of 7 see many options, and some of them more often."""


def touching_safety(mutants: Iterable[Known]) -> list[Known]:
    return [mutant for mutant in mutants if _touches(mutant.name)]


def _touches(name: str) -> bool:
    shelf, _, module = name.partition(":")[0].partition(".")
    return module in SAFETY.get(shelf, ()) and not NO_SAFETY.search(name)


def phases() -> Iterator[Phase]:
    """What runs, in turns: everything drawn, then each mode. For ever."""
    from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
    from bookspark.protocol.writing.ensemble_change import ChangeMode

    vd, guaranteed = {"ledger_type": LedgerType.VD_JOURNAL}, {"replication": Replication.GUARANTEED}
    modes: dict[str, Mapping[str, Any]] = {
        "VD": vd,
        "guaranteed": guaranteed,
        "without a journal": {"journal_write_data": False},
        "accepted loss": {"accept_loss": True},
        "changes delayed": {"ensemble_changes": ChangeMode.DELAYED},
        "held back": {"holds_back": True},
    }
    yield "all drawn", {}, 600
    while True:
        for name, given in modes.items():
            yield name, given, 200
        yield "all drawn", {}, 600


class Simulate:
    """Judges mutants by ``simulate`` alone."""

    def __init__(self, seconds: float, processes: int) -> None:
        self._seconds, self._processes = seconds, processes

    def verdicts(self, mutants: Sequence[Known]) -> Iterator[dict[str, Any]]:
        reached = self._reached()
        works = [Work(mutant, partial(self._judge, mutant), self._seconds + _HANGS_SECONDS) for mutant in mutants]
        hit = [work for work in works if reached.by(work.key)]
        for work in works:
            if work not in hit:
                yield self._verdict(work.key, None, 0.0, NOT_REACHED)
        for mutant, said in each_in_a_process(hit, self._processes):
            found, seconds, phase = said or (TIME_LIMIT, self._seconds, "")
            yield self._verdict(mutant, found, seconds, phase)

    def _verdict(self, mutant: Known, found: str | None, seconds: float, phase: str) -> dict[str, Any]:
        return {
            "mutant": mutant.name, "operator": mutant.operator, "killed": bool(found), "simulation": found, "seconds": seconds,
            "phase": phase, "tests": None,
        }  # fmt: skip

    def _reached(self) -> Reached:
        """What the first schedules of each phase come to without a mutant. Nothing may be wrong."""
        ((_, said),) = each_in_a_process([Work("without a mutant", self._trace, 1800)], 1)
        test, seconds, failed, places = said
        if failed:
            raise RuntimeError(f"without a mutant, schedules end in {failed}")
        return Reached([Run(test, seconds, failed, [tuple(place) for place in places])], last=lambda test: False)

    def _trace(self, watch: Watch) -> Any:
        seconds = min(_TRACED_SECONDS, self._seconds)
        return traced(PARTS["protocol"], "simulate", lambda: _search(seconds)[0], time.process_time)

    def _judge(self, mutant: Known, watch: Watch) -> tuple[str, float, str]:
        change(mutant)
        began = time.process_time()
        found, phase = _search(self._seconds)
        return found, round(time.process_time() - began, 2), phase


def _search(seconds: float) -> tuple[str, str]:
    """What broke first, and in which phase; the first is empty if nothing did in this processor time."""
    from bookspark.simulation.search.random_schedules import RandomSchedules
    from bookspark.simulation.search.uncollected import uncollected

    began, done = time.process_time(), Counter[str]()
    name = ""
    try:
        with uncollected():
            for name, given, count in phases():
                schedules = RandomSchedules(given)
                for _ in range(count):
                    if time.process_time() - began > seconds:
                        return "", name
                    violation = schedules.schedule(_STEP * done[name])[2]
                    done[name] += 1
                    if violation is not None:
                        return violation.invariant, name
    except Exception as error:
        return type(error).__name__, name
    return "", name


def table(verdicts: Iterable[dict[str, Any]]) -> str:
    """Rows: shelves. The median is of the processor time to the kill. "survived" are those that the schedules come to."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for verdict in verdicts:
        for row in (verdict["mutant"].partition(".")[0], "all"):
            rows.setdefault(row, []).append(verdict)
    columns = (
        "mutants",
        "equivalent",
        "harmless",
        "killed",
        "by the clock",
        "survived",
        "not reached",
        "median seconds",
    )
    lines = [f"| shelf | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for row, of in sorted(rows.items(), key=lambda one: (one[0] == "all", one[0])):
        killed = [verdict for verdict in of if verdict["killed"]]
        left = Counter(_kind(verdict) for verdict in of if not verdict["killed"])
        took = f"{median(verdict['seconds'] for verdict in killed):.2f}" if killed else ""
        clock = sum(verdict["simulation"] == TIME_LIMIT for verdict in killed)
        counts = (
            len(of),
            left["equivalent"],
            left["harmless"],
            len(killed),
            clock,
            left["survived"],
            left[NOT_REACHED],
            took,
        )
        lines.append(f"| {row} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def is_survivor(verdict: dict[str, Any]) -> bool:
    return not verdict["killed"] and _kind(verdict) in ("survived", NOT_REACHED)


def _kind(verdict: dict[str, Any]) -> str:
    """What one is that was not found."""
    if verdict["mutant"] in equivalents():
        return "equivalent"
    if verdict["mutant"] in harmless():
        return "harmless"
    return NOT_REACHED if verdict["phase"] == NOT_REACHED else "survived"
