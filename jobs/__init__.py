"""The jobs for spark-submit. ``bookspark job`` lists them, and ``bookspark job NAME`` prints a job's path.

================  =============================================================================================================
``bookies``       keeps bookies on the executors
``autorecovery``  an auditor and replication workers on the executors
``snapshot``      writes snapshots of the system tables to Delta
``audit``         runs audit queries over a snapshot
``copy_ledgers``  copies ledgers of an Apache BookKeeper cluster
``offload``       puts old rows of a log into a Delta table
================  =============================================================================================================

Law: exit status 0: success; 1: an audit has a finding, or a ledger was not copied; 2: an error, reported as one line on standard
error, ``bookspark <job>: <problem and remedy>``.

Example::

    spark-submit --master yarn $(bookspark job bookies) --bookies 3 --directory /data/bookies --zookeeper zk1:2181
"""
