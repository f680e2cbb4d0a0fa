"""The connector: ``format("bookspark")``, a sink and a source for Spark's streams and batches.

====================  ============================================================================
``data_source``       the format, as Spark asks for it; ``register`` gives a session its cluster
``sink``              writes rows of a DataFrame to a log, each once
``checkpoint_files``  files of a Spark checkpoint that can be read
``source``            reads logs, ledgers and system tables
``several_logs``      reads several logs at once
``feeds``             plans what lies between two offsets of a log or of ledgers
``query_place``       tells the cluster how far a query is
``trigger_delay``     lets a micro-batch wait for more rows
====================  ============================================================================

::

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.format("bookspark").option("zookeeper", "127.0.0.1:2181").option("log", "orders").load()
    options = {"zookeeper": "127.0.0.1:2181", "log": "copy"}
    rows.select("value").write.format("bookspark").options(**options).mode("append").save()
"""
