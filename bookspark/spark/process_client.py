"""One client per process and cluster, for code that Spark runs in its Python workers.

Law: a worker connects once and stays connected while Spark reuses it; a forked worker never uses its parent's
connections (the client itself sees to that). Its options are those of the settings file that ``BOOKSPARK_CONFIG`` names
in its environment. Code that runs in the user's own process makes its own client and closes it.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bookspark.client import BookKeeper


@cache
def client(zookeeper: str) -> BookKeeper:
    """This process's client of the cluster at ``zookeeper``. Never closed: it ends with the worker."""
    from bookspark.client import BookKeeper
    from bookspark.daemon.settings import of_environment

    return BookKeeper(zookeeper, **of_environment("client"))
