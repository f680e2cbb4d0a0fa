"""Every metric that Bookspark tells. docs/metrics.md shows the same, and a test compares the two.

Law: labels are few, and each has few values: a directory, a kind of request, an answer. Nothing has a ledger's id as a label.
"""

from __future__ import annotations

from bookspark.support.metrics.described import Described, Form

G, C, H = Form.GAUGE, Form.COUNTER, Form.HISTOGRAM
_DIRECTORY = ("directory",)

ZOOKEEPER = (
    Described("bookspark_zookeeper_connected", G, "1 while there is a connection to ZooKeeper."),
    Described("bookspark_zookeeper_disconnections_total", C, "How often the connection to ZooKeeper was lost."),
    Described("bookspark_zookeeper_call_seconds", H, "Time of calls to ZooKeeper that were answered, in seconds."),
    Described(
        "bookspark_zookeeper_failed_calls_total",
        C,
        "Calls that ZooKeeper did not answer in time, or answered with an error that says nothing of the data.",
    ),
)
"""Of a bookie's and of a client's session."""

BOOKIE = (
    Described("bookspark_bookie_info", G, "Always 1. The label tells the version that the process runs.", ("version",)),
    Described(
        "bookspark_bookie_clock_timestamp_seconds",
        G,
        "What the clock of the bookie's host tells, in seconds since 1970.",
    ),
    Described("bookspark_bookie_kept", G, "1 while somebody looks after the process. 0: it stops when its lease ends."),
    Described("bookspark_bookie_read_only", G, "1 while the bookie takes no new entries."),
    Described("bookspark_bookie_add_seconds", H, "Time of adds, from the queue of their disk until they are done."),
    Described("bookspark_bookie_read_seconds", H, "Time of answers to reads of entries, until all is sent."),
    Described("bookspark_bookie_sync_seconds", H, "Time of syncs of the log that is written to.", _DIRECTORY),
    Described("bookspark_bookie_group_adds", H, "How many adds one write and one sync had in common."),
    Described("bookspark_bookie_group_bytes", H, "Bytes of the adds of one group."),
    Described(
        "bookspark_bookie_requests_total",
        C,
        "Answered requests by kind and status; a read that reaches the last entry has the status no_such_entry.",
        ("kind", "status"),
    ),
    Described("bookspark_bookie_refusals_total", C, "Requests and connections that made no sense, or found no room."),
    Described("bookspark_bookie_added_entries_total", C, "Entries that were taken in, to be put into a log."),
    Described("bookspark_bookie_added_bytes_total", C, "Bytes of their batches."),
    Described("bookspark_bookie_read_entries_total", C, "Entries that were sent to readers."),
    Described("bookspark_bookie_read_bytes_total", C, "Bytes of their batches, as they are stored."),
    Described("bookspark_bookie_fences_total", C, "Ledgers that were fenced, which ends their writers."),
    Described("bookspark_bookie_connections", G, "Connections of clients."),
    Described("bookspark_bookie_strangers", G, "Connections that have not said yet who they are."),
    Described("bookspark_bookie_add_in_flight_bytes", G, "Bytes of adds that are not durable yet."),
    Described("bookspark_bookie_reading_paused", G, "1 while nothing is read from clients, because too much waits."),
    Described("bookspark_bookie_read_in_flight_bytes", G, "Bytes of answers that readers have not taken yet."),
    Described("bookspark_bookie_reads_waiting", G, "Parts of answers that wait until there is memory for them."),
    Described("bookspark_bookie_queued_turns", G, "Turns of the loop whose writes wait for the disk.", _DIRECTORY),
    Described("bookspark_bookie_ledgers", G, "Ledgers that the bookie knows."),
    Described("bookspark_bookie_index_ledgers", G, "Ledgers of which the index has entries."),
    Described("bookspark_bookie_checkpoint_bytes", G, "Size of the index, as its checkpoint has it.", _DIRECTORY),
    Described("bookspark_bookie_log_bytes", G, "Size of the logs.", _DIRECTORY),
    Described(
        "bookspark_bookie_garbage_bytes",
        G,
        "Bytes of sealed logs that belong to no ledger any more, as the last collection found them.",
        _DIRECTORY,
    ),
    Described("bookspark_bookie_free_bytes", G, "Free space of the directory's disk.", _DIRECTORY),
    Described(
        "bookspark_bookie_directory_failed",
        G,
        "1 for a directory that is not in use any more; the reason is in the bookie's status.",
        _DIRECTORY,
    ),
    Described("bookspark_bookie_directory_full", G, "1 for a directory that does not take every add.", _DIRECTORY),
    Described(
        "bookspark_bookie_directory_read_errors_total",
        C,
        "Batches that the directory's disk could not read.",
        _DIRECTORY,
    ),
    Described("bookspark_bookie_collections_total", C, "Garbage collections that are over."),
    Described("bookspark_bookie_collection_seconds", G, "How long the last collection took, with its rewriting."),
    Described(
        "bookspark_bookie_collection_failed",
        G,
        "1 if the last collection did not come to its end, or could not judge all ledgers.",
    ),
    Described("bookspark_bookie_collected_ledgers_total", C, "Deleted ledgers that were forgotten."),
    Described("bookspark_bookie_removed_log_bytes_total", C, "Bytes of logs that were removed."),
    Described("bookspark_bookie_rewritten_log_bytes_total", C, "Bytes of logs that rewriting made in their place."),
    Described("bookspark_bookie_failed_rewrites_total", C, "Rewritings that failed, which are tried again."),
    Described(
        "bookspark_bookie_lossy_boot", G, "The number of the last boot after which entries may be lost; 0: none."
    ),
    Described("bookspark_bookie_healed_boot", G, "The number of the last such boot of which everything is back."),
    Described(
        "bookspark_bookie_limbo_ledgers", G, "Ledgers of which entries may be missing, so absence proves nothing."
    ),
    Described("bookspark_bookie_lacking_ledgers", G, "Ledgers of which entries were lost here that are not all back."),
    Described("bookspark_bookie_lost_copies_total", C, "Copies of batches that were found unreadable."),
    Described("bookspark_bookie_healing_ledgers", G, "Ledgers that healing looks at; 0 if this process heals nothing."),
    Described("bookspark_bookie_healing_ledgers_left", G, "Ledgers that healing still has to look at."),
    Described("bookspark_bookie_healing_seconds", G, "How long healing has run."),
    Described("bookspark_bookie_healing_entries_total", C, "Entries that healing brought back."),
    Described("bookspark_bookie_healing_bytes_total", C, "Bytes that healing brought back."),
    Described("bookspark_bookie_healing_lost_entries", G, "Entries that belong here and that no bookie gives."),
    Described("bookspark_bookie_scrub_ratio", G, "How much of the scrub's round is done, 0 to 1."),
    Described(
        "bookspark_bookie_scrub_finished_timestamp_seconds",
        G,
        "When the last whole round of the scrub ended, in seconds since 1970. 0: none did yet.",
    ),
    Described(
        "bookspark_bookie_scrub_dead_bytes_total",
        C,
        "Damaged bytes that hold no entry any more, as the scrub found them.",
    ),
    Described(
        "bookspark_bookie_renewed_files_total",
        C,
        "Damaged control logs, checkpoints, notes, markers and cookies that were written anew.",
    ),
)
"""A bookie tells these and those of ZOOKEEPER. All have the label ``bookie_id``."""

