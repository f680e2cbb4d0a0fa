-- History: for each snapshot, how many entries were confirmed, how many of their copies were missing on bookies that were up,
-- and how many bytes the bookies held. (Only this query sees several snapshots.)
WITH committed AS (
  SELECT snapshot_id, ledger_id, MAX(last_entry_id) AS last_entry_id FROM log_commits GROUP BY snapshot_id, ledger_id
),
ranges AS (
  SELECT f.snapshot_id, f.ledger_id, f.ensemble, l.write_quorum, f.first_entry_id,
         COALESCE(f.last_entry_id, GREATEST(l.last_add_confirmed, c.last_entry_id)) AS last_entry_id
  FROM fragments f
  JOIN ledgers l ON l.snapshot_id = f.snapshot_id AND l.ledger_id = f.ledger_id AND l.metadata_version = f.metadata_version
  LEFT JOIN committed c ON c.snapshot_id = f.snapshot_id AND c.ledger_id = f.ledger_id
),
wanted AS (
  SELECT snapshot_id, SUM(last_entry_id - first_entry_id + 1) AS entries,
         SUM((last_entry_id - first_entry_id + 1) * write_quorum) AS copies
  FROM ranges WHERE last_entry_id >= first_entry_id GROUP BY snapshot_id
),
held AS (
  SELECT r.snapshot_id,
         SUM(LEAST(i.last_entry_id, r.last_entry_id) - GREATEST(i.first_entry_id, r.first_entry_id) + 1) AS copies
  FROM ranges r JOIN index_ranges i
    ON i.snapshot_id = r.snapshot_id AND i.ledger_id = r.ledger_id AND ARRAY_CONTAINS(r.ensemble, i.bookie_id)
   AND i.first_entry_id <= r.last_entry_id AND i.last_entry_id >= r.first_entry_id
  GROUP BY r.snapshot_id
),
batches AS (
  SELECT snapshot_id, MAX(bytes) AS bytes FROM index_ranges GROUP BY snapshot_id, bookie_id, entry_log, position
),
stored AS (SELECT snapshot_id, SUM(bytes) AS bytes FROM batches GROUP BY snapshot_id)
SELECT COALESCE(w.snapshot_id, s.snapshot_id) AS snapshot_id, COALESCE(w.entries, 0) AS entries,
       GREATEST(0, COALESCE(w.copies, 0) - COALESCE(h.copies, 0)) AS missing_copies, COALESCE(s.bytes, 0) AS bytes
FROM wanted w LEFT JOIN held h ON h.snapshot_id = w.snapshot_id FULL JOIN stored s ON s.snapshot_id = w.snapshot_id
