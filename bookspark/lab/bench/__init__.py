"""Measurements: how fast Bookspark is on this machine, alone and beside other systems.

The commands are ``bookspark bench …``; ``scripts/bench`` sets the checkout up and calls them.

=================  ============================================================================================================
``ledger``         appends, reads and recovery of ledgers over three bookies of this host
``storage``        a bookie's storage alone, beside a bare loop that writes and syncs the same bytes
``repair``         a lost bookie's data is copied again, beside a plain copy of files
``micro_batches``  Spark's small commits beside one commit, and its triggers beside the sink noop
``peers``          the same work on Apache BookKeeper, Delta and Kafka, in turns, and tables of ratios
``bare_source``    a Python data source that does nothing: what Spark itself costs with any
``trees``          the ledger bench of two commits, in turns
``page``           the tables of docs/performance.md, from what was kept
``kept_results``   what each run appends to a file, and what changed since the last one
``processes``      what processes use: processor time, memory, bytes written
=================  ============================================================================================================

Absolute figures say more about the machine than about Bookspark. Ratios of systems that ran in turns say more.

Example::

    for workload, figures in measure(Turn.SYNCED, [each.scaled(0.01) for each in WORKLOADS[Turn.SYNCED]], None):
        print(workload.label, figures)
"""
