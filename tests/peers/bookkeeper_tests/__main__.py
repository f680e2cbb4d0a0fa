"""``scripts/peers bookkeeper-tests [CLASS…]``: BookKeeper's tests of its client and autorecovery, on Bookspark's bookies."""

from __future__ import annotations

import argparse
import sys

from tests.peers.bookkeeper_tests.running import VERSION, Judge
from tests.peers.bookkeeper_tests.table import row, write_rows


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 if every class was run, whatever its tests say."""
    parser = argparse.ArgumentParser("scripts/peers bookkeeper-tests", description=__doc__)
    parser.add_argument("classes", nargs="*", help="such as client.BookKeeperTest; all if none is named")
    parser.add_argument("--seconds", type=float, default=900.0, help="the time limit of each class")
    parser.add_argument("--list", action="store_true", help="print the names of the classes, and run none")
    options = parser.parse_args(arguments)
    judge = Judge()
    known = judge.classes()
    if unknown := sorted(set(options.classes) - set(known)):
        parser.error(f"BookKeeper {VERSION} has no such class of tests with a cluster: {', '.join(unknown)}")
    if options.list:
        print("\n".join(known))
        return 0
    for name in options.classes or known:
        run = judge.run(name, options.seconds)
        for test in run.tests:
            if test.outcome != "passed":
                print(f"    {test.name}: {test.outcome}: {test.why}")
        print(f"{row(run)} {run.seconds:.0f} s", flush=True)
        total = write_rows([run])
    print(f"{total} What they said is in {judge.logs}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
