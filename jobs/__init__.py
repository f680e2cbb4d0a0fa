"""The jobs for spark-submit. ``bookspark job`` lists them, and ``bookspark job NAME`` prints where one lies.

================  =============================================================================================================
``bookies``       keeps bookies on the executors
``autorecovery``  an auditor and replication workers on the executors
``snapshot``      writes snapshots of the system tables to Delta
``audit``         runs audit queries over a snapshot
``copy_ledgers``  copies ledgers of a cluster of Apache BookKeeper's
``offload``       puts old rows of a log into a Delta table
================  =============================================================================================================

Law: a job ends with status 0 when it did what was asked, 1 when an audit found something, and 2 when it could not. An error is
one line on standard error, ``bookspark <job>: <what is wrong and what to do>``.

Example::

    spark-submit --master yarn $(bookspark job bookies) --bookies 3 --directory /data/bookies --zookeeper zk1:2181
"""
