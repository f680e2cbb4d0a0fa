"""The sub-commands of ``bookspark``: a module for each group.

==================  ===========================================================================================================
``bookies``         ``local``, ``zookeeper``, ``init``, ``bookies``, ``stop-bookies``: a local or new cluster; a cluster's bookies
``why``             ``why``, ``top``, ``console``: troubles, causes and remedies
``ledger``          ``ledger …``: create, write, read, list, recover and delete ledgers
``log``             ``log …``: logs written by Spark queries
``audit``           ``snapshot``, ``audit``, ``safe-to-stop``: system tables as Delta tables, and SQL audits of them
``cookie``          ``cookie …``: identities of bookies
``bookie``          ``bookie …``: directories of a stopped bookie; checks and stops of a live bookie
``autorecovery``    ``autorecovery …``: the auditor and the replication workers
``cluster``         ``cluster …``: changes of a live cluster
``simulate``        ``simulate``: the protocol's machines through every order of events
``chaos``           ``chaos``: random faults of real bookies; ``replay``: recorded decisions repeated and compared
``bench``           ``bench …``: measurements
``secret``          ``secret``: a new secret
``packaged``        ``run``, ``job``, ``conf``: the main job, jobs and settings files of the package
==================  ===========================================================================================================

Example::

    simulate.app(["--random", "10"])
    ledger.app(["list", "--zookeeper", "127.0.0.1:2181"])
"""
