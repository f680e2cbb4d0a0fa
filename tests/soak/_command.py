"""The command line that every soak has: ``python -m tests.soak.NAME [--rounds N]``; the last line is one JSON object."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping


def main(description: str, run: Callable[[int], Mapping[str, object]], rounds: int) -> None:
    """Call ``run`` with the number of rounds, and print what it returns. An exception of it is the failure."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    result = run(parser.parse_args().rounds)
    sys.stdout.flush()
    print(json.dumps(result))
