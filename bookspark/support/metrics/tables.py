"""Every metric of Bookspark. docs/metrics.md shows the same, and a test compares the two.

Law: labels are few, and each has few values: a directory, a kind of request, an answer. No label is a ledger's id.
"""

from __future__ import annotations

from bookspark.support.metrics.described import Described, Form

G, C, H = Form.GAUGE, Form.COUNTER, Form.HISTOGRAM
_DIRECTORY = ("directory",)

ZOOKEEPER = (
    Described("bookspark_zookeeper_connected", G, "1 while connected to ZooKeeper."),
    Described("bookspark_zookeeper_disconnections_total", C, "Lost connections to ZooKeeper."),
    Described("bookspark_zookeeper_call_seconds", H, "Time of answered calls to ZooKeeper."),
    Described(
        "bookspark_zookeeper_failed_calls_total",
        C,
        "Calls without an answer in time or with a failure.",
    ),
)
"""Metrics of a bookie's and of a client's session."""

BOOKIE = (
    Described("bookspark_bookie_info", G, "Always 1; the label is the running version.", ("version",)),
    Described(
        "bookspark_bookie_clock_ahead_seconds",
        G,
        "Lead of the host's clock over ZooKeeper's; below 0: lag; 0 within the accuracy.",
    ),
    Described(
        "bookspark_bookie_certificate_days",
        G,
        "Days until a certificate in use ends; below 0: it ended.",
        ("option",),
    ),
    Described("bookspark_bookie_kept", G, "1 while a keeper holds the lease; else the bookie stops when it ends."),
    Described("bookspark_bookie_read_only", G, "1 while the bookie takes no new entries."),
    Described("bookspark_bookie_add_seconds", H, "Time of adds, from the disk's queue until done."),
    Described("bookspark_bookie_read_seconds", H, "Time of read answers, until all is sent."),
    Described("bookspark_bookie_sync_seconds", H, "Time of syncs of the active log.", _DIRECTORY),
    Described("bookspark_bookie_group_adds", H, "Adds that shared a write and a sync."),
    Described("bookspark_bookie_group_bytes", H, "Bytes of such a group."),
    Described(
        "bookspark_bookie_requests_total",
        C,
        "Answered requests; a read up to the last entry has the status no_such_entry.",
        ("kind", "status"),
    ),
    Described("bookspark_bookie_refusals_total", C, "Refused requests and connections."),
    Described("bookspark_bookie_added_entries_total", C, "Entries accepted for a log."),
    Described("bookspark_bookie_added_bytes_total", C, "Bytes of their batches."),
    Described("bookspark_bookie_read_entries_total", C, "Entries sent to readers."),
    Described("bookspark_bookie_read_bytes_total", C, "Bytes of their stored batches."),
    Described("bookspark_bookie_fences_total", C, "Fenced ledgers; their writers end."),
    Described("bookspark_bookie_connections", G, "Connections of clients."),
    Described("bookspark_bookie_strangers", G, "Connections without identification yet."),
    Described("bookspark_bookie_add_in_flight_bytes", G, "Bytes of adds that are not durable yet."),
    Described("bookspark_bookie_reading_paused", G, "1 while no requests are read, because too much waits."),
    Described("bookspark_bookie_read_in_flight_bytes", G, "Bytes of answers that readers have not taken yet."),
    Described(
        "bookspark_bookie_unfinished_bytes",
        G,
        "Bytes of unfinished frames, unread answers, long polls and waiting requests.",
    ),
    Described("bookspark_bookie_reads_waiting", G, "Answer parts that wait for memory."),
    Described("bookspark_bookie_queued_turns", G, "Turns of the loop whose writes wait for the disk.", _DIRECTORY),
    Described("bookspark_bookie_ledgers", G, "Known ledgers."),
    Described("bookspark_bookie_index_ledgers", G, "Ledgers with entries in the index."),
    Described("bookspark_bookie_checkpoint_bytes", G, "Size of the index's checkpoint.", _DIRECTORY),
    Described("bookspark_bookie_log_bytes", G, "Size of the logs.", _DIRECTORY),
    Described(
        "bookspark_bookie_garbage_bytes",
        G,
        "Bytes of sealed logs without a ledger, at the last collection.",
        _DIRECTORY,
    ),
    Described("bookspark_bookie_free_bytes", G, "Free space of the disk.", _DIRECTORY),
    Described(
        "bookspark_bookie_directory_failed",
        G,
        "1 for a failed directory.",
        _DIRECTORY,
    ),
    Described("bookspark_bookie_directory_full", G, "1 for a directory that does not take every add.", _DIRECTORY),
    Described(
        "bookspark_bookie_directory_read_errors_total",
        C,
        "Batches that the disk could not read.",
        _DIRECTORY,
    ),
    Described("bookspark_bookie_collections_total", C, "Finished garbage collections."),
    Described("bookspark_bookie_collection_seconds", G, "Duration of the last collection with its rewriting."),
    Described(
        "bookspark_bookie_collection_failed",
        G,
        "1 if the last collection failed or could not judge all ledgers.",
    ),
    Described("bookspark_bookie_collected_ledgers_total", C, "Deleted ledgers that were forgotten."),
    Described("bookspark_bookie_removed_log_bytes_total", C, "Bytes of removed logs."),
    Described("bookspark_bookie_rewritten_log_bytes_total", C, "Bytes of logs written in their place."),
    Described("bookspark_bookie_failed_rewrites_total", C, "Failed rewritings; they are retried."),
    Described("bookspark_bookie_lossy_boot", G, "Number of the last boot that may have lost entries; 0: none."),
    Described("bookspark_bookie_healed_boot", G, "Number of the last such boot that is healed completely."),
    Described("bookspark_bookie_limbo_ledgers", G, "Ledgers that may lack entries, so absence proves nothing."),
    Described("bookspark_bookie_lacking_ledgers", G, "Ledgers with lost entries that are not all back."),
    Described("bookspark_bookie_lost_copies_total", C, "Damaged copies of batches."),
    Described(
        "bookspark_bookie_unread_copies",
        G,
        "Copies of batches that the disks can't read now.",
    ),
    Described("bookspark_bookie_healing_ledgers", G, "Ledgers to heal; 0: none."),
    Described("bookspark_bookie_healing_ledgers_left", G, "Ledgers still to heal."),
    Described("bookspark_bookie_healing_seconds", G, "Duration of healing."),
    Described("bookspark_bookie_healing_entries_total", C, "Entries that healing restored."),
    Described("bookspark_bookie_healing_bytes_total", C, "Bytes that healing restored."),
    Described("bookspark_bookie_healing_lost_entries", G, "Entries that belong here and no bookie has."),
    Described("bookspark_bookie_scrub_ratio", G, "Finished part of the scrub's round, 0 to 1."),
    Described(
        "bookspark_bookie_scrub_finished_timestamp_seconds",
        G,
        "End of the last whole scrub, in seconds since 1970; 0: none.",
    ),
    Described(
        "bookspark_bookie_scrub_dead_bytes_total",
        C,
        "Damaged bytes without live entries.",
    ),
    Described(
        "bookspark_bookie_renewed_files_total",
        C,
        "Damaged control files that were rewritten.",
    ),
)
"""A bookie has these and those of ZOOKEEPER. All have the label ``bookie_id``."""

