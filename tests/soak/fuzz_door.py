"""Fuzz the door for BookKeeper's clients, guided by coverage (atheris, which is libFuzzer): requests of both versions,
whole and damaged, and arbitrary bytes (``tests/servers/bookkeeper/fuzzing.py``). Rounds are minutes."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from tests.soak._command import main
from tests.soak.fuzz_strangers import fuzz, run


def _run(minutes: int) -> Mapping[str, object]:
    from tests.servers.bookkeeper.fuzzing import seeds

    return run(minutes, "tests.soak.fuzz_door", seeds())


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fuzz"]:
        fuzz(sys.argv[2], sys.argv[3], int(sys.argv[4]), door=True)
    else:
        main(__doc__, _run, 60)
