"""The command ``bookspark``. It needs the extra ``[cli]``.

=============  ================================================================================================================
``main``       the command itself: its options, its exit statuses, its sub-commands
``commands``   a module for each group of sub-commands
``terminal``   shared by the commands: options, settings, output, signals
=============  ================================================================================================================

Law: commands import what they use when they run, so that ``bookspark --help`` is quick. Spark and the client are imported last.

Example::

    sys.argv = ["bookspark", "ledger", "list", "--zookeeper", "127.0.0.1:2181"]
    main()  # prints the ids of the ledgers, and ends the process with status 0
"""
