"""``python -m bookspark.store.autorecovery``: an autorecovery process started by a program.

Law: the first line of standard input is a JSON object, ``{"zookeeper": …, "client": {…}, "autorecovery": {…}}``. The process
prints its name once it works, and ends with status 0 at the end of its standard input, so it does not outlive its parent.
After a failure the last line on stderr is the reason, and the status is 2, "could not run".
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.store.autorecovery.autorecovery_config import autorecovery_config
from bookspark.store.autorecovery.process import Autorecovery
from bookspark.store.client import BookKeeper
from bookspark.support.log_lines import begin_log
from bookspark.support.plain_text import one_line


class _Options(msgspec.Struct, forbid_unknown_fields=True):
    zookeeper: str
    client: dict[str, Any] = {}
    autorecovery: dict[str, Any] = {}


def main() -> int:
    begin_log()
    try:
        options = _options(sys.stdin.readline())
        bookkeeper = BookKeeper(options.zookeeper, **options.client)
        with Autorecovery(bookkeeper, autorecovery_config(**options.autorecovery)) as running:
            print(running.name, flush=True)
            sys.stdin.read()
    except BookKeeperError as error:
        print(f"bookspark autorecovery: {one_line(error)}", file=sys.stderr, flush=True)
        return 2
    return 0


def _options(line: str) -> _Options:
    try:
        return msgspec.json.decode(line, type=_Options)
    except msgspec.DecodeError as error:
        raise ConfigurationError(
            f"the first line of standard input is not a JSON object of options: {error}"
        ) from error


if __name__ == "__main__":
    sys.exit(main())
