"""``bookspark bench ledger``: appends, reads and recovery of ledgers, by one client and three bookies of this host.

=============  ================================================================================================================
``cases``      what is measured: the workloads L1 to L12, which a peer can be given too
``workloads``  runs them on a ``LocalCluster``
=============  ================================================================================================================

Example::

    workloads = [workload.scaled(0.01) for workload in WORKLOADS[Turn.DURABILITY]]
    for workload, figures in measure(Turn.DURABILITY, workloads, directory=None):
        print(workload.label, figures["adds_per_second"])
"""
