"""``bookspark bench ledger``: appends, reads and recovery of ledgers, by one client and three bookies of this host.

=============  ================================================================================================================
``cases``      the workloads L1 to L14, in a form for peers too
``workloads``  runs them on a ``LocalCluster``
=============  ================================================================================================================

Example::

    workloads = [workload.scaled(0.01) for workload in WORKLOADS[Turn.DURABILITY]]
    for workload, figures in measure(Turn.DURABILITY, workloads, directory=None):
        print(workload.label, figures["adds_per_second"])
"""
