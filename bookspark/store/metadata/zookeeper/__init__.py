"""The metadata store over ZooKeeper, and an embedded ZooKeeper.

===================  ========================================================================================
``zookeeper_store``  the store
``nodes``            single nodes: compare-and-set and watches, with lost replies settled
``connection``       a session in which every call has a deadline
``exposure``         doors open to strangers beside the cluster's ACL
``layout``           paths and connection strings
``embedded``         the ZooKeeper server in pyspark's jars as a child process
``java``             the Java that runs it
===================  ========================================================================================

Example::

    from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
    from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
    with EmbeddedZooKeeper("/var/lib/bookspark/zookeeper") as server:
        store = ZooKeeperStore(server.connection_string)
"""
