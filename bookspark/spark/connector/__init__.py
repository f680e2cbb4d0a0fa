"""The connector: ``format("bookspark")``, a sink and a source for Spark's streams and batches.

====================  =====================================================================
``data_source``       the format's entry points; ``register`` gives a session its cluster
``sink``              writes each row of a DataFrame to a log once
``checkpoint``        reads a query's Spark checkpoint
``source``            reads logs, ledgers and system tables
``several_logs``      reads several logs at once
``feeds``             plans the entries between two offsets of a log or of ledgers
``query_place``       records in the cluster how far a query is
``trigger_delay``     lets a micro-batch wait for more rows
``worker_ends``       ends Spark's Python workers in order
====================  =====================================================================

::

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.format("bookspark").option("zookeeper", "127.0.0.1:2181").option("log", "orders").load()
    options = {"zookeeper": "127.0.0.1:2181", "log": "copy"}
    rows.select("value").write.format("bookspark").options(**options).mode("append").save()
"""
