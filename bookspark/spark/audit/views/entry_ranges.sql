-- Every confirmed entry, in ranges in which nothing changes, with the bookies that should hold it and those that do. This is
-- exact: metadata and indexes, no sample. Not judged are entries above the last add confirmed (LAC) of a ledger that is not
-- closed, and what not_judged names. A striped ledger (ensemble > write quorum) comes entry by entry, as each entry has
-- another write set than the next.
WITH committed AS (SELECT ledger_id, MAX(last_entry_id) AS last_entry_id FROM log_commits GROUP BY ledger_id),
judged AS (
  SELECT f.ledger_id, f.fragment, f.ensemble, f.first_entry_id, l.state, l.log, l.ensemble_size, l.write_quorum, l.ack_quorum,
         -- Every entry of a fragment that has an end is confirmed. A commit proves its entries too, ahead of any LAC heard.
         COALESCE(f.last_entry_id, GREATEST(l.last_add_confirmed, c.last_entry_id)) AS last_entry_id
  FROM fragments f JOIN ledgers l ON l.ledger_id = f.ledger_id AND l.metadata_version = f.metadata_version
  LEFT JOIN committed c ON c.ledger_id = f.ledger_id
),
placed AS (SELECT j.*, place, bookie_id FROM judged j LATERAL VIEW POSEXPLODE(ensemble) places AS place, bookie_id),
-- Each copy sets its bookie's bit (the place in the ensemble) at its first entry, and clears it after its last.
changes AS (
  SELECT j.ledger_id, j.fragment, change.at, SUM(change.bit) AS bits, FIRST(j.ensemble) AS ensemble,
         FIRST(j.last_entry_id) AS fragment_last, FIRST(j.state) AS state, FIRST(j.log) AS log,
         FIRST(j.ensemble_size) AS ensemble_size, FIRST(j.write_quorum) AS write_quorum, FIRST(j.ack_quorum) AS ack_quorum
  FROM placed j LEFT JOIN copies c ON c.ledger_id = j.ledger_id AND c.bookie_id = j.bookie_id
   AND c.first_entry_id <= j.last_entry_id AND c.last_entry_id >= j.first_entry_id
  LATERAL VIEW EXPLODE(ARRAY(
    STRUCT(j.first_entry_id AS at, 0L AS bit),
    STRUCT(GREATEST(c.first_entry_id, j.first_entry_id) AS at, IF(c.bookie_id IS NULL, 0L, SHIFTLEFT(1L, place)) AS bit),
    STRUCT(c.last_entry_id + 1 AS at, -SHIFTLEFT(1L, place) AS bit)
  )) exploded AS change
  WHERE change.at BETWEEN j.first_entry_id AND j.last_entry_id
  GROUP BY j.ledger_id, j.fragment, change.at
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
SELECT ledger_id, fragment, first_entry_id, last_entry_id, last_entry_id - first_entry_id + 1 AS entries,
       state, log, write_quorum, ack_quorum,
       SIZE(FILTER(write_set, x -> GETBIT(held, x.place) = 1)) AS replication_factor,
       TRANSFORM(FILTER(write_set, x -> GETBIT(held, x.place) = 1), x -> x.bookie) AS held_by,
       TRANSFORM(FILTER(write_set, x -> GETBIT(held, x.place) = 0), x -> x.bookie) AS missing_on
FROM single
