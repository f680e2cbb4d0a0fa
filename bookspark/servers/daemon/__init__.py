"""The daemon: a bookie as a process of its own, with its launcher and its lease. It decides nothing of the protocol.

==================  ============================================================================
``__main__``        ``python -m bookspark.servers.daemon OPTIONS.json``
``bookie_process``  the boot phases, serving, and the clean stop
``identity``        the bookie's cookies
``metrics``         figures for Prometheus
``lease_server``    the lease socket: the bookie's side
``lease_client``    the lease socket: the side of the lease's holder
``launch``          starting, adopting and ending bookie processes
``processes``       processes by pid and start time
``directories``     the lock and the cookie in each directory
==================  ============================================================================

An example::

    from bookspark.store.bookie.bookie_config import bookie_config
    from bookspark.servers.daemon.launch import adopt_or_start

    bookie = adopt_or_start(bookie_config(directories=["/data/bookie"], zookeeper="localhost:2181"), "me")
    print(bookie.wait_serving().address)
    bookie.stop()
"""
