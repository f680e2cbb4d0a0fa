-- Which bookie has which entries: the runs of its index, joined where they touch, without the copies that are known to be
-- unreadable. (What a bookie found unreadable by itself is not in its index.)
WITH marked AS (
  SELECT bookie_id, ledger_id, first_entry_id, last_entry_id,
         MAX(last_entry_id) OVER (
           PARTITION BY bookie_id, ledger_id ORDER BY first_entry_id, last_entry_id
           ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached
  FROM index_ranges
),
numbered AS (
  SELECT *, SUM(CASE WHEN first_entry_id <= reached + 1 THEN 0 ELSE 1 END) OVER (
              PARTITION BY bookie_id, ledger_id ORDER BY first_entry_id, last_entry_id) AS island
  FROM marked
),
islands AS (
  SELECT bookie_id, ledger_id, MIN(first_entry_id) AS first_entry_id, MAX(last_entry_id) AS last_entry_id
  FROM numbered
  GROUP BY bookie_id, ledger_id, island
),
unreadable AS (
  SELECT bookie_id, ledger_id, first_entry_id + place AS entry_id
  FROM entry_checksums LATERAL VIEW POSEXPLODE(checksums) copies AS place, checksum
  WHERE unreadable > 0 AND checksum IS NULL
),
-- Each island is cut before its first entry and at each unreadable one: what lies between two cuts is held.
cuts AS (
  SELECT bookie_id, ledger_id, first_entry_id AS island, last_entry_id AS island_last, first_entry_id - 1 AS cut FROM islands
  UNION ALL
  SELECT i.bookie_id, i.ledger_id, i.first_entry_id, i.last_entry_id, u.entry_id
  FROM islands i JOIN unreadable u ON u.bookie_id = i.bookie_id AND u.ledger_id = i.ledger_id
   AND u.entry_id BETWEEN i.first_entry_id AND i.last_entry_id
),
pieces AS (
  SELECT bookie_id, ledger_id, cut + 1 AS first_entry_id,
         COALESCE(LEAD(cut) OVER (PARTITION BY bookie_id, ledger_id, island ORDER BY cut) - 1, island_last) AS last_entry_id
  FROM cuts
)
SELECT * FROM pieces WHERE first_entry_id <= last_entry_id
