"""Rows of logs as Spark has them.

==================  ===================================================================
``rows``            chooses the encoder of a log and the decoder of a ledger
``row_format``      the columns of a log of Arrow rows
==================  ===================================================================

::

    from pyspark.sql.types import StructType

    from bookspark.spark.rows.row_format import arrow_schema

    assert arrow_schema(StructType().add("amount", "double")).names == ["amount"]
"""
