"""The bookies' Spark application: ``spark-submit [--master …] jobs/bookies.py --bookies 3 --directory DIR``.

It keeps bookies on the executors until SIGTERM or SIGINT, and then stops them cleanly. Once all serve it prints one
line of JSON: ``{"zookeeper": …, "pid": …, "bookies": [{"bookie_id", "address", "pid", "host", "home"}, …],
"executors": […]}``. What is wrong is said in one line, with a non-zero exit status.
"""

from __future__ import annotations

import sys

from bookspark.spark.bookies.bookies_job import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
