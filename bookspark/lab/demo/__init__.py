"""The main job, ``bookspark run``: rows through Spark into a log on real bookies and out of it, a killed bookie, a comparison.

========================  =====================================================================================================
``job``                   the run from its first process to its last, its folder, and generated orders
``inputs``                the files that a run streams, listed and counted without Spark
``bookies_application``   the bookies' Spark application, as a child process
``spark_side``            the second Spark application: a query in, a query out, the comparison
========================  =====================================================================================================

Example::

    status = run_main_job(folder=Path("/var/log/app"), directory=None, serve=False)
    if status == 0:
        print("what was read back is what was written")
"""
