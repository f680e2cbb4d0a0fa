"""Holdings: the entries that a bookie holds, and their files.

====================  ===============================================================================
``holdings``          ``Holdings``: ledgers, index, directories and logs in one place
``log_directory``     one directory: its logs, its control log, its commit thread
``boot``              reading the directories at a start
``reads``             reading stored batches
``scrubbing``         reading and checking every byte of the logs, round after round
``kept_files``        reading, checking and renewing the other files
``checkpointing``     checkpoints of the index
``disk_threads``      threads for calls that wait for a disk
``disks``             the adds that each directory takes, by its free space
``disk_marks``        marks of a disk's use
``commit_results``    answers after a write; failed and full directories
``volatile_ledgers``  LastAddSynced of volatile ledgers
====================  ===============================================================================

An example, with the ``storage`` of ``bookie.storage``::

    holdings = storage.holdings
    plan = holdings.plan_read(17, 0, 9, 0, sparse=False)
    fetched = holdings.files.fetch(plan.pieces, cached_only=False)
"""
