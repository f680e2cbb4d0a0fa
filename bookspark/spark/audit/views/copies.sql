-- Which bookie has which entries: the runs of its index, joined where they touch.
WITH marked AS (
  SELECT bookie_id, ledger_id, first_entry_id, last_entry_id,
         MAX(last_entry_id) OVER (
           PARTITION BY bookie_id, ledger_id ORDER BY first_entry_id, last_entry_id
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
  FROM index_ranges
),
numbered AS (
  SELECT *, SUM(CASE WHEN first_entry_id <= reached + 1 THEN 0 ELSE 1 END) OVER (
              PARTITION BY bookie_id, ledger_id ORDER BY first_entry_id, last_entry_id) AS island
  FROM marked
)
SELECT bookie_id, ledger_id, MIN(first_entry_id) AS first_entry_id, MAX(last_entry_id) AS last_entry_id
FROM numbered
GROUP BY bookie_id, ledger_id, island
