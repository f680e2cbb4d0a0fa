"""``bookspark bench peers``: Bookspark beside other systems, in turns on one machine.

=====================  ========================================================================================================
``ledger_comparison``  ledgers beside Apache BookKeeper
``client_comparison``  BookKeeper's own client with our bookies, beside it with BookKeeper's
``bookkeeper_peer``    Apache BookKeeper: its ZooKeeper, three bookies, and the client that times it
``spark_comparison``   the sink and the source beside Delta and Kafka
``spark_systems``      the three systems as Spark sees them
``log_comparison``     a log's producer and readers beside a bare ledger and Kafka
``kafka_peer``         Kafka's brokers and the jars that Spark needs for them
``services``           ports, settings, start and end of measured servers
``java``               the poms, the timing client for Apache BookKeeper, and a stand-in for Kafka's token provider
=====================  ========================================================================================================

Example::

    with Peer(build(cache), directory / "peer", settings={}) as peer:
        for line in peer.run(["L1 add size=1024 entries=1000 in_flight=1"]):
            print(line["p50_ms"])
"""
