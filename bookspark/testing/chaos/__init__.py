"""Chaos: a cluster whose bookies and links are broken at random while clients work, and the history of what these saw checked."""

from bookspark.testing.chaos.run import Chaos, ChaosResult

__all__ = ["Chaos", "ChaosResult"]
