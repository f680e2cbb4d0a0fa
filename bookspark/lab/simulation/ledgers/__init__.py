"""Several ledgers on the same bookies.

=================  =============================================================================================================
``second_ledger``  a second ledger, which shares boots, marks and garbage collection with the first
=================  =============================================================================================================

Example::

    from bookspark.lab.simulation.ledgers.second_ledger import world_of
    from bookspark.lab.simulation.simulation_options import SimulationOptions

    world = world_of(SimulationOptions(second_ledger=True))
    assert world.second.ledger_id > world.ledger_id
"""
