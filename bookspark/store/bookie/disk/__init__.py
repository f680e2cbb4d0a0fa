"""Disk: every byte that a bookie keeps, and the one seam to its files. docs/formats.md has all formats.

===================  ============================================================================
``entry_log``        entry logs, append-only
``log_scan``         scan of an entry log: good, torn and damaged bytes
``torn``             verdict on bad bytes: a torn write, or damage
``rewritten_log``    rewritten logs: sorted and compressed
``rewritten_block``  a block of a rewritten log
``synced_note``      the durable position of a file
``control_log``      the log of fences, limbo, master keys, explicit LACs
``control_state``    the state that control records make
``index``            the locations of all held entries; in memory
``checkpoint``       the index on disk, in parts
``packed_dict``      a dict that packs idle values; in memory
``unclean_marker``   the marker of a directory that a crash may cost acknowledged entries
``disk_errors``      meaning of a disk's errors, by errno
``file_system``      files: the seam for tests that lose data or fail calls
===================  ============================================================================

An example::

    from bookspark.store.bookie.disk.checkpoint import read_checkpoint
    from bookspark.store.bookie.disk.file_system import RealFileSystem

    checkpoint = read_checkpoint(RealFileSystem(), "/data/bookie")
"""
