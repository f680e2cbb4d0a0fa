"""The main job, ``bookspark run``: real data through Spark into ledgers on real bookies, read back and compared.

========================  =====================================================================================================
``job``                   the run from its first process to its last
``inputs``                the files that a run ingests, listed and counted without Spark
``event_logs``            Spark's event logs as a growing input
``bookies_application``   the bookies' Spark application, as a child process
``spark_side``            the second Spark application: ingest, read back, compare
``run_folder``            the folder of all files of a run
========================  =====================================================================================================

Example::

    status = run_main_job(folder=Path("/var/log/app"), directory=None, serve=False)
    if status == 0:
        print("what was read back is what was written")
"""
