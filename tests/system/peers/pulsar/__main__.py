"""``scripts/peers pulsar``: a Pulsar broker on Bookspark's bookies, while both are killed and restarted."""

from __future__ import annotations

import sys

from tests.system.peers import java_programs
from tests.system.peers.pulsar.story import story


def main(arguments: list[str]) -> int:
    """Returns the exit status: 0 if every check passed."""
    return java_programs.main("pulsar", __doc__, "messages", 100_000, story, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
