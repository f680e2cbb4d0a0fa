"""Keep bookies on Spark's executors until SIGTERM or SIGINT.

On a local master they are stopped cleanly then. On a cluster they serve on for the next run, and ``bookspark stop-bookies`` stops
them.

    spark-submit [--master …] $(bookspark job bookies) --bookies 3 --directory DIRECTORY

Once every bookie serves that an executor reaches, the job prints one line of JSON: ``{"zookeeper": …, "pid": …, "bookies":
[{"bookie_id", "address", "pid", "host", "home"}, …], "missing": […], "executors": […]}``, and with ``--console-port`` also
``"console"``, the address of the console that the driver shows until the job ends. An error is one line on standard error, with
status 2.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager

from bookspark.operations.console.server import shown
from bookspark.spark.bookies.bookies_job import ConsoleOptions, main


def open_console(zookeeper: str, options: ConsoleOptions) -> AbstractContextManager[str]:
    """The console of the cluster at ``zookeeper``."""
    return shown(zookeeper, options.listen, options.port, options.token_file, options.snapshots)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], open_console))
