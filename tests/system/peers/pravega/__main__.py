"""``scripts/peers pravega``: Pravega's DurableDataLog on Bookspark's bookies, while writers and a bookie are killed."""

from __future__ import annotations

import sys

from tests.system.peers import java_programs
from tests.system.peers.pravega.story import story


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 if every check passed."""
    return java_programs.main("pravega", __doc__, "records", 100_000, story, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
