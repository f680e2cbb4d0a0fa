"""``python -m tests.system.peers NAME [ARGUMENTS]``: calls ``main(arguments)`` of that folder's ``__main__`` (- is _)."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = sorted(path.parent.name.replace("_", "-") for path in Path(__file__).parent.glob("*/__main__.py"))


def main(arguments: list[str]) -> int:
    """Returns the exit status: that of the peer's run, or 2 for an unknown peer."""
    if not arguments or arguments[0] not in NAMES:
        print(f"usage: scripts/peers NAME [ARGUMENTS], NAME one of: {' '.join(NAMES)}", file=sys.stderr)
        return 2
    folder = arguments[0].replace("-", "_")
    status: int = importlib.import_module(f"tests.system.peers.{folder}.__main__").main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
