"""Benches: the speed of Bookspark on this machine, alone and beside other systems.

The commands are ``bookspark bench …``; ``scripts/bench`` sets the checkout up and calls them.

=================  ============================================================================================================
``ledger``         appends, reads and recovery of ledgers over three bookies of this host
``storage``        a bookie's storage alone, beside a bare loop that writes and syncs the same bytes
``repair``         the repair of a lost bookie, beside a plain copy of files
``micro_batches``  many small commits beside one commit, and Spark's triggers beside the sink noop
``peers``          the same work on Apache BookKeeper, Delta and Kafka, in turns, and tables of ratios
``bare_source``    a Python data source that does nothing: the cost of Spark itself
``trees``          the ledger bench of two commits, in turns
``page``           the tables of docs/performance.md, from kept results
``kept_results``   the file of all runs' results, the changes since the last run, and tables of systems side by side
``processes``      resources used by processes: processor time, memory, bytes written
=================  ============================================================================================================

Absolute figures say more about the machine than about Bookspark. Ratios of systems that ran in turns say more.

Example::

    for workload, figures in measure(Turn.SYNCED, [each.scaled(0.01) for each in WORKLOADS[Turn.SYNCED]], None):
        print(workload.label, figures)
"""
