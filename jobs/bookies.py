"""Keep bookies on Spark's executors until SIGTERM or SIGINT.

On a local master the signal stops the bookies cleanly. On a cluster they continue to serve for the next run, and ``bookspark
stop-bookies`` stops them.

    spark-submit [--master …] $(bookspark job bookies) --bookies 3 --directory DIRECTORY

When every reachable bookie serves, the job prints one line of JSON: ``{"zookeeper": …, "pid": …, "bookies": [{"bookie_id",
"address", "pid", "host", "home"}, …], "missing": […], "executors": […]}``, with ``--console-port`` also ``"console"``, the URL of
the driver's console. An error is one line on standard error, with status 2.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from bookspark.spark.bookies.bookies_job import ConsoleOptions, main


def open_console(zookeeper: str, options: ConsoleOptions) -> AbstractContextManager[str]:
    """The console of the cluster at ``zookeeper``; yields its URL."""
    from bookspark.operations.console.server import shown

    return shown(zookeeper, options.listen, options.port, options.token_file, options.snapshots)


def check_console() -> None:
    """Raises MissingExtraError without the extra ``console``."""
    import bookspark.operations.console  # noqa: F401


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], open_console, check_console))
