-- Every confirmed entry, in ranges in which nothing changes, with the bookies that should hold it and those that do. This is
-- exact: metadata and indexes, no sample. Not judged are entries above the last add confirmed (LAC) of a ledger that is not
-- closed, and what not_judged names. In a striped ledger (ensemble > write quorum) each entry has another write set than the
-- next, and the same as the one an ensemble further on. So a range is every step-th entry, where step is the ensemble size; else
-- it is 1. What an operator accepted as lost on a bookie is not missing there.
WITH committed AS (SELECT ledger_id, MAX(last_entry_id) AS last_entry_id FROM log_commits GROUP BY ledger_id),
judged AS (
  SELECT f.ledger_id, f.fragment, f.ensemble, f.first_entry_id, l.state, l.log, l.ensemble_size, l.write_quorum, l.ack_quorum,
         IF(l.ensemble_size > l.write_quorum, BIGINT(l.ensemble_size), 1L) AS step,
         -- Every entry of a fragment that has an end is confirmed. A commit proves its entries too, ahead of any LAC heard.
         COALESCE(f.last_entry_id, GREATEST(l.last_add_confirmed, c.last_entry_id)) AS last_entry_id
  FROM fragments f JOIN ledgers l ON l.ledger_id = f.ledger_id AND l.metadata_version = f.metadata_version
  LEFT JOIN committed c ON c.ledger_id = f.ledger_id
),
-- The entries of one write set are numbered by turns: turn t is entry class_first + t * step.
classes AS (
  SELECT j.*, class_first, (last_entry_id - class_first) DIV step AS last_turn
  FROM judged j LATERAL VIEW EXPLODE(SEQUENCE(first_entry_id, LEAST(last_entry_id, first_entry_id + step - 1))) c AS class_first
  WHERE last_entry_id >= first_entry_id
),
placed AS (
  SELECT c.*, place, bookie_id FROM classes c LATERAL VIEW POSEXPLODE(ensemble) places AS place, bookie_id
  WHERE PMOD(place - class_first, ensemble_size) < write_quorum
),
lost AS (SELECT * FROM accepted_losses WHERE kind = 'entries'),
spans AS (
  SELECT p.*, GREATEST(0, (c.first_entry_id - class_first + step - 1) DIV step) AS first_held,
         LEAST(last_turn, (c.last_entry_id - class_first) DIV step) AS last_held
  FROM placed p JOIN copies c ON c.ledger_id = p.ledger_id AND c.bookie_id = p.bookie_id
   AND c.first_entry_id <= p.last_entry_id AND c.last_entry_id >= p.class_first
),
-- Each copy sets its bookie's bit (the place in the ensemble) at its first turn, and clears it after its last. An accepted loss
-- begins and ends ranges, too.
single_changes AS (
  SELECT c.*, 0L AS turn, 0L AS bit, TRUE AS begins FROM classes c
  UNION ALL
  SELECT c.*, turn, 0L AS bit, TRUE AS begins
  FROM classes c JOIN lost a ON a.ledger_id = c.ledger_id AND a.last_entry_id >= c.class_first
  LATERAL VIEW EXPLODE(ARRAY(
    GREATEST(0, (a.first_entry_id - class_first + step - 1) DIV step), (a.last_entry_id - class_first) DIV step + 1
  )) ends AS turn
  UNION ALL
  SELECT ledger_id, fragment, ensemble, first_entry_id, state, log, ensemble_size, write_quorum, ack_quorum, step, last_entry_id,
         class_first, last_turn, change.turn, change.bit, FALSE AS begins
  FROM spans LATERAL VIEW EXPLODE(ARRAY(
    STRUCT(first_held AS turn, SHIFTLEFT(1L, place) AS bit), STRUCT(last_held + 1 AS turn, -SHIFTLEFT(1L, place) AS bit)
  )) exploded AS change
  WHERE first_held <= last_held
),
changes AS (
  SELECT ledger_id, fragment, class_first, turn, SUM(bit) AS bits, FIRST(last_turn) AS last_turn, FIRST(step) AS step,
         FIRST(ensemble) AS ensemble, FIRST(state) AS state, FIRST(log) AS log, FIRST(ensemble_size) AS ensemble_size,
         FIRST(write_quorum) AS write_quorum, FIRST(ack_quorum) AS ack_quorum
  FROM single_changes
  WHERE turn <= last_turn
  GROUP BY ledger_id, fragment, class_first, turn
  -- A run of the index that follows another one changes nothing.
  HAVING SUM(bit) <> 0 OR MAX(begins)
),
constant AS (
  SELECT *, class_first + turn * step AS first_entry_id, SUM(bits) OVER later AS held,
         COALESCE(LEAD(turn) OVER later, last_turn + 1) - turn AS entries,
         FILTER(TRANSFORM(ensemble, (bookie, place) -> STRUCT(bookie, place)),
                x -> PMOD(x.place - class_first, ensemble_size) < write_quorum) AS write_set
  FROM changes WINDOW later AS (PARTITION BY ledger_id, fragment, class_first ORDER BY turn)
),
forgiven AS (
  SELECT c.ledger_id, c.first_entry_id, FLATTEN(COLLECT_LIST(a.bookies)) AS bookies
  FROM constant c JOIN lost a ON a.ledger_id = c.ledger_id AND c.first_entry_id BETWEEN a.first_entry_id AND a.last_entry_id
  GROUP BY c.ledger_id, c.first_entry_id
)
SELECT c.ledger_id, fragment, c.first_entry_id, c.first_entry_id + (entries - 1) * step AS last_entry_id, step, entries,
       state, log, write_quorum, ack_quorum,
       SIZE(FILTER(write_set, x -> GETBIT(held, x.place) = 1)) AS replication_factor,
       TRANSFORM(FILTER(write_set, x -> GETBIT(held, x.place) = 1), x -> x.bookie) AS held_by,
       ARRAY_EXCEPT(TRANSFORM(FILTER(write_set, x -> GETBIT(held, x.place) = 0), x -> x.bookie),
                    COALESCE(f.bookies, ARRAY())) AS missing_on
FROM constant c
LEFT JOIN forgiven f ON f.ledger_id = c.ledger_id AND f.first_entry_id = c.first_entry_id