CLIENT = (
    Described(
        "bookspark_client_request_seconds",
        H,
        "Time until a bookie answered an add, a read or a sync, for each bookie that was asked.",
        ("kind",),
    ),
    Described(
        "bookspark_client_failed_requests_total",
        C,
        "Requests that a bookie did not answer, or could not answer, by reason.",
        ("reason",),
    ),
    Described("bookspark_client_failed_connections_total", C, "Connections to bookies that could not be made."),
    Described("bookspark_client_sent_bytes_total", C, "Bytes of frames that were sent to bookies."),
    Described("bookspark_client_received_bytes_total", C, "Bytes of frames that came from bookies."),
    Described("bookspark_client_appended_entries_total", C, "Entries that were appended and sent; copies don't count."),
    Described("bookspark_client_appended_bytes_total", C, "Bytes of their payloads."),
    Described("bookspark_client_ensemble_changes_total", C, "How often a ledger got other bookies for failed ones."),
    Described("bookspark_client_connections", G, "Bookies that there is a connection to."),
    Described("bookspark_client_bookies_behind", G, "Bookies that don't take in what is sent: their writers wait."),
    Described("bookspark_client_queued_bytes", G, "Bytes that the sockets have not taken."),
    Described("bookspark_client_requests_in_flight", G, "Requests that wait for their answers."),
    Described("bookspark_client_quarantined_bookies", G, "Bookies that failed a moment ago, and are avoided."),
    Described("bookspark_client_writers", G, "Ledgers that are open for writing."),
    Described(
        "bookspark_client_kept_bytes", G, "Bytes that writers keep until bookies have them, or may take at once."
    ),
    Described("bookspark_client_waiting_appends", G, "Appends that wait until there is room."),
)
"""A client tells these and those of ZOOKEEPER. All have the label ``client``."""

