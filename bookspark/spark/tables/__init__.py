"""System tables: the cluster's state as rows of ``format("bookspark")``, option ``table``.

=====================  ===========================================================================================
``system_tables``      all tables by name
``table``              the class of system tables
``ledgers``            ``ledgers``, ``fragments``, ``accepted_losses``, ``ledger_records`` and ``ledger_ids``
``bookies``            ``bookies``, ``cookies``, ``disks``, ``autorecovery`` and ``underreplication``
``contents``           ``index_ranges``, ``entry_logs``, ``limbo`` and ``entry_checksums``, from each bookie
``logs``               ``logs``, ``log_commits`` and ``gaps``
=====================  ===========================================================================================

::

    from bookspark.spark import session

    spark = session("tables", zookeeper="127.0.0.1:2181")
    fragments = spark.read.format("bookspark").option("table", "fragments").load()
    fragments.where("last_entry_id IS NULL").select("ledger_id", "ensemble").show()
"""
