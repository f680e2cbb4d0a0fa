"""Bookspark in Spark: sessions, bookies on executors, ``format("bookspark")``, snapshots and audits.

``session`` is the function; what else its module has is imported from ``bookspark.spark.session``.
"""

from __future__ import annotations

from bookspark.extras import extra_needed

with extra_needed("bookspark.spark"):
    from bookspark.spark.bookies.bookie_service import BookieService
    from bookspark.spark.session import session

__all__ = ["BookieService", "session"]
