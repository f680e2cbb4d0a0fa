"""The cluster as it was: pages over the snapshots that Delta tables keep.

============  =================================================================================================================
``deltas``    reads the tables of snapshots without Spark
``moments``   the versions to choose from: the slider, and what every page of the past has
``overview``  the cluster at one snapshot, as far as its tables tell
``changes``   what changed between two snapshots
``ledgers``   the ledgers of a snapshot: a list, and one with the map of its fragments and bookies
``logs``      the logs of a snapshot, lane by lane
``pages``     which page of the past is asked for, and who looks
============  =================================================================================================================

Law: what was, stays: a snapshot is looked at once for each thing that is asked about it. One thread looks, apart from those that
look at the living cluster, and it keeps no more than ids of two snapshots and what pages show. What a snapshot's tables don't
tell is said to be not told. Nothing is written.

Example::

    from bookspark.operations.console.past.pages import Past

    past = Past("/tmp/snapshots", zookeeper)
    print(past.content("/time", {"at": "7"}))
    past.close()
"""
