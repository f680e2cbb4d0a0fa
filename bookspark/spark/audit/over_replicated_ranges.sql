-- Over-replicated ranges: entries on bookies outside their fragment, or above a closed ledger's end. Garbage collection
-- removes them.
WITH named AS (
  SELECT f.ledger_id, f.first_entry_id,
         CASE WHEN l.state = 'CLOSED' THEN f.last_entry_id ELSE COALESCE(f.last_entry_id, 9223372036854775806) END
           AS last_entry_id, e.bookie_id
  FROM fragments f JOIN ledgers l ON l.ledger_id = f.ledger_id AND l.metadata_version = f.metadata_version
  LATERAL VIEW EXPLODE(f.ensemble) e AS bookie_id
),
-- The parts of a copy that no fragment with its bookie covers: the gaps between these fragments.
touching AS (
  SELECT c.bookie_id, c.ledger_id, c.first_entry_id, c.last_entry_id, n.last_entry_id AS named_last,
         GREATEST(n.first_entry_id, c.first_entry_id) AS named_first
  FROM copies c JOIN named n
    ON n.ledger_id = c.ledger_id AND n.bookie_id = c.bookie_id
   AND n.first_entry_id <= c.last_entry_id AND n.last_entry_id >= c.first_entry_id
),
bounded AS (
  SELECT bookie_id, ledger_id, first_entry_id AS copy_first, last_entry_id AS copy_last,
         first_entry_id - 1 AS named_first, first_entry_id - 1 AS named_last FROM copies
  UNION ALL
  SELECT bookie_id, ledger_id, first_entry_id, last_entry_id, named_first, named_last FROM touching
),
gaps AS (
  SELECT bookie_id, ledger_id, named_last + 1 AS first_entry_id,
         COALESCE(LEAD(named_first) OVER (
           PARTITION BY bookie_id, ledger_id, copy_first ORDER BY named_first) - 1, copy_last) AS last_entry_id, copy_last
  FROM bounded
)
SELECT g.ledger_id, l.log, l.state, g.bookie_id, g.first_entry_id, g.last_entry_id,
       g.last_entry_id - g.first_entry_id + 1 AS entries
FROM gaps g JOIN ledgers l ON l.ledger_id = g.ledger_id
-- A ledger that changed or was deleted while the snapshot was taken has no fragments here, and is not judged.
LEFT SEMI JOIN fragments f ON f.ledger_id = l.ledger_id AND f.metadata_version = l.metadata_version
WHERE g.first_entry_id <= g.last_entry_id AND g.first_entry_id <= g.copy_last
ORDER BY g.ledger_id, g.first_entry_id, g.bookie_id
