"""``python -m bookspark`` and the command ``bookspark``: the command line of ``bookspark.operations.cli``.

Law: without the extra ``[cli]`` it ends with status 2 and a line that names the extra to install. Ctrl-C while the command is
imported ends it as any later one does.
"""

from __future__ import annotations

import sys

from bookspark.support.command_line import COULD_NOT, INTERRUPTED
from bookspark.support.extras import missing_extra
from bookspark.support.plain_text import PROBLEM


def main() -> None:
    """Run the command that ``sys.argv`` names. Ends the process with the command's exit status."""
    try:
        from bookspark.operations.cli.main import main as run
    except ModuleNotFoundError as error:
        if (missing := missing_extra(error, "the command bookspark")) is None:
            raise
        print(f"{PROBLEM}{missing}", file=sys.stderr)
        sys.exit(COULD_NOT)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
