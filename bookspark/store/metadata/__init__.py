"""The metadata store: ledgers, bookies, cookies, tasks and small records, changed by compare-and-set only.

==================  =========================================================================================
``store``           the interface that both stores implement
``zookeeper``       the store over ZooKeeper, and the embedded ZooKeeper
``memory``          its twin in memory, for tests and simulations
``autorecovery``    the tasks of replication workers and the election of auditors, over documents
``documents``       small documents at paths, and locks made of them
``records``         values, their JSON documents, and the names and refusals that all stores share
``bookie_homes``    each bookie's last host, directories, rack and labels
``bookie_reach``    the reach of each bookie's directories
``placement_rule``  the cluster's placement rule
``lost_records``    ledgers that have lost their records
``store_clock``     the cluster's time
``notifier``        the threads that call watchers
``short_waits``     shorter deadlines for a caller that can do without an answer
==================  =========================================================================================

Example::

    from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
    store = ZooKeeperStore("127.0.0.1:2181")
    metadata, version = store.read_ledger(42)
    store.close()
"""
