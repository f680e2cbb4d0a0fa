"""The main job, ``bookspark run``: real data through Spark into ledgers on real bookies, and back, compared."""
