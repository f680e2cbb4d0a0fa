"""Replay: the recorded decisions of real processes, repeated by the pure code and judged by the checkers' laws.

=============  =================================================================================================================
``replaying``  a process's record, fed to the machines again; every answer is compared
``joining``    the histories of all processes, joined by ledger
``telling``    a ledger's history as steps in words and messages
``staging``    the same history, repeated in the simulator
``run``        ``Replay``: all of it, for a folder; judges the histories by the laws of the simulator's checkers and of chaos
=============  =================================================================================================================

``bookspark replay FOLDER`` is its command; ``bookspark.store.decisions`` makes the records. ::

    from bookspark.lab.replay.run import Replay

    result = Replay(Path("/var/tmp/decisions")).run()
    assert not result.differences and not result.broken
"""
