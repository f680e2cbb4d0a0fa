-- Not safe to stop: confirmed entries that would have fewer copies than their ack quorum on bookies that are up, if the bookies
-- in table stopped were lost; and ledgers on these bookies of which it is not known which entries are confirmed.
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
       SIZE(left_over) AS copies_left, 'too few copies would be left' AS why
FROM remaining
WHERE concerned AND SIZE(left_over) < ack_quorum
UNION ALL
SELECT DISTINCT ledger_id, log, state, NULL, NULL, NULL, write_quorum, ack_quorum, NULL, NULL, why
FROM not_judged CROSS JOIN gone g WHERE ARRAYS_OVERLAP(ensemble, g.stopped)
ORDER BY copies_left, ledger_id, first_entry_id
