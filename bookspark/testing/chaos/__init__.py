"""Chaos: a cluster with random faults of bookies and links while clients work, and a judge of the clients' observations.

==================  =========================================================================================================
``run``             ``Chaos``: one run, from the start of the cluster to the last read of every ledger
==================  =========================================================================================================

``bookspark chaos`` runs it from the command line. The seed repeats all random choices; docs/testing.md is its guide.

::

    from bookspark.testing.chaos import Chaos

    result = Chaos(seconds=60.0, seed=7).run()
    assert not result.violations, result.excerpt
"""

from bookspark.testing.chaos.run import Chaos, ChaosResult

__all__ = ["Chaos", "ChaosResult"]
