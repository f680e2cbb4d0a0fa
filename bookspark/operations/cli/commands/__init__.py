"""The sub-commands of ``bookspark``: a module for each group.

==================  ===========================================================================================================
``bookies``         ``local``, ``zookeeper``, ``bookies``: a cluster on this host, and who is in a cluster
``why``             ``why``, ``top``, ``console``: what is wrong, why, and what to type
``ledger``          ``ledger …``: create, write, read, list, recover and delete ledgers
``log``             ``log …``: the logs that Spark queries write
``audit``           ``snapshot``, ``audit``, ``safe-to-stop``: system tables as Delta tables, and what SQL finds in them
``cookie``          ``cookie …``: the identities of bookies
``bookie``          ``bookie …``: the directories of a stopped bookie
``autorecovery``    ``autorecovery …``: the auditor and the replication workers
``cluster``         ``cluster …``: changes of a cluster that lives
``simulate``        ``simulate``: the protocol's machines through every order of events
``chaos``           ``chaos``: real bookies broken at random; ``replay``: what was decided meanwhile, decided again
``bench``           ``bench …``: measurements
``packaged``        ``run``, ``job``, ``conf``: what comes with the package
==================  ===========================================================================================================

Example::

    app = typer.Typer()
    ledger.add_to(app)
    simulate.add_to(app)
    app(["simulate", "--random", "10"])
"""
