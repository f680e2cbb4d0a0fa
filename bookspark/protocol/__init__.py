"""The protocol: every decision about ledgers, as plain code without sockets, files, clocks, threads or randomness.

==============  ================================================================================================================
``ledger``      shared by all decisions: ledger metadata, quorums, responses, actions and events, tables of transitions
``writing``     a ledger's writer: adds, ensemble changes, the close, explicit LACs (last add confirmed)
``reading``     reads of entries and of the LAC, and ledger recovery
``repair``      lost copies: lost bookies, marked ledgers, re-replication
``bookie``      a bookie's own decisions: fences, limbo after a lossy boot, cookies, garbage collection, leases
``changes``     an operator's wanted state: observed cluster, plan of steps, safety of each step
``logs``        logs: chains of ledgers, their commits and their record
``kept_times``  times that one host keeps and another judges
==============  ================================================================================================================

A decision of several steps is a *machine*: ``step(event)`` returns the actions that follow, and does nothing itself. The client,
autorecovery, the bookie daemon and the simulator step the same machines (docs/decisions/pure-protocol.md). A machine refuses an
event that its table does not list, and keeps its state (docs/decisions/illegal-events.md). ::

    writer = LedgerWriter(LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("b1",)),)), version=0)
    assert writer.step(Append(1, byte_length=5)) == [SendAdd(("b1",), 0, 0, -1)]
    assert writer.step(AddAnswered("b1", 0, 0, Positive())) == [Confirm(0)]
    (write,) = writer.step(Close())  # a WriteMetadata; its answer is the next event
"""
