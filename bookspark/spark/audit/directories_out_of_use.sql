-- Directories out of use: full or failed directories of bookies that are up. Full: free space, add a directory or delete
-- ledgers. Failed: replace the disk and restart the bookie.
SELECT bookie_id, directory, state, reason FROM disks
WHERE state <> 'writable'
ORDER BY bookie_id, directory
