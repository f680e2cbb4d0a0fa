"""A bookie: it stores entries of ledgers in its directories, one for each disk, and serves them to clients.

The rooms, from the top to the bottom; each imports only what stands below it:

==================  ==============================================================================================
``serving``         requests of clients: connections, what each kind of request is answered, maintenance beside them
``offline``         a stopped bookie's directories: looking into them, scrubbing them
``storage``         ``Storage``: one set of calls for everything that a bookie holds
``space``           getting space back: garbage collection, and rewriting of logs
``ledgers``         what a request does to a ledger: adds, fences, explicit LACs, syncs, lossy boots
``holdings``        what a bookie holds: ledgers, index, directories and logs; reads, checkpoints, how full disks are
``commit``          writing in groups: a thread for each directory
``checks``          what of a file is good and what is damaged, for every scrub
``disk``            every byte on the disk: logs, control log, index, checkpoint, notes and markers
``steps``           background work in steps, which the loop, a test or a simulator carries through
``interpreter``     Python's interpreter in a bookie's process
``traffic``         what passes through, counted for metrics
``bookie_config``   ``BookieConfig``: a bookie's options
==================  ==============================================================================================

What a bookie decides about a ledger is pure code in ``protocol.bookie``. An example, without a network::

    from bookspark.store.bookie.bookie_config import bookie_config
    from bookspark.store.bookie.storage import Storage

    storage = Storage(bookie_config(directories=["/tmp/bookie"], zookeeper="-")).open()
    print(storage.status().free_bytes)
    storage.close()
"""
