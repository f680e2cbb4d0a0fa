"""The metadata store over ZooKeeper, and a ZooKeeper of one's own.

===================  ========================================================================================
``zookeeper_store``  the store
``conversion``       an older one gets the formats of BookKeeper's cookies and tasks
``nodes``            single nodes: compare-and-set and watches, with lost replies settled
``connection``       a session in which every call has a deadline
``layout``           which path holds what
``embedded``         the ZooKeeper server in pyspark's jars as a child process
``java``             which Java runs it
===================  ========================================================================================

Example::

    from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
    from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
    with EmbeddedZooKeeper("/var/lib/bookspark/zookeeper") as server:
        store = ZooKeeperStore(server.connection_string)
"""
