-- Placement violations: fragments whose copies of an entry are on fewer racks than there could be; where no bookie names a rack,
-- on fewer hosts. Bookies that are down tell neither and are taken for being elsewhere. Client option placement keeps them apart.
WITH named AS (SELECT COALESCE(MAX(rack <> ''), FALSE) AS racks FROM bookies),
places AS (
  SELECT b.bookie_id, IF(n.racks, b.rack, b.host) AS place, IF(n.racks, 'rack', 'host') AS kind
  FROM bookies b CROSS JOIN named n WHERE b.state <> 'down'
),
known AS (
  SELECT MAP_FROM_ENTRIES(COLLECT_LIST(STRUCT(bookie_id, place))) AS place_of, COUNT(DISTINCT place) AS places, MAX(kind) AS kind
  FROM places
),
-- A write set is a run of places in the ensemble, taken as a ring.
write_sets AS (
  SELECT f.ledger_id, f.fragment, f.first_entry_id, f.last_entry_id, l.log, l.state, k.place_of, k.kind,
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
