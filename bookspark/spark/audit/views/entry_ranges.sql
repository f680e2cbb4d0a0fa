-- Every confirmed entry, in ranges in which nothing changes, with the bookies that should hold it and those that do. This is
-- exact: metadata and indexes, no sample. Not judged are entries above the last add confirmed (LAC) of a ledger that is not
-- closed, and what not_judged names. A striped ledger (ensemble > write quorum) comes entry by entry, as each entry has
-- another write set than the next. What an operator accepted as lost on a bookie is not missing there.
WITH committed AS (SELECT ledger_id, MAX(last_entry_id) AS last_entry_id FROM log_commits GROUP BY ledger_id),
judged AS (
  SELECT f.ledger_id, f.fragment, f.ensemble, f.first_entry_id, l.state, l.log, l.ensemble_size, l.write_quorum, l.ack_quorum,
         -- Every entry of a fragment that has an end is confirmed. A commit proves its entries too, ahead of any LAC heard.
         COALESCE(f.last_entry_id, GREATEST(l.last_add_confirmed, c.last_entry_id)) AS last_entry_id
  FROM fragments f JOIN ledgers l ON l.ledger_id = f.ledger_id AND l.metadata_version = f.metadata_version
  LEFT JOIN committed c ON c.ledger_id = f.ledger_id
),
placed AS (SELECT j.*, place, bookie_id FROM judged j LATERAL VIEW POSEXPLODE(ensemble) places AS place, bookie_id),
lost AS (SELECT * FROM accepted_losses WHERE kind = 'entries'),
-- Each copy sets its bookie's bit (the place in the ensemble) at its first entry, and clears it after its last. An accepted loss
-- begins and ends ranges, too.
single_changes AS (
  SELECT j.*, change.at AS at, change.bit AS bit
  FROM placed j LEFT JOIN copies c ON c.ledger_id = j.ledger_id AND c.bookie_id = j.bookie_id
   AND c.first_entry_id <= j.last_entry_id AND c.last_entry_id >= j.first_entry_id
  LATERAL VIEW EXPLODE(ARRAY(
    STRUCT(j.first_entry_id AS at, 0L AS bit),
    STRUCT(GREATEST(c.first_entry_id, j.first_entry_id) AS at, IF(c.bookie_id IS NULL, 0L, SHIFTLEFT(1L, place)) AS bit),
    STRUCT(c.last_entry_id + 1 AS at, -SHIFTLEFT(1L, place) AS bit)
  )) exploded AS change
  UNION ALL
  SELECT j.*, 0 AS place, NULL AS bookie_id, at, 0L AS bit
  FROM judged j JOIN lost a ON a.ledger_id = j.ledger_id
  LATERAL VIEW EXPLODE(ARRAY(a.first_entry_id, a.last_entry_id + 1)) ends AS at
),
changes AS (
  SELECT ledger_id, fragment, at, SUM(bit) AS bits, FIRST(ensemble) AS ensemble,
         FIRST(last_entry_id) AS fragment_last, FIRST(state) AS state, FIRST(log) AS log,
         FIRST(ensemble_size) AS ensemble_size, FIRST(write_quorum) AS write_quorum, FIRST(ack_quorum) AS ack_quorum
  FROM single_changes
  WHERE at BETWEEN first_entry_id AND last_entry_id
  GROUP BY ledger_id, fragment, at
),
constant AS (
  SELECT *, SUM(bits) OVER later AS held, COALESCE(LEAD(at) OVER later - 1, fragment_last) AS until
  FROM changes WINDOW later AS (PARTITION BY ledger_id, fragment ORDER BY at)
),
single AS (
  SELECT c.*, first_entry_id, IF(ensemble_size > write_quorum, first_entry_id, until) AS last_entry_id,
         FILTER(TRANSFORM(ensemble, (bookie, place) -> STRUCT(bookie, place)),
                x -> PMOD(x.place - first_entry_id, ensemble_size) < write_quorum) AS write_set
  FROM constant c
  LATERAL VIEW EXPLODE(IF(ensemble_size > write_quorum, SEQUENCE(at, until), ARRAY(at))) entries AS first_entry_id
)
SELECT s.ledger_id, fragment, s.first_entry_id, s.last_entry_id, s.last_entry_id - s.first_entry_id + 1 AS entries,
       state, log, write_quorum, ack_quorum,
       SIZE(FILTER(write_set, x -> GETBIT(held, x.place) = 1)) AS replication_factor,
       TRANSFORM(FILTER(write_set, x -> GETBIT(held, x.place) = 1), x -> x.bookie) AS held_by,
       ARRAY_EXCEPT(TRANSFORM(FILTER(write_set, x -> GETBIT(held, x.place) = 0), x -> x.bookie),
                    COALESCE(a.bookies, ARRAY())) AS missing_on
FROM single s
LEFT JOIN lost a ON a.ledger_id = s.ledger_id AND s.first_entry_id BETWEEN a.first_entry_id AND a.last_entry_id
