"""Rows of logs as Spark rows.

==================  ===============================================================
``rows``            encoders of logs' rows and decoders of data ledgers' entries
``row_format``      the columns of a log of Arrow rows
==================  ===============================================================

::

    from pyspark.sql.types import StructType

    from bookspark.spark.rows.row_format import arrow_schema

    assert arrow_schema(StructType().add("amount", "double")).names == ["amount"]
"""
