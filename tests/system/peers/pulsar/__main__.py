"""``scripts/peers pulsar``: a Pulsar broker on Bookspark's bookies, while both are killed and restarted."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.system.peers.pulsar.story import Told, a_broker, tried


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 if every check passed."""
    parser = argparse.ArgumentParser("scripts/peers pulsar", description=__doc__)
    parser.add_argument("--messages", type=int, default=100_000, help="how many are produced")
    parser.add_argument("--bytes", type=int, default=1024, help="of each message")
    parser.add_argument("--keep", type=Path, help="a new folder for data and logs, which is kept")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="pulsar-") as folder:
        home = options.keep or Path(folder)
        home.mkdir(parents=True, exist_ok=True)
        with a_broker(home) as (cluster, broker):
            tried(cluster, broker, options.messages, options.bytes, _tell)
    return 0


def _tell(told: Told) -> None:
    print(f"{told.seconds:6.1f} s  {told.what}{': ' if told.seen else ''}{told.seen}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
