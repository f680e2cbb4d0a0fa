"""Four queries, four producers, a batch append every second, a tail and a copying query in one log, with kills of each
kind.

The number of rounds is that of minutes. Every row must exist exactly once, each lane in order, without rows that no client
wrote; the readers' accounts must equal the log; appends at expected positions must be linearizable.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.soak._command import main
from tests.system.many_writers.run import FULL, SHORT, ManyWriters


def run(rounds: int, seed: int, short: int) -> Mapping[str, int]:
    with tempfile.TemporaryDirectory(prefix="bookspark-many-") as folder:
        return ManyWriters(Path(folder), SHORT if short else FULL, seed).run(20 if short else rounds * 60)


if __name__ == "__main__":
    main(__doc__, run, 10)
