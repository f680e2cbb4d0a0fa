"""Disk: every byte that a bookie keeps, and the one seam through which it touches files. docs/formats.md has all formats.

===================  ============================================================================
``entry_log``        entry logs, which are appended to
``log_scan``         which bytes of an entry log are good
``torn``             whether bad bytes are a write that was cut short, or damage
``rewritten_log``    rewritten logs: sorted and compressed
``rewritten_block``  a block of a rewritten log
``synced_note``      the note up to which position a file is durable
``control_log``      fences, limbo, master keys, explicit LACs
``control_state``    what the records of a control log say
``sorted_ids``       ids in ascending order
``index``            which entries are held, and where; in memory
``checkpoint``       the index on the disk, in parts
``packed_dict``      what is known of ledgers that nobody uses, packed; in memory
``unclean_marker``   the marker that a crash may lose acknowledged entries
``file_system``      files: the seam for tests that lose or fail something
===================  ============================================================================

An example::

    from bookspark.store.bookie.disk.checkpoint import read_checkpoint
    from bookspark.store.bookie.disk.file_system import RealFileSystem

    checkpoint = read_checkpoint(RealFileSystem(), "/data/bookie")
"""
