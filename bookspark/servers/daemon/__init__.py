"""The daemon: a bookie as a process of its own, and what starts it and looks after it. Nothing of the protocol is decided here.

==================  ============================================================================
``__main__``        ``python -m bookspark.servers.daemon OPTIONS.json``
``bookie_process``  the boot phases, serving, and the clean stop
``identity``        who the bookie is: its cookies
``metrics``         figures for Prometheus
``lease_server``    the lease socket: the bookie's side
``lease_client``    the lease socket: the side of the lease's holder
``launch``          starting, adopting and ending bookie processes
``processes``       processes by pid and start time
``directories``     the lock and the cookie in each directory
``settings``        the settings file, ``bookspark.toml``
==================  ============================================================================

An example::

    from bookspark.store.bookie.bookie_config import bookie_config
    from bookspark.servers.daemon.launch import adopt_or_start

    bookie = adopt_or_start(bookie_config(directories=["/data/bookie"], zookeeper="localhost:2181"), "me")
    print(bookie.wait_serving().address)
    bookie.stop()
"""
