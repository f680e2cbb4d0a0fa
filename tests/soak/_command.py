"""The command line of every soak: ``python -m tests.soak.NAME [--rounds N]``; the last line is a JSON object.

A soak may have more integers as options: ``--first N`` where rounds are numbered, so that they can be spread over several
runs, and ``--processes N`` where several run at once.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Mapping


def main(description: str, run: Callable[..., Mapping[str, object]], rounds: int) -> None:
    """Call ``run`` with the options of the command line, and print its result. An exception is the failure."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=rounds)
    _, *others = inspect.signature(run).parameters
    for name in others:
        default = inspect.signature(run).parameters[name].default
        kind = str if isinstance(default, str) else int
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, default=kind())
    given = vars(parser.parse_args())
    result = run(given.pop("rounds"), **given)
    sys.stdout.flush()
    print(json.dumps(result))
