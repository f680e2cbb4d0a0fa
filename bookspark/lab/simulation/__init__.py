"""Simulation: a deterministic world around the real machines of ``bookspark.protocol``, with checks of its invariants.

Messages are lost, late and duplicated, bookies crash and lose their disks, and metadata changes by compare-and-set. A list of
moves is a replay.

======================  ========================================================================================================
``simulation_options``  sizes, modes, budgets of mishaps, and switches of protections
``world``               the effect of each move on the world
``moves``               the possible next moves
``state``               the layout of a state and of a move
``slots``               a bookie with all messages from and to it
``bookie``              the real decisions of a bookie over a disk that can forget
``messages``            messages between clients and bookies
``clients``             the writer, recoverers, readers and repairs
``second_ledger``       a second ledger on the same bookies
``search``              every order within bounds, and random schedules
``checkers``            the invariants, one function each
``verdicts``            the checkers' verdicts on states
``view``                a state as checkers see it
``story``               moves told in sentences
``sequence``            the messages of a story
``story_page``          a violation as a page with a sequence diagram
``values``              frozen forms, copies and numbers of machines
``compiled``            modules of the simulator compiled to C, where they exist
======================  ========================================================================================================

Example::

    from bookspark.lab.simulation.search.exhaustive import Exhaustive
    from bookspark.lab.simulation.simulation_options import SimulationOptions

    result = Exhaustive(SimulationOptions(ensemble=2, write_quorum=2, ack_quorum=2)).run()
    assert result.finished and result.violation is None
"""