CLIENT = (
    Described(
        "bookspark_client_request_seconds",
        H,
        "Time of a bookie's answer to an add, a read or a sync.",
        ("kind",),
    ),
    Described(
        "bookspark_client_failed_requests_total",
        C,
        "Requests that a bookie did not or could not answer.",
        ("reason",),
    ),
    Described("bookspark_client_failed_connections_total", C, "Failed connections to bookies."),
    Described("bookspark_client_sent_bytes_total", C, "Bytes of frames sent to bookies."),
    Described("bookspark_client_received_bytes_total", C, "Bytes of frames from bookies."),
    Described("bookspark_client_appended_entries_total", C, "Entries appended and sent, without copies."),
    Described("bookspark_client_appended_bytes_total", C, "Bytes of their payloads."),
    Described("bookspark_client_ensemble_changes_total", C, "Replacements of failed bookies in ledgers."),
    Described("bookspark_client_connections", G, "Connected bookies."),
    Described("bookspark_client_bookies_behind", G, "Bookies that take in nothing: their writers wait."),
    Described("bookspark_client_queued_bytes", G, "Bytes that sockets have not taken."),
    Described("bookspark_client_requests_in_flight", G, "Requests without an answer yet."),
    Described("bookspark_client_quarantined_bookies", G, "Bookies avoided after a recent failure."),
    Described("bookspark_client_writers", G, "Ledgers open for writing."),
    Described("bookspark_client_kept_bytes", G, "Bytes that writers keep until bookies have them."),
    Described("bookspark_client_waiting_appends", G, "Appends that wait for room."),
)
"""A client has these and those of ZOOKEEPER. All have the label ``client``."""

