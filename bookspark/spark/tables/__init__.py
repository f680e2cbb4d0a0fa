"""The system tables by family; ``bookspark.spark.system_tables`` has them by name."""
