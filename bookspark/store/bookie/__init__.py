"""A bookie: stores entries of ledgers in its directories, one for each disk, and serves them to clients.

Packages and modules, from top to bottom; each imports only from below:

==================  =====================================================================================
``serving``         client requests: connections, answers, and maintenance beside them
``offline``         the directories of a stopped bookie: inspection, scrub
``storage``         ``Storage``: the calls for a bookie's adds, reads, control requests and disks
``space``           garbage collection, and rewriting of logs
``ledgers``         the effect of a request on a ledger: adds, fences, explicit LACs, syncs, lossy boots
``holdings``        ledgers, index, directories and logs; reads, checkpoints, free space of the disks
``commit``          group writes: a thread for each directory
``checks``          good and damaged parts of a file, for every scrub
``disk``            all bytes on the disk: logs, control log, index, checkpoint, notes and markers
``steps``           background work in steps, driven by the loop, a test or a simulator
``interpreter``     settings of Python's interpreter for a bookie's process
``traffic``         counters and histograms for metrics
``bookie_config``   ``BookieConfig``: a bookie's options
==================  =====================================================================================

Decisions about a ledger are pure code in ``protocol.bookie``. An example, without a network::

    from bookspark.store.bookie.bookie_config import bookie_config
    from bookspark.store.bookie.storage import Storage

    storage = Storage(bookie_config(directories=["/tmp/bookie"], zookeeper="-")).open()
    print(storage.status().free_bytes)
    storage.close()
"""
