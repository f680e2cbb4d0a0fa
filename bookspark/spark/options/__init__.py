"""Options of ``format("bookspark")``: what ``.option(...)`` may say, as frozen values.

==================  ======================================================
``given_options``   takes options by their names; options of all reads and writes
``sink_options``    options of writes
``places``          where a read of logs begins and ends
``source_options``  options of reads
==================  ======================================================

::

    from bookspark.spark.options.source_options import SourceOptions

    options = SourceOptions.parse({"zookeeper": "127.0.0.1:2181", "log": "orders", "startingOffsets": "100"})
    print(options.for_batch().start)
"""
