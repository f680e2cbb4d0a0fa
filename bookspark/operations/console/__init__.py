"""Live web pages of a cluster: ``bookspark console``.

============  =================================================================================================================
``figures``   rates of adds and reads from the bookies' metrics or from a Prometheus, over time
``watch``     threads that look at the cluster and its logs, more often while pages are requested
``overview``  page of the whole cluster: health, bookies, plots
``logs``      pages of logs: a list, one log with its lanes and readers' lags, and all readers and writers
``rows``      viewer of a log's rows
``ledgers``   pages of ledgers: a list, and one ledger with a map of its fragments and bookies
``what_if``   page of the risks of stopped bookies or hosts
``past``      pages over snapshots: the cluster at an earlier time, and changes
``looks``     looks at single objects, shared by concurrent requests
``plots``     plots of figures over time
``pages``     frame of every page, with style and script
``server``    HTTP server: access check, routing, pages
============  =================================================================================================================

Law: the console changes nothing, neither in the cluster nor in ZooKeeper. Text from the cluster (names, hosts, paths, reasons,
errors) is untrusted and is escaped where it becomes HTML. A page loads nothing from other hosts and shows no secret.

Example::

    with WebConsole(bookkeeper, "127.0.0.1", 0) as console:
        print(console.url)
        threading.Event().wait(60)
"""

from bookspark.operations.console.server import WebConsole

__all__ = ["WebConsole"]
