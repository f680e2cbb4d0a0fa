"""Serving: the requests of clients, and the maintenance beside them.

==================  =================================================================================
``server``          ``BookieServer``: listens, makes connections, runs the maintenance, stops
``porch``           accepts connections, and keeps them until their first message is complete
``connection``      a client's connection: frames in, answers out; dispatch; reads of entries and LACs; lists
``admission``       number of connections, choice of the connection to end, pauses of reading
``read_room``       memory of entries on their way to readers: one bound for all connections
``served_bookie``   shared by all connections: storage, ids, secrets, counters, time-outs of long polls
``maintenance``     checkpoints, checks of the disks, garbage collection, rewriting, scrub
==================  =================================================================================

An example, with an open ``storage`` and its ``config``, on an asyncio loop::

    from bookspark.store.bookie.serving.server import BookieServer

    server = BookieServer(config, storage, "bookie-1", incarnation=1)
    host, port = await server.start()
    await server.stop()
"""