AUTORECOVERY = (
    Described("bookspark_autorecovery_enabled", G, "1 while workers begin repairs; 0: switched off."),
    Described("bookspark_autorecovery_auditors", G, "1 with an auditor. 0: lost copies stay unnoticed."),
    Described(
        "bookspark_autorecovery_underreplicated_ledgers",
        G,
        "Ledgers known to lack copies, or closed with fewer copies.",
    ),
    Described("bookspark_autorecovery_repairs_under_way", G, "Such ledgers under repair now."),
    Described("bookspark_autorecovery_lost_bookies", G, "Bookies that count as lost; others take over."),
    Described("bookspark_autorecovery_away_bookies", G, "Absent bookies that do not count as lost yet."),
    Described(
        "bookspark_autorecovery_check_finished_timestamp_seconds",
        G,
        "End of the last exact check, in seconds since 1970; 0: none.",
    ),
    Described("bookspark_autorecovery_check_marked_ledgers", G, "Ledgers that lacked copies at the last exact check."),
    Described("bookspark_autorecovery_check_skipped_bookies", G, "Bookies that the last check could not ask."),
    Described("bookspark_autorecovery_check_unreadable_ledgers", G, "Ledgers with undecodable records."),
    Described("bookspark_autorecovery_open_ledgers", G, "Ledgers not closed, as far as the auditor has looked."),
    Described(
        "bookspark_autorecovery_standing_recoveries",
        G,
        "Such ledgers in recovery for 10 s or longer.",
    ),
    Described("bookspark_autorecovery_repaired_ledgers_total", C, "Ledgers repaired by this process."),
    Described("bookspark_autorecovery_failed_repairs_total", C, "Failed repairs of this process."),
    Described("bookspark_autorecovery_copied_entries_total", C, "Entries copied for this process."),
    Described("bookspark_autorecovery_copied_bytes_total", C, "Bytes of their payloads."),
    Described("bookspark_autorecovery_busy_seconds_total", C, "Time spent on repairs."),
    Described(
        "bookspark_autorecovery_clock_ahead_seconds",
        G,
        "Lead of the host's clock over ZooKeeper's, to the minute; below 0: lag.",
    ),
    Described(
        "bookspark_cluster_bookies",
        G,
        "Bookies with a cookie or a registration, by state: writable, read_only, down.",
        ("state",),
    ),
)
"""An autorecovery process has these, those of ZOOKEEPER and those of CLIENT. Figures of the cluster are the same in each
process, and left out while ZooKeeper does not answer. Only the auditor has those of ledgers that are not closed."""

LOG_READERS = (
    Described(
        "bookspark_log_reader_lag_rows",
        G,
        "Unread rows of the log.",
        ("kind", "reader"),
    ),
    Described(
        "bookspark_log_reader_lag_seconds",
        G,
        "Age of the first unread row's commit; 0 without unread rows.",
        ("kind", "reader"),
    ),
    Described(
        "bookspark_log_reader_gone",
        G,
        "1 if the reader does not run and has rows to read, and is no query that ended by itself.",
        ("kind", "reader"),
    ),
)
"""Reported positions of a log's readers, computed by the process that serves a log's metrics. All have the label ``log``."""
