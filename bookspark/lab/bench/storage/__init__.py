"""``bookspark bench storage``: a bookie's storage alone, without sockets and without a client.

=================  ============================================================================================================
``storage_cases``  the cases: adds, rewriting, and the cost of a boot
``boot_probe``     a process of its own that boots a storage and measures it
=================  ============================================================================================================

Example::

    with tempfile.TemporaryDirectory() as directory:
        for case in CASES[Part.ADDS](Path(directory), scale=0.01):
            print(case["ratio"])
"""
