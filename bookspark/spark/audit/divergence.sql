-- Divergence: entries with different contents on two bookies, by the checksum of length and payload. Each list names the
-- bookies with the same content. Entries above a closed ledger's end or another's last add confirmed (LAC) are not judged.
WITH committed AS (
  SELECT ledger_id, MAX(last_entry_id) AS last_entry_id
  FROM (SELECT ledger_id, last_entry_id FROM log_commits UNION ALL SELECT ledger_id, last_entry_id FROM fragments)
  GROUP BY ledger_id
),
-- Most rows are equal on all bookies that have them. These are not looked into: a hash of each is compared. (By itself, a hash
-- passes over nulls.)
hashed AS (
  SELECT ledger_id, first_entry_id, XXHASH64(TRANSFORM(checksums, one -> COALESCE(one, -1L))) AS hash FROM entry_checksums
),
unequal AS (
  SELECT ledger_id, first_entry_id FROM hashed GROUP BY ledger_id, first_entry_id HAVING MIN(hash) <> MAX(hash)
),
contents AS (
  SELECT ledger_id, first_entry_id + place AS entry_id, checksum, SORT_ARRAY(COLLECT_SET(bookie_id)) AS bookies
  FROM (
    SELECT e.* FROM entry_checksums e JOIN unequal u
      ON u.ledger_id = e.ledger_id AND u.first_entry_id = e.first_entry_id
  )
  LATERAL VIEW POSEXPLODE(checksums) copies AS place, checksum
  WHERE checksum IS NOT NULL
  GROUP BY ledger_id, first_entry_id + place, checksum
)
SELECT c.ledger_id, l.log, l.state, c.entry_id, COUNT(*) AS contents, SORT_ARRAY(COLLECT_LIST(c.bookies)) AS bookies_by_content
FROM contents c JOIN ledgers l ON l.ledger_id = c.ledger_id
LEFT JOIN committed m ON m.ledger_id = c.ledger_id
WHERE c.entry_id <= COALESCE(l.last_entry_id, GREATEST(l.last_add_confirmed, m.last_entry_id))
GROUP BY c.ledger_id, l.log, l.state, c.entry_id
HAVING COUNT(*) > 1
ORDER BY c.ledger_id, c.entry_id
