"""The tables of docs/performance.md, written from the benches' kept results.

===========  ==================================================================================================================
``tables``   the tables, and the page with them
===========  ==================================================================================================================

The comments on a row, such as its limit, are written by hand in the page; ``tests/docs`` checks that none is missing.

Example::

    page.write_text(with_tables(page.read_text(), kept_runs(cache)))
"""
