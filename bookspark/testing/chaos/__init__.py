"""Chaos: a cluster whose bookies and links are broken at random while clients work, and a judge of what the clients saw.

==================  =========================================================================================================
``run``             ``Chaos``: one run, from the start of the cluster to the last read of every ledger
==================  =========================================================================================================

``bookspark chaos`` runs it from the command line. The seed repeats what is drawn; docs/testing.md tells how to use it.

::

    from bookspark.testing.chaos import Chaos

    result = Chaos(seconds=60.0, seed=7).run()
    assert not result.violations, result.excerpt
"""

from bookspark.testing.chaos.run import Chaos, ChaosResult

__all__ = ["Chaos", "ChaosResult"]
