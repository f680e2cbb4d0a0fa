-- Not safe to stop: confirmed entries that would have fewer copies than their ack quorum on bookies that are up, if the bookies
-- in table stopped were lost.
WITH gone AS (
  SELECT COLLECT_SET(bookie_id) AS bookies, COLLECT_SET(IF(now, bookie_id, NULL)) AS stopped
  FROM (SELECT bookie_id, TRUE AS now FROM stopped UNION ALL SELECT bookie_id, FALSE FROM bookies WHERE state = 'down')
),
remaining AS (
  SELECT e.*, FILTER(held_by, bookie -> NOT ARRAY_CONTAINS(g.bookies, bookie)) AS left_over,
         ARRAYS_OVERLAP(held_by, g.stopped) AS concerned
  FROM entry_ranges e CROSS JOIN gone g
)
SELECT ledger_id, log, state, first_entry_id, last_entry_id, entries, write_quorum, ack_quorum, held_by,
       SIZE(left_over) AS copies_left
FROM remaining
WHERE concerned AND SIZE(left_over) < ack_quorum
ORDER BY copies_left, ledger_id, first_entry_id
