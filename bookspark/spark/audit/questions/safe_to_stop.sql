-- Not safe to stop: what would break if the bookies in table stopped were lost. These are confirmed entries that would have
-- fewer copies than their ack quorum on bookies that are up, ledgers that are not closed and could not be recovered, and
-- ledgers on these bookies of which nobody knows which entries are confirmed. A range is every step-th entry from its first to
-- its last.
WITH gone AS (
  SELECT COLLECT_SET(bookie_id) AS bookies, COLLECT_SET(IF(now, bookie_id, NULL)) AS stopped
  FROM (SELECT bookie_id, TRUE AS now FROM stopped UNION ALL SELECT bookie_id, FALSE FROM bookies WHERE state = 'down')
),
remaining AS (
  SELECT /*+ BROADCAST(g) */ e.*, FILTER(held_by, bookie -> NOT ARRAY_CONTAINS(g.bookies, bookie)) AS left_over,
         ARRAYS_OVERLAP(held_by, g.stopped) AS concerned
  FROM entry_ranges e CROSS JOIN gone g
),
-- A recovery has to hear so many bookies that no write set of the last fragment has an ack quorum among the others. A write set is
-- a run of places in the ensemble, which is taken as a ring. A bookie that has the ledger in limbo counts as one of the others.
last_write_sets AS (
  SELECT l.ledger_id, l.log, l.state, l.write_quorum, l.ack_quorum,
         SLICE(CONCAT(f.ensemble, f.ensemble), start + 1, l.write_quorum) AS write_set
  FROM ledgers l JOIN fragments f ON f.ledger_id = l.ledger_id AND f.metadata_version = l.metadata_version
  LATERAL VIEW EXPLODE(SEQUENCE(0, IF(l.ensemble_size > l.write_quorum, l.ensemble_size - 1, 0))) starts AS start
  WHERE f.last_entry_id IS NULL
),
silent AS (
  SELECT /*+ BROADCAST(g) */ w.*,
         FILTER(write_set, bookie -> ARRAY_CONTAINS(g.bookies, bookie) OR ARRAY_CONTAINS(i.bookies, bookie)) AS bookies
  FROM last_write_sets w CROSS JOIN gone g
  LEFT JOIN (SELECT ledger_id, COLLECT_SET(bookie_id) AS bookies FROM limbo GROUP BY ledger_id) i ON i.ledger_id = w.ledger_id
  WHERE ARRAYS_OVERLAP(write_set, g.stopped)
)
SELECT ledger_id, log, state, first_entry_id, last_entry_id, step, entries, write_quorum, ack_quorum, held_by,
       SIZE(left_over) AS copies_left, 'too few copies would be left' AS why
FROM remaining
WHERE concerned AND SIZE(left_over) < ack_quorum
UNION ALL
SELECT DISTINCT ledger_id, log, state, NULL, NULL, NULL, NULL, write_quorum, ack_quorum, NULL, NULL,
       'it is not closed, and too few bookies would be left to recover it'
FROM silent
WHERE SIZE(bookies) >= ack_quorum
UNION ALL
SELECT /*+ BROADCAST(g) */ DISTINCT ledger_id, log, state, NULL, NULL, NULL, NULL, write_quorum, ack_quorum, NULL, NULL, why
FROM not_judged CROSS JOIN gone g WHERE ensemble IS NULL OR ARRAYS_OVERLAP(ensemble, g.stopped)
ORDER BY copies_left, ledger_id, first_entry_id
