"""Options of ``format("bookspark")``: values of ``.option(...)``, as frozen values.

==================  ============================================================
``given_options``   takes options by their names; options of all reads and writes
``sink_options``    options of writes
``places``          options of the start and end of a read of logs
``source_options``  options of reads
==================  ============================================================

::

    from bookspark.spark.options.source_options import SourceOptions

    options = SourceOptions.parse({"zookeeper": "127.0.0.1:2181", "log": "orders", "startingOffsets": "100"})
    print(options.for_batch().start)
"""
