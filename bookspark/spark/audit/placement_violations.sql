-- Placement violations: copies of an entry that are closer than the placement rule and the bookies allow.
WITH rule AS (
  SELECT CASE WHEN STARTSWITH(p.rule, 'one_per_') THEN SUBSTRING(p.rule, LENGTH('one_per_') + 1)
              WHEN p.rule = 'rack_aware' THEN 'rack' END AS kind, p.racks_min
  FROM placement p
),
places AS (
  SELECT /*+ BROADCAST(r) */ b.bookie_id, b.state, r.kind, r.racks_min,
         CASE r.kind WHEN 'rack' THEN b.rack WHEN 'host' THEN b.host
                     ELSE COALESCE(FROM_JSON(b.labels, 'MAP<STRING, STRING>')[r.kind], '') END AS place
  FROM bookies b CROSS JOIN rule r WHERE r.kind IS NOT NULL AND b.host IS NOT NULL
),
known AS (
  SELECT MAP_FROM_ENTRIES(COLLECT_LIST(STRUCT(bookie_id, place))) AS place_of, MAX(kind) AS kind,
         CASE WHEN MAX(kind) <> 'rack' THEN COUNT(DISTINCT CASE WHEN state <> 'down' THEN place END)
              ELSE GREATEST(LEAST(COUNT(DISTINCT CASE WHEN state <> 'down' THEN place END), 2), MAX(racks_min)) END AS places
  FROM places HAVING COUNT(*) > 0
),
-- A write set is a run of places in the ensemble, which is taken as a ring.
write_sets AS (
  SELECT /*+ BROADCAST(k) */ f.ledger_id, f.fragment, f.first_entry_id, f.last_entry_id, l.log, l.state, k.place_of, k.kind,
         LEAST(l.write_quorum, k.places) AS possible,
         SLICE(CONCAT(f.ensemble, f.ensemble), start + 1, l.write_quorum) AS write_set
  FROM fragments f JOIN ledgers l ON l.ledger_id = f.ledger_id AND l.metadata_version = f.metadata_version
  CROSS JOIN known k
  LATERAL VIEW EXPLODE(SEQUENCE(0, IF(l.ensemble_size > l.write_quorum, l.ensemble_size - 1, 0))) starts AS start
  WHERE f.last_entry_id IS NULL OR f.last_entry_id >= f.first_entry_id
),
placed AS (
  SELECT *, TRANSFORM(write_set, bookie -> COALESCE(place_of[bookie], CONCAT('unknown: ', bookie))) AS spread FROM write_sets
)
SELECT ledger_id, log, state, fragment, first_entry_id, last_entry_id, kind AS shared, write_set, spread AS places,
       SIZE(ARRAY_DISTINCT(spread)) AS different, possible
FROM placed
WHERE SIZE(ARRAY_DISTINCT(spread)) < possible
ORDER BY ledger_id, fragment, write_set
