"""The option ``where`` of reads: a predicate that tasks apply to rows, and plans to what commits tell of them.

==============  ==========================================================
``grammar``     which texts are a predicate, and what they say
``predicates``  what a predicate is, once the types of its columns are known
``choosing``    which rows of a commit it may be true for
``wanted``      which columns and rows a read wants
==============  ==========================================================

::

    from pyspark.sql.types import StructType

    from bookspark.spark.where.wanted import bound
    from bookspark.spark.where.grammar import parsed

    text = "id BETWEEN 3 AND 5 OR name LIKE 'x%'"
    predicate = bound(parsed(text), StructType().add("id", "long").add("name", "string"))
    print(sorted(predicate.columns))

docs/decisions/where.md says which predicates there are, and why.
"""
