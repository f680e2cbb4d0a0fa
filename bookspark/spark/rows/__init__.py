"""Rows of logs as Spark has them.

==================  ===================================================================
``rows``            chooses the encoder of a log and the decoder of a ledger
``arrow_rows``      entries that are Arrow record batches
``column_bounds``   bounds of columns, for what commits tell
``row_format``      the columns of a log of Arrow rows
``gathered``        small record batches made one
``merged_columns``  the columns of several logs that are read together
==================  ===================================================================

::

    from pyspark.sql.types import StructType

    from bookspark.spark.rows.row_format import arrow_schema

    assert arrow_schema(StructType().add("amount", "double")).names == ["amount"]
"""
