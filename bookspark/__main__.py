"""``python -m bookspark`` and the command ``bookspark``: the command line of ``bookspark.operations.cli``.

Law: without the extra ``[cli]`` it ends with status 2 and a line that names the extra to install. Ctrl-C at any time ends it
with status 130: all imports are inside ``main``, because they take longer than a short command.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command that ``sys.argv`` names. Ends the process with the command's exit status."""
    try:
        _run()
    except KeyboardInterrupt:
        # INTERRUPTED of bookspark.support.command_line, whose import may be what was interrupted.
        sys.exit(130)


def _run() -> None:
    try:
        from bookspark.operations.cli.main import main as run
    except ModuleNotFoundError as error:
        from bookspark.support.command_line import COULD_NOT
        from bookspark.support.extras import missing_extra
        from bookspark.support.plain_text import PROBLEM

        if (missing := missing_extra(error, "the command bookspark")) is None:
            raise
        print(f"{PROBLEM}{missing}", file=sys.stderr)
        sys.exit(COULD_NOT)
    run()


if __name__ == "__main__":
    main()
