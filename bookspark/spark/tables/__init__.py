"""The system tables by family; ``bookspark.spark.tables.system_tables`` has them by name."""
