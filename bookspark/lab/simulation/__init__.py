"""A deterministic world around the real machines of ``bookspark.protocol``, and the checks of what they may never do.

Messages are lost, late and duplicated, bookies crash and lose their disks, and metadata is changed by compare-and-set. A list of
moves is a replay.

======================  ========================================================================================================
``simulation_options``  sizes, modes, budgets of mishaps, and the protections that are switched off
``world``               what each move makes of the world
``moves``               what may happen next
``state``               the layout of a state, and what a move is
``slots``               one bookie with all messages from and to it
``bookie``              a bookie: the real decisions over a disk that can forget
``messages``            what travels between clients and bookies
``clients``             the writer, recoverers, readers, and those that repair
``ledgers``             a second ledger on the same bookies
``search``              every order within bounds, and random schedules
``checkers``            the invariants, one module each
``verdicts``            what the checkers say of states
``view``                what a checker is shown
``story``               moves told in sentences
``sequence``            the messages of a story: sent, arrived, given up
``story_page``          a violation as a page with a sequence diagram
``values``              frozen forms and copies of machines, and numbers for them
``compiled``            modules of the simulator that were compiled to C, where somebody did
======================  ========================================================================================================

Example::

    from bookspark.lab.simulation.search.exhaustive import Exhaustive
    from bookspark.lab.simulation.simulation_options import SimulationOptions

    result = Exhaustive(SimulationOptions(ensemble=2, write_quorum=2, ack_quorum=2)).run()
    assert result.finished and result.violation is None
"""
