-- Replication factor histogram: how many confirmed entries have how many copies on the bookies of their write set. prefix: the
-- lowest factor of the entry and all entries before it in the ledger. suffix: the highest factor of the entry and all entries
-- after it. "Guaranteeing write quorum" promises prefix >= entry >= suffix; the three columns are then equal.
WITH factors AS (
  SELECT ledger_id, entries, replication_factor AS entry,
         MIN(replication_factor) OVER (PARTITION BY ledger_id ORDER BY first_entry_id) AS prefix,
         MAX(replication_factor) OVER (PARTITION BY ledger_id ORDER BY first_entry_id DESC) AS suffix
  FROM entry_ranges
),
counted AS (
  SELECT ledger_id, entries, f.factor, f.kind FROM factors
  LATERAL VIEW STACK(3, 'prefix', prefix, 'entry', entry, 'suffix', suffix) f AS kind, factor
)
SELECT factor AS replication_factor,
       SUM(IF(kind = 'prefix', entries, 0)) AS entries_by_prefix_factor,
       SUM(IF(kind = 'entry', entries, 0)) AS entries,
       SUM(IF(kind = 'suffix', entries, 0)) AS entries_by_suffix_factor,
       COUNT(DISTINCT IF(kind = 'entry', ledger_id, NULL)) AS ledgers
FROM counted
GROUP BY factor
ORDER BY factor
