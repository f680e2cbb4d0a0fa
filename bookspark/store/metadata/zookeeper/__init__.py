"""The metadata store over ZooKeeper, and a ZooKeeper of one's own.

===================  ========================================================================================
``zookeeper_store``  the store
``cluster``          which cluster is at a place, and how a new one is begun
``conversion``       an older one gets the formats of BookKeeper's cookies and tasks
``zookeeper_tree``   its documents for autorecovery
``registration``     a bookie's ephemeral node, kept over the loss of sessions
``ledger_ids``       the counter of ledger ids
``ledger_listing``   which ledgers there are, all at once or in spans of ids
``nodes``            single nodes: compare-and-set and watches, with lost replies settled
``many_reads``       many nodes read by one request
``record_nodes``     the nodes of small records, whose versions never come again
``connection``       a session in which every call has a deadline
``session_figures``  what a session tells for metrics
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
