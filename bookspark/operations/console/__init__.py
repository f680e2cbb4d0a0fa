"""A cluster as web pages that live: ``bookspark console``.

============  =================================================================================================================
``figures``   what the bookies' metrics say of adds and reads, and the last hour of it
``watch``     looks at the cluster in a thread of its own, often while somebody watches
``overview``  the page of the whole cluster: health, bookies, plots
``logs``      the pages of logs: a list, and one log with its lanes and the lag of every reader
``rows``      the viewer of a log's rows
``ledgers``   the pages of ledgers: a list, and one ledger with a map of its fragments and bookies
``telling``   answers of ``bookspark why`` as HTML
``what_if``   the page that tells what would break if bookies stopped, or a host
``past``      the same pages over snapshots: the cluster as it was, and what changed
``looks``     looks at single things, each shared by all who ask for it meanwhile
``pages``     the frame of every page, with its style and its script
``server``    the console: a door, its pages, and the watch behind them
============  =================================================================================================================

Law: the console changes nothing, neither in the cluster nor in ZooKeeper. What comes from the cluster (names, hosts, paths,
reasons, errors) is strangers' text, and is escaped where it becomes HTML. A page needs nothing from elsewhere, and
shows no secret.

Example::

    with WebConsole(bookkeeper, "127.0.0.1", 0) as console:
        print(console.url)
        threading.Event().wait(60)
"""

from bookspark.operations.console.server import WebConsole

__all__ = ["WebConsole"]
