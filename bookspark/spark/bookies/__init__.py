"""Bookies on Spark's executors, looked after by the tasks of a barrier job (docs/decisions/bookies-outlive-tasks.md).

=======================  =============================================================================
``bookie_service``       starts and stops the bookies of an application
``barrier_job``          keeps the job submitted that looks after them
``bookie_task``          a task of that job: adopts, starts and restarts bookies
``placement``            which task looks after which bookie, what is made and what is out of reach: pure
``homes``                the directories of bookies on a host
``service_records``      what the service and its tasks tell each other
``slots``                how many tasks an application has room for
``bookies_job``          the main function of the job ``bookies``
``autorecovery_service`` auditors and replication workers in tasks
=======================  =============================================================================

::

    from bookspark.spark import BookieService, session

    spark = session("bookies", master="local[4]")
    with BookieService(spark, bookies=3, directories=["/tmp/bookspark"]) as service:
        print(service.zookeeper, sorted(service.bookies))
"""