AUTORECOVERY = (
    Described("bookspark_autorecovery_enabled", G, "1 while workers begin repairs; 0: somebody switched that off."),
    Described("bookspark_autorecovery_auditors", G, "1 if the cluster has an auditor. 0: nobody finds lost copies."),
    Described("bookspark_autorecovery_underreplicated_ledgers", G, "Ledgers that lack copies, as far as was found."),
    Described("bookspark_autorecovery_repairs_under_way", G, "Ledgers of these that a worker repairs now."),
    Described("bookspark_autorecovery_lost_bookies", G, "Bookies that are gone for good; others take over."),
    Described("bookspark_autorecovery_away_bookies", G, "Bookies that are gone, and count as lost before long."),
    Described(
        "bookspark_autorecovery_check_finished_timestamp_seconds",
        G,
        "When the last exact check ended, in seconds since 1970. 0: there was none.",
    ),
    Described("bookspark_autorecovery_check_marked_ledgers", G, "Ledgers that lacked copies at the last exact check."),
    Described("bookspark_autorecovery_check_skipped_bookies", G, "Bookies that the last check could not ask."),
    Described("bookspark_autorecovery_check_unreadable_ledgers", G, "Ledgers whose records can't be decoded."),
    Described(
        "bookspark_autorecovery_open_ledgers", G, "Ledgers that are not closed, as far as the auditor has looked."
    ),
    Described(
        "bookspark_autorecovery_standing_recoveries",
        G,
        "Ledgers of these that stayed in recovery for 10 s or longer: somebody began it, and it has not ended.",
    ),
    Described("bookspark_autorecovery_repaired_ledgers_total", C, "Ledgers that this process repaired."),
    Described("bookspark_autorecovery_failed_repairs_total", C, "Repairs of this process that failed."),
    Described("bookspark_autorecovery_copied_entries_total", C, "Entries that this process had copied."),
    Described("bookspark_autorecovery_copied_bytes_total", C, "Bytes of their payloads."),
    Described("bookspark_autorecovery_busy_seconds_total", C, "Time in which this process repaired something."),
    Described(
        "bookspark_cluster_bookies",
        G,
        "Bookies that have a cookie or a registration, by state: writable, read_only, down.",
        ("state",),
    ),
)
"""An autorecovery process tells these, those of ZOOKEEPER and those of CLIENT. What is not of the process itself is the same in
each; it is left out while ZooKeeper does not answer. What is told of ledgers that are not closed, the auditor alone tells."""

LOG_READERS = (
    Described(
        "bookspark_log_reader_lag_rows",
        G,
        "Rows of the log that a reader has not read. Left out while the end of the log can't be read.",
        ("kind", "reader"),
    ),
    Described(
        "bookspark_log_reader_lag_seconds",
        G,
        "How long ago the first of these rows was committed; 0 if there are none.",
        ("kind", "reader"),
    ),
    Described(
        "bookspark_log_reader_live",
        G,
        "1 while the reader tells where it is. 0: it was closed, or it is down, and the lag is that of its last place.",
        ("kind", "reader"),
    ),
)
"""What readers of a log told; whoever asks for the metrics of a log computes them. All have the label ``log``."""
