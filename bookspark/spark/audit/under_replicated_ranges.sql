-- Under-replicated ranges: confirmed entries with fewer copies than the write quorum, and the bookies without them; for a
-- moment also the newest of an open ledger. A range is every step-th entry from first to last.
SELECT /*+ BROADCAST(d) */ r.ledger_id, r.log, r.state, r.fragment, r.first_entry_id, r.last_entry_id, r.step, r.entries,
       r.replication_factor, r.write_quorum, r.held_by, r.missing_on,
       FILTER(r.missing_on, bookie -> ARRAY_CONTAINS(d.bookies, bookie)) AS of_them_down
FROM entry_ranges r
CROSS JOIN (SELECT COLLECT_LIST(bookie_id) AS bookies FROM bookies WHERE state = 'down') d
WHERE SIZE(r.missing_on) > 0
ORDER BY r.replication_factor, r.ledger_id, r.first_entry_id
