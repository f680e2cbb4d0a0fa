"""The connector: ``format("bookspark")``, a sink and a source for Spark's streams and batches.

====================  ============================================================================
``data_source``       the format, as Spark asks for it; ``register`` gives a session its cluster
``sink``              writes rows of a DataFrame to a log, each once
``sink_checks``       refuses what can't be written before the first task
``fingerprints``      tells a micro-batch from another one of its number
``checkpoint_files``  files of a Spark checkpoint that can be read
``file_sources``      tells files that were renamed from new ones
``source``            reads logs, ledgers and system tables
``several_logs``      reads several logs at once
``feeds``             plans what lies between two offsets of a log or of ledgers
``added_columns``     the columns that tell when a row was committed, and its lane
``lost_entries``      goes on, or not, where entries can't be read
``active_session``    lets other Python threads write
``query_place``       tells the cluster how far a query is
``trigger_delay``     lets a micro-batch wait for more rows
``pinned_start``      keeps the start of a stream that begins at ``latest``
====================  ============================================================================

::

    from pyspark.sql import SparkSession

    spark = SparkSession.builder.getOrCreate()
    rows = spark.read.format("bookspark").option("zookeeper", "127.0.0.1:2181").option("log", "orders").load()
    options = {"zookeeper": "127.0.0.1:2181", "log": "copy"}
    rows.select("value").write.format("bookspark").options(**options).mode("append").save()
"""
