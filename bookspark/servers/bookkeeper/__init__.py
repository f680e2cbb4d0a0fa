"""Apache BookKeeper's wire protocol, so that its own clients use the bookies (docs/compatibility.md).

=====================  ===========================================================
``requests``           requests and answers as bytes, versions 2 and 3 in one form
``messages``           the messages of version 3, as tables of field numbers
``entries``            how an entry is a body there and a row here
``digest_types``       the digest types of ledgers, which the metadata knows
``kept_batches``       stored batches that single entries were read from lately
``shared_by_clients``  what the connections share
``door``               the port: ``BookKeeperDoor``
=====================  ===========================================================

An example, on the loop of a started ``server``::

    from bookspark.servers.bookkeeper.door import BookKeeperDoor

    door = BookKeeperDoor(config, server, read_digest_type)
    host, port = await door.start()
    await door.stop()
"""
