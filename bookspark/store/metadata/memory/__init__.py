"""The metadata store in memory, for tests and simulations, with the same answers as the store over ZooKeeper.

================  ===========================================================================================
``memory_store``  the store: one client's session
================  ===========================================================================================

Example::

    from bookspark.store.metadata.memory.memory_store import MemoryStore
    store = MemoryStore()
    other = store.another()  # a second client of the same cluster
    assert other.instance_id == store.instance_id
"""
