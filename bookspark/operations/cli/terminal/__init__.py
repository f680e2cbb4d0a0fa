"""Input and output shared by the sub-commands.

====================  =========================================================================================================
``command_options``   options of several commands, and the client made of them
``settings``          the file of ``bookspark --config FILE``
``output``            tables, JSON, problems, ledgers and payloads as text
``signals``           commands that run until Ctrl-C or SIGTERM
====================  =========================================================================================================

Example::

    with until_signal() as wait, client("127.0.0.1:2181") as bookkeeper:
        print_table(("ledger",), [(ledger_id,) for ledger_id in bookkeeper.list_ledgers()])
        wait()
"""
