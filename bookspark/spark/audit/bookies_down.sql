-- Bookies that are down: bookies with a cookie and without a registration. Their copies do not count. Start them, or remove
-- them with bookspark autorecovery decommission.
SELECT bookie_id, directories FROM bookies WHERE state = 'down' ORDER BY bookie_id
