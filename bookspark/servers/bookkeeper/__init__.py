"""Apache BookKeeper's wire protocol, for its own clients (docs/compatibility.md).

=====================  =============================================================================
``requests``           requests and answers as bytes, versions 2 and 3 in one form
``messages``           the messages of version 3, as tables of field numbers
``entries``            conversion of entries: BookKeeper's bodies, our rows
``digest_types``       the digest types of ledgers, from the metadata
``door``               ``BookKeeperDoor``: the port; its connections, dispatch, adds, reads and lists
=====================  =============================================================================

An example, on the loop of a started ``server``::

    from bookspark.servers.bookkeeper.door import BookKeeperDoor

    door = BookKeeperDoor(config, server, read_digest_type)
    host, port = await door.start()
    await door.stop()
"""
