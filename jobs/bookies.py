"""Keep bookies on Spark's executors until SIGTERM or SIGINT, then stop them cleanly.

    spark-submit [--master …] $(bookspark job bookies) --bookies 3 --directory DIRECTORY

Once every bookie serves, the job prints one line of JSON: ``{"zookeeper": …, "pid": …, "bookies": [{"bookie_id", "address",
"pid", "host", "home"}, …], "executors": […]}``. An error is one line on standard error, with status 1.
"""

from __future__ import annotations

import sys

from bookspark.spark.bookies.bookies_job import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
