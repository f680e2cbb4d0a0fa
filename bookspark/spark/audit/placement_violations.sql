-- Placement violations: copies of an entry that are closer than necessary. placement decides: one_per_host, one_per_<label>, or else
-- racks, if a bookie has one. Bookies that are down count as elsewhere.
WITH rule AS (
  SELECT /*+ BROADCAST(p) */
         CASE WHEN STARTSWITH(MAX(p.placement), 'one_per_') THEN SUBSTRING(MAX(p.placement), LENGTH('one_per_') + 1)
              WHEN MAX(b.rack <> '') THEN 'rack' END AS kind
  FROM bookies b CROSS JOIN policy p
),
places AS (
  SELECT /*+ BROADCAST(r) */ b.bookie_id, r.kind,
         CASE r.kind WHEN 'rack' THEN b.rack WHEN 'host' THEN b.host
                     ELSE COALESCE(FROM_JSON(b.labels, 'MAP<STRING, STRING>')[r.kind], '') END AS place
  FROM bookies b JOIN rule r ON r.kind IS NOT NULL WHERE b.state <> 'down'
),
known AS (
  SELECT MAP_FROM_ENTRIES(COLLECT_LIST(STRUCT(bookie_id, place))) AS place_of, COUNT(DISTINCT place) AS places, MAX(kind) AS kind
  FROM places
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
