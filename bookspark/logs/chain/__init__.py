"""The chain of a log's lane: the record, the commits that it leads to, and who writes them.

================  =========================================================================================
``registry``      the records of logs in the metadata store
``lane_choice``   which lane of a log a writer gets
``lane_index``    makes lanes, and takes those that ended out of the index
``log_run``       where a log is, and which run writes it
``commit_ledgers``  reads a commit ledger: its header and its commits
``reader``        reads a lane's commits, in order, as the lane grows
``open_rows``     the rows of the ledger that the newest commit opened
``stamps``        a producer's row as an entry holds it
``committer``     appends commits, each batch once
``commit_times``  finds the first row of a time
``time_search``   finds where a time begins among times that go up
``maintenance``   deletes orphans, truncates and deletes logs
``retention``     removes rows that are too old, or too many
``codec``         the bytes of records and commits
================  =========================================================================================

::

    from bookspark import BookKeeper
    from bookspark.logs.chain.registry import LogRegistry

    with BookKeeper("127.0.0.1:2181") as bookkeeper:
        print(LogRegistry(bookkeeper.metadata).get("orders").commit_ledgers)
"""
