"""Which mutants of the protocol touch safety, and whether simulation alone finds them (``scripts/mutants --by-simulate``).

Law: no test judges here. Each mutant gets a process of its own and the simulators that come to its lines (``simulators``), until
something breaks, a machine fails, or the processor time is over. The one that had the least of it goes on, so they share it. Each
runs the same seeds in the same order. First they run without a mutant: what they find then is no mutant's fault, and a mutant
none of whose lines a simulator comes to would change nothing there. If none does, it survives ("not reached").

The compiled simulator is used where it is there. It calls the machines of the protocol, which are not compiled, and a mutant
changes the code object of their very functions (``changing``).
"""

from __future__ import annotations

import gc
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

_HANGS_SECONDS = 15
"""No schedule takes as long without a mutant, by far."""
_TRACED_SECONDS = 15
"""How long it is looked which lines a simulator comes to."""
_COLLECTS_SELDOM = 20_000, 10, 10
"""What was imported is not looked through again, and a schedule makes many objects that counting frees."""
NOT_REACHED = "not reached"
TIME_LIMIT = "time limit"


def touching_safety(mutants: Iterable[Known]) -> list[Known]:
    return [mutant for mutant in mutants if _touches(mutant.name)]


def _touches(name: str) -> bool:
    shelf, _, module = name.partition(":")[0].partition(".")
    return module in SAFETY.get(shelf, ()) and not NO_SAFETY.search(name)


class Simulate:
    """Judges mutants by simulation alone."""

    def __init__(self, seconds: float, processes: int) -> None:
        self._seconds, self._processes = seconds, processes

    def verdicts(self, mutants: Sequence[Known]) -> Iterator[dict[str, Any]]:
        # Only now: whoever wants compiled modules had to ask for them first.
        from tests.mutants.simulators import SIMULATORS

        reached = self._reached(SIMULATORS)
        names = {mutant: [run.test for run in reached.by(mutant)] for mutant in mutants}
        for mutant in mutants:
            if not names[mutant]:
                yield self._verdict(mutant, None, 0.0, NOT_REACHED)
        works = [
            Work(mutant, partial(self._judge, mutant, by), self._seconds + _HANGS_SECONDS)
            for mutant, by in names.items()
            if by
        ]
        for mutant, said in each_in_a_process(works, self._processes):
            found, seconds, phase = said or (TIME_LIMIT, self._seconds, ", ".join(names[mutant]))
            yield self._verdict(mutant, found, seconds, phase)

    def _verdict(self, mutant: Known, found: str | None, seconds: float, phase: str) -> dict[str, Any]:
        return {
            "mutant": mutant.name, "operator": mutant.operator, "killed": bool(found), "simulation": found, "seconds": seconds,
            "phase": phase, "tests": None,
        }  # fmt: skip

    def _reached(self, names: Iterable[str]) -> Reached:
        """What the first seeds of each simulator come to without a mutant. Nothing may be wrong."""
        runs = []
        works = [Work(name, partial(self._trace, name), 1800) for name in names]
        for name, said in each_in_a_process(works, self._processes):
            if said is None or said[2]:
                raise RuntimeError(f"without a mutant, {name} end in {said[2] if said else TIME_LIMIT}")
            _, seconds, failed, places = said
            runs.append(Run(name, seconds, failed, [tuple(place) for place in places]))
        return Reached(runs, last=lambda test: False)

    def _trace(self, name: str, watch: Watch) -> Any:
        seconds = min(_TRACED_SECONDS, self._seconds)
        return traced(PARTS["protocol"], name, lambda: _search([name], seconds)[0], time.process_time)

    def _judge(self, mutant: Known, names: Sequence[str], watch: Watch) -> tuple[str, float, str]:
        change(mutant)
        began = time.process_time()
        found, phase = _search(names, self._seconds)
        return found, round(time.process_time() - began, 2), phase


def _search(names: Sequence[str], seconds: float) -> tuple[str, str]:
    """What broke first, and in which simulator and phase; the first is empty if nothing did in this processor time."""
    from tests.mutants.simulators import SIMULATORS, quietly

    quietly()
    gc.freeze()
    gc.set_threshold(*_COLLECTS_SELDOM)
    began = time.process_time()
    runs = {name: SIMULATORS[name]() for name in names}
    spent = dict.fromkeys(names, 0.0)
    at = ""
    while time.process_time() - began < seconds:
        name = min(names, key=spent.__getitem__)
        turn = time.process_time()
        try:
            phase, broken = next(runs[name])
        except Exception as error:
            return type(error).__name__, name
        spent[name] += time.process_time() - turn
        at = f"{name}: {phase}"
        if broken:
            return broken, at
    return "", at


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
