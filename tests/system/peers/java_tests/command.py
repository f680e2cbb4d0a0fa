"""``scripts/peers NAME [CLASS…]`` for a set of tests: runs the classes, prints the outcomes, and writes the table."""

from __future__ import annotations

import argparse

from tests.system.peers.java_tests.running import VERSION, Judge, PeerTests
from tests.system.peers.java_tests.table import row, write_rows


def run_tests(tests: PeerTests, description: str | None, arguments: list[str]) -> int:
    """Returns the exit status: 0 if every class was run, whatever the results of its tests."""
    parser = argparse.ArgumentParser(f"scripts/peers {tests.name}", description=description)
    parser.add_argument("classes", nargs="*", help="as --list names them; all if none is named")
    parser.add_argument("--seconds", type=float, default=900.0, help="the time limit of each class")
    parser.add_argument("--list", action="store_true", help="print the names of the classes, and run none")
    options = parser.parse_args(arguments)
    judge = Judge(tests)
    known = judge.classes()
    if unknown := sorted(set(options.classes) - set(known)):
        parser.error(f"{tests.jar} {VERSION} has no such class of tests with a cluster: {', '.join(unknown)}")
    if options.list:
        print("\n".join(known))
        return 0
    for name in options.classes or known:
        run = judge.run(name, options.seconds)
        for test in run.tests:
            if test.outcome != "passed":
                print(f"    {test.name}: {test.outcome}: {test.why}")
        print(f"{row(tests, run)} {run.seconds:.0f} s", flush=True)
        total = write_rows(tests, [run])
    print(f"{total} What they said is in {judge.logs}")
    return 0
