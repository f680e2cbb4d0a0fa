"""Reality replayed: what real processes decided, decided again by the pure code, and judged by the checkers' laws.

=============  =================================================================================================================
``replaying``  one process's record, fed to the machines again; every answer is compared
``joining``    the histories of all processes, joined by ledger
``laws``       what the joined histories have to keep: the laws of the simulator's checkers and of chaos
``telling``    the history of one ledger, as steps in words and messages
``staging``    the same history, made again in the simulator
``run``        ``Replay``: all of it, for one folder
=============  =================================================================================================================

``bookspark replay FOLDER`` is its command; ``bookspark.store.decisions`` makes the records. ::

    from bookspark.lab.replay.run import Replay

    result = Replay(Path("/var/tmp/decisions")).run()
    assert not result.differences and not result.broken
"""
