"""The command ``bookspark``. It needs the extra ``[cli]``.

=============  ================================================================================================================
``main``       the command itself: options, exit statuses, sub-commands
``commands``   a module for each group of sub-commands
``terminal``   shared by the commands: options, settings, output, signals
=============  ================================================================================================================

Law: commands import their needs when they run, so ``bookspark --help`` is quick. Spark and the client are imported last.

Example::

    sys.argv = ["bookspark", "ledger", "list", "--zookeeper", "127.0.0.1:2181"]
    main()  # prints the ledger ids, and ends the process with status 0
"""
