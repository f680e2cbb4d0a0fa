"""What the handles of one client share: options, threads, connections, watches, and the drivers of machines.

=====================  =====================================================================================================
``client_context``     ``ClientContext``: what handles and drivers need of a client, in whatever process they are
``runtime``            ``Runtime``: what a client has in one process, made on first use; ``Room``: the bytes of its writers
``store_actions``      what a machine asks of the metadata store, and the answers
``calls``              calls that wait, begun in a thread: the futures that a coroutine awaits
``machine_driver``     drives a machine that recovers or repairs a ledger, in the caller's thread
=====================  =====================================================================================================

::

    from bookspark.store.client.client_config import client_config
    from bookspark.store.client.runtime.client_context import ClientContext
    from bookspark.store.metadata.memory.memory_store import MemoryStore

    context = ClientContext(MemoryStore, client_config(add_timeout_seconds=5.0))
"""
