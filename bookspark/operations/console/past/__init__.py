"""Pages of the past: the cluster at the snapshots in Delta tables.

============  =================================================================================================================
``deltas``    reads the tables of snapshots without Spark
``moments``   choice of snapshots: the sliders, and the common parts of all pages
``overview``  the cluster at one snapshot
``changes``   changes between two snapshots
``ledgers``   ledgers of a snapshot: a list, and one ledger with the map of its fragments and bookies
``logs``      logs of a snapshot, lane by lane
``pages``     routing of the pages, and their looks
============  =================================================================================================================

Law: a snapshot never changes, so each result is computed once. One thread looks, separate from the looks at the live cluster; it
keeps a bounded number of ids and results. Facts that a snapshot's tables lack are shown as unknown. Nothing is written.

Example::

    from bookspark.operations.console.past.pages import Past

    past = Past("/tmp/snapshots", zookeeper)
    print(past.content("/time", {"at": "7"}))
    past.close()
"""
