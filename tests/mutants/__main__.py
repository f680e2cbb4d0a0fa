"""``scripts/mutants``: are wrong protocols and wrong drivers found? One line of JSON for each mutant, and a table at the end.

Exit status: 0 if all that are no equivalents were found, 1 if some survived, 2 for wrong arguments or for tests that fail without
a mutant.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from random import Random
from typing import Any

import pytest

from bookspark.simulation.compiled import use_compiled
from tests.mutants.changing import PARTS, ROOT, Known, all_mutants
from tests.mutants.equivalents import equivalents
from tests.mutants.judging import Judge
from tests.mutants.simulating import Simulate, is_survivor, table, touching_safety


def main() -> int:
    options = _arguments()
    part = PARTS[options.of]
    before = _verdicts(options.out)
    verdicts: list[dict[str, Any]] = []
    stdout = sys.stdout

    def choose() -> Sequence[Known]:
        return _chosen(all_mutants(part), options, before)

    def told(verdict: dict[str, Any]) -> None:
        verdicts.append(verdict)
        line = json.dumps(verdict)
        print(line, file=stdout, flush=True)
        if options.out is not None:
            with options.out.open("a") as out:
                out.write(line + "\n")

    if options.list:
        for mutant in choose():
            print(mutant.name)
        return 0
    if options.by_simulate is not None:
        use_compiled()
        for verdict in Simulate(options.by_simulate, options.processes).verdicts(choose()):
            told(verdict)
        known = {verdict["mutant"]: verdict for verdict in (*before.values(), *verdicts)}
        print(table(known.values()), file=sys.stderr)
        return 1 if any(is_survivor(verdict) for verdict in known.values()) else 0
    judge = Judge(
        choose,
        told,
        seconds=options.seconds,
        deadline=options.deadline,
        schedules=options.schedules,
        processes=options.processes,
        part=part,
        reached_at=options.reached,
    )
    arguments = ["-p", "no:cacheprovider", "-s", "-q", "--rootdir", str(ROOT)]
    with redirect_stdout(sys.stderr):
        status = pytest.main([*arguments, *(str(ROOT / test) for test in options.tests or part.tests)], plugins=[judge])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return 2
    known = {verdict["mutant"]: verdict for verdict in (*before.values(), *verdicts)}
    _table(known.values())
    return 1 if any(_is_survivor(verdict) for verdict in known.values()) else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutants", description=__doc__)
    parser.add_argument("--of", choices=PARTS, default="protocol", help="wrong functions of what (default: protocol)")
    parser.add_argument(
        "--reached", type=Path, help="which tests reach what: measured if the file does not have it, and added to it"
    )
    parser.add_argument("--sample", type=int, help="judge so many mutants (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="which ones a sample has (default: 1)")
    parser.add_argument("--only", type=re.compile, help="judge mutants whose name has this regular expression in it")
    parser.add_argument(
        "--out", type=Path, help="add the verdicts to this file; what it has already is not judged again"
    )
    parser.add_argument("--survivors", action="store_true", help="judge those again that survived in --out")
    parser.add_argument("--schedules", type=int, default=300, help="random schedules for each mutant (default: 300)")
    parser.add_argument("--seconds", type=float, default=30, help="how long its tests may take together (default: 30)")
    parser.add_argument(
        "--deadline", type=float, default=math.inf, help="end a test after so many seconds (default: its own deadline)"
    )
    parser.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="default: one for each core"
    )
    parser.add_argument(
        "--by-simulate", type=float, metavar="SECONDS",
        help="judge those of the protocol that touch safety by simulation alone, each for so much processor time",
    )  # fmt: skip
    parser.add_argument("--list", action="store_true", help="say which mutants those would be")
    parser.add_argument("tests", nargs="*", help="default: those that may reach the part")
    return parser.parse_args()


def _verdicts(out: Path | None) -> dict[str, dict[str, Any]]:
    """By the mutant's name; the last one counts."""
    if out is None or not out.exists():
        return {}
    return {verdict["mutant"]: verdict for verdict in map(json.loads, out.read_text().splitlines())}


def _chosen(mutants: Sequence[Known], options: argparse.Namespace, before: dict[str, Any]) -> Sequence[Known]:
    if options.survivors:
        survived = _is_survivor if options.by_simulate is None else is_survivor
        return [mutant for mutant in mutants if mutant.name in before and survived(before[mutant.name])]
    if options.by_simulate is not None:
        mutants = touching_safety(mutants)
    if options.only is not None:
        mutants = [mutant for mutant in mutants if options.only.search(mutant.name)]
    if options.sample is not None:
        mutants = Random(options.seed).sample(mutants, min(options.sample, len(mutants)))
    return [mutant for mutant in mutants if mutant.name not in before]


def _is_survivor(verdict: dict[str, Any]) -> bool:
    return not verdict["killed"] and verdict["mutant"] not in equivalents()


def _is_undecided(verdict: dict[str, Any]) -> bool:
    return bool(verdict.get("undecided"))


def _table(verdicts: Iterable[dict[str, Any]]) -> None:
    """Rows: shelves; columns: how many mutants, and who found them."""
    counts: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        for row in (_shelf(verdict["mutant"]), "all"):
            count = counts.setdefault(row, Counter())
            count["mutants"] += 1
            if verdict["mutant"] in equivalents():
                count["equivalent"] += 1
                continue
            count["killed"] += bool(verdict["killed"])
            count["simulated"] += verdict["simulation"] is not None
            count["by simulate"] += bool(verdict["simulation"])
            count["by tests"] += bool(verdict["tests"])
            count["by a deadline"] += str(verdict["tests"]).startswith("deadline")
            count["undecided"] += _is_undecided(verdict)
            count["survived"] += not verdict["killed"] and not _is_undecided(verdict)
            count["no test reaches"] += (
                verdict["simulation"] is None and verdict["tests"] is None and not _is_undecided(verdict)
            )
    columns = (
        *("mutants", "equivalent", "killed", "simulated", "by simulate", "by tests", "by a deadline", "survived"),
        *("undecided", "no test reaches"),
    )
    print("", f"| shelf | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|", sep="\n", file=sys.stderr)
    for row, count in sorted(counts.items(), key=lambda one: (one[0] == "all", one[0])):
        print(f"| {row} | {' | '.join(str(count[column]) for column in columns)} |", file=sys.stderr)


def _shelf(mutant: str) -> str:
    """``bookie/commit`` of ``bookspark.bookie.commit.commit_thread:…``; of the protocol ``writing`` of ``writing.writer:…``."""
    names = mutant.partition(":")[0].split(".")
    return "/".join(names[1:3] if len(names) > 3 else names[1:2]) if names[0] == "bookspark" else names[0]


if __name__ == "__main__":
    sys.exit(main())
