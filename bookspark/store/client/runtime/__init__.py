"""Shared by the handles of one client: options, threads, connections, watches, and the drivers of machines.

=====================  =====================================================================================================
``client_context``     ``ClientContext``: a client's options, runtime, metadata store and placement, in every process
``runtime``            ``Runtime``: a client's threads and connections in one process; ``Room``: the bytes of its writers
``calls``              waiting calls run in a thread, with futures that a coroutine awaits
``machine_driver``     drives a machine that recovers or repairs a ledger, in the caller's thread
=====================  =====================================================================================================

::

    from bookspark.store.client.client_config import client_config
    from bookspark.store.client.runtime.client_context import ClientContext
    from bookspark.store.metadata.memory.memory_store import MemoryStore

    context = ClientContext(MemoryStore, client_config(add_timeout_seconds=5.0))
"""
