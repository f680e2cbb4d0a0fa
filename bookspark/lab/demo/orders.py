"""Orders of a shop, the rows of a run without a folder.

Law: number and seed alone decide the orders, so every run streams the same bytes. Each column is a hash of the order's number.
Popular countries and products, and a few busy customers, have most of the orders.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ORDERS = 300_000
_FILES = 15
"""The run streams some of these files a micro-batch."""
_SEED = 46
_FIRST = "TIMESTAMP '2026-01-01 00:00:00'"
_COUNTRIES = ("DE", "DE", "DE", "DE", "FR", "FR", "FR", "PL", "PL", "IT", "ES", "NL", "SE", "CZ", "AT", "PT")
_PRODUCTS = {
    "espresso beans 1 kg": 18.90,
    "filter paper 100": 3.20,
    "kettle": 39.00,
    "hand grinder": 74.50,
    "cup": 9.80,
    "scale": 24.00,
    "milk jug": 16.40,
    "tamper": 21.70,
    "descaler": 7.10,
    "cold brew jar": 28.60,
}
_PAYMENTS = ("card", "card", "card", "invoice", "wallet", "wallet", "transfer")
_NAMES = ("order", "placed_at", "customer", "country", "product", "quantity", "unit_price", "payment")


def write_orders(spark: SparkSession, folder: Path) -> None:
    """Write the orders as JSON lines into files of the new ``folder``."""
    prices = ", ".join(f"{price:.2f}" for price in _PRODUCTS.values())
    drawn = spark.range(0, ORDERS, 1, _FILES).selectExpr(
        "CONCAT('A-', LPAD(id, 9, '0')) AS order",
        f"{_FIRST} + MAKE_DT_INTERVAL(0, 0, 0, id * 0.7 + {_drawn('time', 1000)} / 1500.0) AS placed_at",
        # The cube of a uniform number prefers small ones.
        f"CAST(POW({_drawn('customer', 1_000_000)} / 1000000.0, 3) * 40000 AS INT) AS customer",
        f"{_one_of(_COUNTRIES, 'country')} AS country",
        f"{_one_of(tuple(_PRODUCTS), 'product')} AS product",
        f"1 + CAST(POW({_drawn('quantity', 1000)} / 1000.0, 4) * 6 AS INT) AS quantity",
        f"ELEMENT_AT(ARRAY({prices}), CAST(1 + {_drawn('product', len(_PRODUCTS))} AS INT)) AS unit_price",
        f"{_one_of(_PAYMENTS, 'payment')} AS payment",
    )
    drawn.selectExpr(*_NAMES, "quantity * unit_price AS total").write.json(str(folder))


def revenue(rows: DataFrame) -> list[tuple[str, int, str]]:
    """The five countries with the highest revenue in the log's ``rows``: country, number of orders, and total."""
    from pyspark.sql.functions import expr

    orders = rows.selectExpr("FROM_JSON(CAST(value AS STRING), 'country STRING, total DECIMAL(10, 2)') AS order")
    sums = (
        orders.selectExpr("order.*").groupBy("country").agg(expr("COUNT(*) AS orders"), expr("SUM(total) AS revenue"))
    )
    best = sums.orderBy("revenue", ascending=False).take(5)
    return [(row.country, row.orders, f"{row.revenue:,}") for row in best]


def _drawn(column: str, below: int) -> str:
    """A number from 0 up to ``below`` for the order ``id``."""
    return f"PMOD(XXHASH64(id, '{column}', {_SEED}), {below})"


def _one_of(words: tuple[str, ...], column: str) -> str:
    quoted = ", ".join(f"'{word}'" for word in words)
    return f"ELEMENT_AT(ARRAY({quoted}), CAST(1 + {_drawn(column, len(words))} AS INT))"
