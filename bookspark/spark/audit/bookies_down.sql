-- Bookies that are down: they have a cookie and are not registered. Their copies count as held nowhere. Start them, or take them
-- out of the cluster with bookspark autorecovery decommission once autorecovery has replaced their copies.
SELECT bookie_id, directories FROM bookies WHERE state = 'down' ORDER BY bookie_id
