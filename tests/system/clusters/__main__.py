"""``python -m tests.system.clusters NAME [ARGUMENTS]``: runs ``main(arguments)`` of ``__main__`` in the folder of that name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

NAMES = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__main__.py"))


def main(arguments: list[str]) -> int:
    """Returns the exit status: that of the cluster's run, or 2 for an unknown cluster."""
    if not arguments or arguments[0] not in NAMES:
        print(f"usage: scripts/clusters NAME [ARGUMENTS], NAME one of: {' '.join(NAMES)}", file=sys.stderr)
        return 2
    status: int = importlib.import_module(f"tests.system.clusters.{arguments[0]}.__main__").main(arguments[1:])
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
