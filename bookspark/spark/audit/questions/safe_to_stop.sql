-- Not safe to stop: confirmed entries that would have fewer copies than their ack quorum on bookies that are up, if the named
-- bookies were lost.
SELECT ledger_id, log, state, first_entry_id, last_entry_id, entries, write_quorum, ack_quorum, held_by,
       SIZE(left_over) AS copies_left
FROM (
  SELECT e.*, FILTER(held_by, bookie -> NOT ARRAY_CONTAINS(d.bookies, bookie) AND NOT ARRAY_CONTAINS(:bookies, bookie)) AS left_over
  FROM entry_ranges e
  CROSS JOIN (SELECT COLLECT_LIST(bookie_id) AS bookies FROM bookies WHERE state = 'down') d
)
WHERE SIZE(ARRAY_INTERSECT(held_by, :bookies)) > 0 AND SIZE(left_over) < ack_quorum
ORDER BY copies_left, ledger_id, first_entry_id
