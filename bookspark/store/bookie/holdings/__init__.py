"""Holdings: what a bookie holds, and where it lies.

====================  ===============================================================================
``holdings``          ``Holdings``: ledgers, index, directories and logs in one place
``log_directory``     one directory: its logs, its control log, its commit thread
``boot``              reading everything at a start
``reads``             reading stored batches
``scrubbing``         reading and checking every byte of the logs, round after round
``kept_files``        reading and checking the other files, and writing anew what is damaged
``checkpointing``     checkpoints of the index
``disk_threads``      threads for what has to wait for a disk
``disks``             which directory takes what
``disk_marks``        how full a disk may be
``commit_results``    who is answered after a write; directories that failed or are full
``volatile_ledgers``  LastAddSynced of volatile ledgers
====================  ===============================================================================

An example, with the ``storage`` of ``bookie.storage``::

    holdings = storage.holdings
    plan = holdings.plan_read(17, 0, 9, 0, sparse=False)
    fetched = holdings.files.fetch(plan.pieces, cached_only=False)
"""
