-- Replication factor histogram: confirmed entries by number of copies on their write set. prefix: lowest factor of the entry
-- and all before it. suffix: highest factor of the entry and all after it. With guaranteed write quorum all three are equal.
WITH factors AS (
  SELECT ledger_id, replication_factor AS factor, SUM(entries) AS entries, MIN(first_entry_id) AS first, MAX(last_entry_id) AS last
  FROM entry_ranges
  GROUP BY ledger_id, replication_factor
),
-- The confirmed entries of a ledger are all those from its first to its last. The prefix factor is this one or a lower one from the
-- first entry on that has it; the suffix factor is this one or a higher one up to the last entry that has it.
reached AS (
  SELECT *, MIN(first) OVER lower AS at_most_from, MAX(last) OVER higher AS at_least_until,
         MIN(first) OVER (PARTITION BY ledger_id) AS first_of_all, MAX(last) OVER (PARTITION BY ledger_id) AS last_of_all
  FROM factors
  WINDOW lower AS (PARTITION BY ledger_id ORDER BY factor), higher AS (PARTITION BY ledger_id ORDER BY factor DESC)
),
counted AS (
  SELECT ledger_id, factor, entries,
         COALESCE(LAG(at_most_from) OVER (PARTITION BY ledger_id ORDER BY factor), last_of_all + 1) - at_most_from AS prefix,
         at_least_until - COALESCE(LEAD(at_least_until) OVER (PARTITION BY ledger_id ORDER BY factor), first_of_all - 1) AS suffix
  FROM reached
)
SELECT factor AS replication_factor, SUM(prefix) AS entries_by_prefix_factor, SUM(entries) AS entries,
       SUM(suffix) AS entries_by_suffix_factor, COUNT(*) AS ledgers
FROM counted
GROUP BY factor
ORDER BY factor
