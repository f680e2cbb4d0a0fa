"""Serving: the requests of clients, and what a bookie does beside them.

==================  ==================================================================================
``server``          ``BookieServer``: listens, makes connections, runs the maintenance, stops
``porch``           accepts connections, and keeps them until their first message is there
``connection``      one client's connection: frames in, answers out
``admission``       how many connections there may be, who goes for another one, and when nothing is read
``EntryReads``     READ: stored batches are sent, short ones joined
``read_room``       the memory for what is on its way to readers: one bound for all connections
``poll_timers``     when long polls end that nothing answered
``answers``         the headers of answers
``served_bookie``   what all connections share: storage, ids, secret, threads
``peer``            what the requests of a connection need of it
``refusals``        the warning that something was refused
``maintenance``     checkpoints, looks at the disks, garbage collection, rewriting
==================  ==================================================================================

An example, with an open ``storage`` and its ``config``, on an asyncio loop::

    from bookspark.store.bookie.serving.server import BookieServer

    server = BookieServer(config, storage, "bookie-1", incarnation=1)
    host, port = await server.start()
    await server.stop()
"""
