"""The option ``where`` of reads: a predicate that tasks apply to rows, and plans to the statistics of commits.

==============  =================================================================
``grammar``     parses a text into a predicate
``predicates``  predicates with typed columns, and their answers for bounds
``choosing``    chooses the rows of a commit for which a predicate may be true
``wanted``      binds predicates to columns, and applies them to rows
==============  =================================================================

::

    from pyspark.sql.types import StructType

    from bookspark.spark.where.wanted import bound
    from bookspark.spark.where.grammar import parsed

    text = "id BETWEEN 3 AND 5 OR name LIKE 'x%'"
    predicate = bound(parsed(text), StructType().add("id", "long").add("name", "string"))
    print(sorted(predicate.columns))

docs/decisions/where.md lists the predicates, with reasons.
"""
