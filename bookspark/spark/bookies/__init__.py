"""Bookies on Spark's executors, kept by the tasks of a barrier job (docs/decisions/bookies-outlive-tasks.md).

=======================  ==================================================================
``bookie_service``       starts and stops the bookies of an application
``barrier_job``          keeps the bookies' job submitted, and gets executors to their hosts
``bookie_task``          a task of that job: adopts, starts and restarts bookies
``placement``            assigns bookies to tasks, new homes to hosts, and lists the missing
``homes``                the directories of bookies on a host
``service_records``      the records that the service and its tasks exchange
``slots``                the application's room for tasks
``bookies_job``          the main function of the job ``bookies``
``autorecovery_service`` auditors and replication workers in tasks
=======================  ==================================================================

::

    from bookspark.spark import BookieService, session

    spark = session("bookies", master="local[4]")
    with BookieService(spark, bookies=3, directories=["/tmp/bookspark"]) as service:
        print(service.zookeeper, sorted(service.bookies))
"""
